#include "transports/ucx/parcel.h"

#include "absl/strings/str_cat.h"

#include "lib/net/handshake.h"
#include "transports/outgoing.h"

namespace entrain::ucx {
namespace {

// The least and the most that `bytes` of a type may say; -1: there is no such type.
struct Limits {
  int64_t least = 0, most = -1;
};
Limits LimitsOf(ParcelType type) {
  constexpr auto kHello = static_cast<int64_t>(sizeof(Card) + Handshake::kHelloBytes);
  constexpr auto kProof = static_cast<int64_t>(Handshake::kProofBytes);
  switch (type) {
    case ParcelType::kHello:
      return {kHello, kHello};
    case ParcelType::kProof:
      return {kProof, kProof};
    case ParcelType::kEager:
    case ParcelType::kData:
      return {0, kParcelBytes};
    case ParcelType::kAnnounce:
      return {0, kMaxMessageBytes};
    case ParcelType::kControl:
    case ParcelType::kClose:
      return {0, kMaxControlBytes};
    case ParcelType::kGrant:
    case ParcelType::kRefuse:
    case ParcelType::kWithdraw:
    case ParcelType::kCredit:
      return {0, 0};
  }
  return {};
}

}  // namespace

absl::Status CheckParcel(const Header& header, size_t payload) {
  const Limits limits = LimitsOf(header.type);
  const auto type = static_cast<int>(header.type);
  if (limits.most < 0 || header.version != kVersion || header.zero != 0) {
    return absl::UnavailableError(absl::StrCat("the peer broke the protocol: a parcel of type ",
                                               type, ", version ", int{header.version},
                                               " (known: ", int{kVersion}, ")"));
  }
  const int64_t carried = header.type == ParcelType::kAnnounce ? 0 : header.bytes;
  if (header.bytes < limits.least || header.bytes > limits.most ||
      static_cast<uint64_t>(carried) != payload) {
    return absl::UnavailableError(absl::StrCat("the peer broke the protocol: a parcel of type ",
                                               type, " of ", header.bytes, " bytes (", limits.least,
                                               " to ", limits.most, ") with ", payload));
  }
  return absl::OkStatus();
}

}  // namespace entrain::ucx
