// The packets of tcp and ucx. All packets have the same header. The table below has the meaning and
// the rules of each type.
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
//   +-----------------------------------------------------+  48, little-endian; unused fields 0
//
//   type      tag, descriptor  bytes              message  payload
//   EAGER     the message's    of the payload        -     the message
//   RTS       the message's    of the message       yes    -
//   CTS       -                0                    yes    -  send it: the receive is posted
//   REFUSE    -                0                    yes    -  drop it: revoked or mismatched
//   DATA      -                of the payload       yes    the next bytes of a cleared message
//   WITHDRAW  the tag only     0                    yes    -  the message will not come: revoked
//   CONTROL   -                of the payload        -     the text, at most 4 KiB
//   CREDIT    -                0                     -     -
//   CLOSE     -                of the payload        -     the reason, up to 4 KiB; the last packet
//   WANT      -                0                  number  -  tcp: streams wanted, maybe 0
//   STANDS    the stream's id  0                  number  -  tcp: sender reads stream 0, 1, ...
//   HELLO     -                of the payload        -     ucx: a card and the handshake's hello
//   PROOF     -                of the payload        -     ucx: the handshake's proof
//   AHEAD     -                of the payload       yes    tcp: the next bytes of a message whose CTS has
//                                                          not come; costs credit as EAGER does
//   LEND      -                0                  number  tcp: so many more bytes of credit
//
// In every type, `credit` is the credit that this packet returns. It is the cost of eager messages
// that the packet's sender has received and does not keep as early messages any more
// (rendezvous_sender.h). The cost of a message is its bytes plus 64. tcp/frame.h explains
// `streams`. A packet that does not follow the table breaks the protocol and ends the path.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "transports/transport.h"

namespace entrain {

constexpr int64_t kMaxMessageBytes = int64_t{1} << 46;

enum class PacketType : uint8_t {
  kEager = 1,
  kRts = 2,
  kCts = 3,
  kRefuse = 4,
  kData = 5,
  kWithdraw = 6,
  kControl = 7,
  kCredit = 8,
  kClose = 9,
  kWant = 10,
  kStands = 11,
  kHello = 12,
  kProof = 13,
  kAhead = 14,
  kLend = 15,
};

struct PacketHeader {
  PacketType type = PacketType::kCredit;
  uint8_t version = 3;
  uint16_t streams = 0;
  uint32_t credit = 0;
  uint64_t tag = 0;
  Descriptor descriptor{};
  int64_t bytes = 0;
  uint64_t message = 0;
};
static_assert(sizeof(PacketHeader) == 48, "the layout on the wire");

constexpr uint8_t kPacketVersion = 3;

// The two transports that send packets. Their packets differ in a few types and in the largest
// payload.
enum class PacketUser : uint8_t { kTcp = 1, kUcx = 2 };

// Returns UNAVAILABLE: "the peer broke the protocol: `what`".
absl::Status BreachOfProtocol(absl::string_view what);
// Checks type, version and `bytes` against the table. `most` is the largest payload of EAGER, DATA,
// AHEAD, HELLO and PROOF.
absl::Status CheckPacket(const PacketHeader& header, PacketUser user, int64_t most);
// Returns true if the field `bytes` of this type is the length of the packet's payload. Only RTS
// has another meaning.
bool HasPayload(PacketType type);

}  // namespace entrain
