#include "transports/ucx/ucx_packet.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/handshake.h"

namespace entrain::ucx {
namespace {

// Returns the number of payload bytes that a type always has, or -1 if it may have any number.
int64_t FixedBytes(PacketType type) {
  switch (type) {
    case PacketType::kHello:
      return static_cast<int64_t>(sizeof(Card) + Handshake::kHelloBytes);
    case PacketType::kProof:
      return static_cast<int64_t>(Handshake::kProofBytes);
    default:
      return -1;
  }
}

}  // namespace

absl::Status CheckUcxPacket(const PacketHeader& header, size_t payload) {
  ENTRAIN_RETURN_IF_ERROR(CheckPacket(header, PacketUser::kUcx, kMostPayload));
  const int64_t fixed = FixedBytes(header.type);
  const int64_t carried = HasPayload(header.type) ? header.bytes : 0;
  if (header.streams != 0 || (fixed >= 0 && header.bytes != fixed) ||
      static_cast<uint64_t>(carried) != payload) {
    return BreachOfProtocol(absl::StrCat("a packet of type ", static_cast<int>(header.type), " of ",
                                         header.bytes, " bytes with ", payload));
  }
  return absl::OkStatus();
}

}  // namespace entrain::ucx
