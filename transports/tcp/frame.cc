#include "transports/tcp/frame.h"

#include <bit>

#include "absl/strings/str_cat.h"

#include "transports/outgoing.h"

namespace entrain {
namespace {

// The most that `bytes` of a type may say; -1: there is no such type.
int64_t LimitOf(FrameType type) {
  switch (type) {
    case FrameType::kEager:
    case FrameType::kData:
      return kFrameBytes;
    case FrameType::kAnnounce:
      return kMaxMessageBytes;
    case FrameType::kControl:
    case FrameType::kClose:
      return kMaxControlBytes;
    case FrameType::kGrant:
    case FrameType::kRefuse:
    case FrameType::kWithdraw:
    case FrameType::kCredit:
    case FrameType::kWant:
    case FrameType::kStands:
      return 0;
  }
  return -1;
}

}  // namespace

absl::Status CheckFrame(const FrameHeader& header) {
  const int64_t limit = LimitOf(header.type);
  const auto type = static_cast<int>(header.type);
  if (limit < 0 || header.version != kFrameVersion) {
    return absl::UnavailableError(absl::StrCat("the peer broke the protocol: a frame of type ",
                                               type, ", version ", static_cast<int>(header.version),
                                               " (known: ", static_cast<int>(kFrameVersion), ")"));
  }
  const bool by_stream = header.type == FrameType::kEager || header.type == FrameType::kData;
  if (header.streams != 0 && (!by_stream || header.bytes < std::popcount(header.streams))) {
    return absl::UnavailableError(absl::StrCat("the peer broke the protocol: a frame of type ",
                                               type, " with ", header.bytes, " bytes by ",
                                               std::popcount(header.streams), " streams"));
  }
  if (header.bytes < 0 || header.bytes > limit) {
    return absl::UnavailableError(absl::StrCat("the peer broke the protocol: a frame of type ",
                                               type, " with ", header.bytes, " bytes (at most ",
                                               limit, ")"));
  }
  return absl::OkStatus();
}

int64_t PayloadOf(const FrameHeader& header) {
  return header.type == FrameType::kAnnounce || header.streams != 0 ? 0 : header.bytes;
}

}  // namespace entrain
