#include "transports/tcp/frame.h"

#include <bit>

#include "absl/strings/str_cat.h"

#include "lib/base/crc32c.h"
#include "lib/base/status.h"

namespace entrain {

absl::Status CheckFrame(const PacketHeader& header) {
  ENTRAIN_RETURN_IF_ERROR(CheckPacket(header, PacketUser::kTcp, kFrameBytes));
  const bool by_stream = header.type == PacketType::kEager || header.type == PacketType::kData ||
                         header.type == PacketType::kAhead;
  if (header.streams != 0 && (!by_stream || header.bytes < std::popcount(header.streams))) {
    return BreachOfProtocol(absl::StrCat("a packet of type ", static_cast<int>(header.type),
                                         " with ", header.bytes, " bytes by ",
                                         std::popcount(header.streams), " streams"));
  }
  return absl::OkStatus();
}

FrameSums FrameSums::Of(const PacketHeader& header, const void* payload) {
  return {Crc32c(&header, sizeof(header)), Crc32c(payload, static_cast<size_t>(PayloadOf(header)))};
}

absl::Status WrongChecksum() {
  return absl::UnavailableError(
      "receiving: a frame's checksum is wrong: its bytes were altered on the way");
}

int64_t PayloadOf(const PacketHeader& header) {
  return HasPayload(header.type) && header.streams == 0 ? header.bytes : 0;
}

}  // namespace entrain
