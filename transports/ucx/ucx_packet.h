// The wire format of ucx: packets. A packet is one active message of UCX, with a header of 64 bytes
// and a payload of at most 60 KiB.
//
//   +-----------------------------------------------------+
//   |                       packet                        |  0   transports/packet.h, streams = 0
//   +-----------------------------------------------------+
//   |                        path                         |  48  receiver's number; HELLO: 0
//   +-----------------------------------------------------+
//   |                       number                        |  56  0, 1, 2, ... in each direction
//   +-----------------------------------------------------+  64, little-endian
//
// HELLO carries a Card before the handshake's hello message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "transports/packet.h"
#include "transports/transport.h"

namespace entrain::ucx {

struct Header {
  PacketHeader packet;
  uint64_t path = 0;
  uint64_t number = 0;
};
static_assert(sizeof(Header) == 64, "the layout on the wire");

// Names the sender and the receiver of a HELLO. `path` is the number that packets of this path to
// `from` must carry. The number is random: after the handshake, nothing else distinguishes the
// peer's packets from a stranger's packets.
struct Card {
  PeerId from{}, to{};
  uint64_t path = 0;
};
static_assert(sizeof(Card) == 40, "the layout on the wire");

constexpr int64_t kMostPayload = 60 << 10;

// Checks a header, except for rules that depend on earlier packets. `payload` is the number of
// payload bytes that came with the header.
absl::Status CheckUcxPacket(const PacketHeader& header, size_t payload);

}  // namespace entrain::ucx
