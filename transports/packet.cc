#include "transports/packet.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

constexpr uint8_t kTcpOnly = static_cast<uint8_t>(PacketUser::kTcp);
constexpr uint8_t kUcxOnly = static_cast<uint8_t>(PacketUser::kUcx);
constexpr uint8_t kBoth = kTcpOnly | kUcxOnly;
constexpr int64_t kPayload = -1;  // means: the transport's largest payload

struct Rule {
  PacketType type;
  uint8_t users;
  int64_t most;  // largest `bytes`
};
constexpr Rule kRules[] = {
    {PacketType::kEager, kBoth, kPayload},
    {PacketType::kRts, kBoth, kMaxMessageBytes},
    {PacketType::kCts, kBoth, 0},
    {PacketType::kRefuse, kBoth, 0},
    {PacketType::kData, kBoth, kPayload},
    {PacketType::kWithdraw, kBoth, 0},
    {PacketType::kControl, kBoth, kMaxControlBytes},
    {PacketType::kCredit, kBoth, 0},
    {PacketType::kClose, kBoth, kMaxControlBytes},
    {PacketType::kWant, kTcpOnly, 0},
    {PacketType::kStands, kTcpOnly, 0},
    {PacketType::kHello, kUcxOnly, kPayload},
    {PacketType::kProof, kUcxOnly, kPayload},
    {PacketType::kAhead, kTcpOnly, kPayload},
    {PacketType::kLend, kTcpOnly, 0},
};

const Rule* Find(PacketType type, PacketUser user) {
  const Rule* const rule =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& each) {
        return each.type == type && (each.users & static_cast<uint8_t>(user)) != 0;
      });
  return rule == std::end(kRules) ? nullptr : rule;
}

}  // namespace

absl::Status BreachOfProtocol(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", what));
}

absl::Status CheckPacket(const PacketHeader& header, PacketUser user, int64_t most) {
  const Rule* const rule = Find(header.type, user);
  const int type = static_cast<int>(header.type);
  if (rule == nullptr || header.version != kPacketVersion) {
    return BreachOfProtocol(absl::StrCat("a packet of type ", type, ", version ",
                                         int{header.version}, " (known: ", int{kPacketVersion},
                                         ")"));
  }
  const int64_t limit = rule->most == kPayload ? most : rule->most;
  if (header.bytes < 0 || header.bytes > limit) {
    return BreachOfProtocol(absl::StrCat("a packet of type ", type, " with ", header.bytes,
                                         " bytes (at most ", limit, ")"));
  }
  return absl::OkStatus();
}

bool HasPayload(PacketType type) {
  return type != PacketType::kRts;
}

}  // namespace entrain
