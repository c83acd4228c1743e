// What tcp puts on the wire after the handshake: frames, each a header (transports/packet.h) and its payload, of at most
// 256 KiB.
//
// `streams`, of EAGER and DATA: 0, and the payload follows the header; or bit i: the payload is cut into as many slices as
// there are bits, of nearly one length, and the next one comes by stream i (tcp_streams.h). CONTROL, WITHDRAW and CLOSE mean
// that everything sent before has come: they wait for the streams.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "transports/packet.h"

namespace entrain {

constexpr int64_t kFrameBytes = 256 << 10;  // the largest payload

// Everything about a header that can be checked without knowing what went before.
absl::Status CheckFrame(const PacketHeader& header);
// The bytes that follow a (checked) header on its connection.
int64_t PayloadOf(const PacketHeader& header);

}  // namespace entrain
