// What tcp puts on the wire after the handshake: frames, each a header of 48 bytes, little-endian,
// and a payload.
//
//    0        1        2        3        4                 8
//   +--------+--------+--------+--------+-----------------+
//   |  type  | version|     streams     |     credit      |
//   +--------+--------+--------+--------+-----------------+
//   |                        tag                          |  8   transport.h
//   +-----------------------------------------------------+
//   |                                                     |  16  lib/base/call.h
//   |                     descriptor                      |
//   +-----------------------------------------------------+
//   |                       bytes                         |  32
//   +-----------------------------------------------------+
//   |                      message                        |  40  the sender's number for it
//   +-----------------------------------------------------+  48  payload, if the type has one
//
//   type      tag, descriptor  bytes              message  payload
//   EAGER     the message's    of the payload        -     the message, at most 256 KiB
//   ANNOUNCE  the message's    of the message       yes    -
//   GRANT     -                0                    yes    -  send it: its receive is posted
//   REFUSE    -                0                    yes    -  forget it: revoked or mismatched
//   DATA      -                of the payload       yes    the next bytes, at most 256 KiB
//   WITHDRAW  the tag only     0                    yes    -  it will not come: revoked
//   CONTROL   -                of the payload        -     the text, at most 4 KiB
//   CREDIT    -                0                     -     -
//   WANT      -                0                  number  -  of streams, to who dials; 0: there may be some
//   STANDS    -                0                  number  -  its sender reads from this stream, counted from 0
//   CLOSE     -                of the payload        -     why, at most 4 KiB; the last frame
//
// `credit`, in every type: that many bytes of eager messages (each counted with 64 for itself) have
// left the memory for early messages (outgoing.h).
//
// `streams`, of EAGER and DATA: 0, and the payload follows the header; or bit i: the payload is cut into as many slices as
// there are bits, of nearly one length, and the next one comes by stream i (tcp_streams.h). CONTROL, WITHDRAW and CLOSE mean
// that everything sent before has come: they wait for the streams.
//
// Unused fields are zero. Anything else is a breach of the protocol and ends the connection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "transports/transport.h"

namespace entrain {

enum class FrameType : uint8_t {
  kEager = 1,
  kAnnounce = 2,
  kGrant = 3,
  kRefuse = 4,
  kData = 5,
  kWithdraw = 6,
  kControl = 7,
  kCredit = 8,
  kClose = 9,
  kWant = 10,
  kStands = 11,
};

struct FrameHeader {
  FrameType type = FrameType::kCredit;
  uint8_t version = 2;
  uint16_t streams = 0;
  uint32_t credit = 0;
  uint64_t tag = 0;
  Descriptor descriptor{};
  int64_t bytes = 0;
  uint64_t message = 0;
};
static_assert(sizeof(FrameHeader) == 48, "the layout on the wire");

constexpr uint8_t kFrameVersion = 2;
constexpr int64_t kFrameBytes = 256 << 10;  // the largest payload

// Everything about a header that can be checked without knowing what went before.
absl::Status CheckFrame(const FrameHeader& header);
// The bytes that follow a (checked) header on its connection.
int64_t PayloadOf(const FrameHeader& header);

}  // namespace entrain
