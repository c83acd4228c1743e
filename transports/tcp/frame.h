// The wire format of tcp after the handshake. A connection carries frames. A frame has a header
// (transports/packet.h) and a payload of at most 256 KiB.
//
// `streams`, in EAGER, DATA and AHEAD: if 0, the payload follows the header. Otherwise the payload is
// cut into slices of nearly equal length, one for each set bit, in ascending order of the bits; the
// slice of bit i is sent on stream i (tcp_streams.h). CONTROL, WITHDRAW and CLOSE imply that all
// earlier messages have arrived. So the receiver handles these frames only after the streams have
// delivered the earlier payloads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "transports/packet.h"

namespace entrain {

constexpr int64_t kFrameBytes = 256 << 10;  // the largest payload

// The CRC32C of a header, and the CRC32C of the payload that follows the header. With checksums
// (Handshake::checksums), a FrameSums precedes each header, and the path has no streams.
struct FrameSums {
  uint32_t header = 0, payload = 0;
  static FrameSums Of(const PacketHeader& header, const void* payload);
};
constexpr size_t LeadBytes(bool checksums) {
  return (checksums ? sizeof(FrameSums) : 0) + sizeof(PacketHeader);
}
// Returns the error for a frame whose bytes do not match its checksum.
absl::Status WrongChecksum();

// Checks a header, except for rules that depend on earlier frames.
absl::Status CheckFrame(const PacketHeader& header);
// Returns the number of payload bytes that follow a checked header on the first connection. Returns
// 0 if the payload is sent on streams.
int64_t PayloadOf(const PacketHeader& header);

}  // namespace entrain
