// The wire format of tcp after the handshake: frames, each of a header (transports/packet.h) and a
// payload of at most 256 KiB.
//
// `streams`, in EAGER and DATA: if 0, the payload follows the header. Otherwise the payload is cut
// into as many slices as there are bits, of nearly equal length; the slice of each set bit i is
// sent on stream i, in ascending order (tcp_streams.h). CONTROL, WITHDRAW and CLOSE mean that all
// earlier messages have arrived, so they wait for the streams.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "transports/packet.h"

namespace entrain {

constexpr int64_t kFrameBytes = 256 << 10;  // the largest payload

// With checksums (Handshake::checksums), this stands before each header: the CRC32C of the header,
// and that of the payload that follows the header. Such a path has no streams.
struct FrameSums {
  uint32_t header = 0, payload = 0;
  static FrameSums Of(const PacketHeader& header, const void* payload);
};
constexpr size_t LeadBytes(bool checksums) {
  return (checksums ? sizeof(FrameSums) : 0) + sizeof(PacketHeader);
}
// Returns the error for a frame whose bytes do not match its checksum.
absl::Status WrongChecksum();

// Checks everything about a header that does not depend on earlier frames.
absl::Status CheckFrame(const PacketHeader& header);
// Returns the bytes that follow a checked header on its connection.
int64_t PayloadOf(const PacketHeader& header);

}  // namespace entrain
