// What ucx sends: parcels, each one active message of UCX with a header of 64 bytes, little-endian,
// and a payload.
//
//    0        1        2        3        4                 8
//   +--------+--------+--------+--------+-----------------+
//   |  type  | version|  zero  |  zero  |     credit      |
//   +--------+--------+--------+--------+-----------------+
//   |                        path                         |  8   the receiver's number of this pair
//   +-----------------------------------------------------+
//   |                        number                       |  16  0, 1, 2, ... of each direction
//   +-----------------------------------------------------+
//   |                        tag                          |  24  transport.h
//   +-----------------------------------------------------+
//   |                                                     |  32  lib/base/call.h
//   |                     descriptor                      |
//   +-----------------------------------------------------+
//   |                       bytes                         |  48
//   +-----------------------------------------------------+
//   |                      message                        |  56  the sender's number for it
//   +-----------------------------------------------------+  64  payload, if the type has one
//
//   type      tag, descriptor  bytes              message  payload
//   HELLO     -                of the payload        -     Card and the handshake's hello; path is 0
//   PROOF     -                of the payload        -     the handshake's proof
//   EAGER     the message's    of the payload        -     the message, at most kParcelBytes
//   ANNOUNCE  the message's    of the message       yes    -
//   GRANT     -                0                    yes    -  send it: its receive is posted
//   REFUSE    -                0                    yes    -  forget it: revoked or mismatched
//   DATA      -                of the payload       yes    the next bytes, at most kParcelBytes
//   WITHDRAW  the tag only     0                    yes    -  it will not come: revoked
//   CONTROL   -                of the payload        -     the text, at most 4 KiB
//   CREDIT    -                0                     -     -
//   CLOSE     -                of the payload        -     why, at most 4 KiB; the last one
//
// `credit` and what follows from it are as in tcp: bytes of eager messages, each counted with 64
// for itself, that have left the memory for early messages. Unused fields are zero. Anything else
// is a breach of the protocol and ends the path.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "transports/transport.h"

namespace entrain::ucx {

enum class ParcelType : uint8_t {
  kHello = 1,
  kProof = 2,
  kEager = 3,
  kAnnounce = 4,
  kGrant = 5,
  kRefuse = 6,
  kData = 7,
  kWithdraw = 8,
  kControl = 9,
  kCredit = 10,
  kClose = 11,
};

struct Header {
  ParcelType type = ParcelType::kCredit;
  uint8_t version = 1;
  uint16_t zero = 0;
  uint32_t credit = 0;
  uint64_t path = 0;
  uint64_t number = 0;
  uint64_t tag = 0;
  Descriptor descriptor{};
  int64_t bytes = 0;
  uint64_t message = 0;
};
static_assert(sizeof(Header) == 64, "the layout on the wire");

// Who says hello to whom, and the number that parcels of this path to `from` must carry: random, as
// it is all that tells them from a stranger's once the handshake is done.
struct Card {
  PeerId from{}, to{};
  uint64_t path = 0;
};
static_assert(sizeof(Card) == 40, "the layout on the wire");

constexpr uint8_t kVersion = 1;
constexpr int64_t kParcelBytes = 60 << 10;  // the largest payload

// Everything about a header that can be checked without knowing what went before, with the payload
// that came with it.
absl::Status CheckParcel(const Header& header, size_t payload);

}  // namespace entrain::ucx
