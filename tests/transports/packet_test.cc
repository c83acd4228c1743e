// The table of packet types: the side that sends each type, and the bytes that it may count.
#include "transports/packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = 1000;

bool Fits(PacketType type, PacketUser user, int64_t bytes) {
  return CheckPacket({.type = type, .bytes = bytes}, user, kMost).ok();
}

TEST(Packet, EachTypeCountsAtMostItsOwnLimit) {
  struct Row {
    PacketType type;
    int64_t most;
    bool tcp, ucx;
  };
  const Row rows[] = {
      {PacketType::kEager, kMost, true, true},
      {PacketType::kRts, kMaxMessageBytes, true, true},
      {PacketType::kCts, 0, true, true},
      {PacketType::kRefuse, 0, true, true},
      {PacketType::kData, kMost, true, true},
      {PacketType::kWithdraw, 0, true, true},
      {PacketType::kControl, kMaxControlBytes, true, true},
      {PacketType::kCredit, 0, true, true},
      {PacketType::kClose, kMaxControlBytes, true, true},
      {PacketType::kWant, 0, true, false},
      {PacketType::kStands, 0, true, false},
      {PacketType::kHello, kMost, false, true},
      {PacketType::kProof, kMost, false, true},
      {PacketType::kAhead, kMost, true, false},
      {PacketType::kLend, 0, true, false},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(static_cast<int>(row.type));
    for (const auto& [user, sends] :
         {std::pair(PacketUser::kTcp, row.tcp), std::pair(PacketUser::kUcx, row.ucx)}) {
      EXPECT_EQ(Fits(row.type, user, row.most), sends);
      EXPECT_EQ(Fits(row.type, user, 0), sends);
      EXPECT_FALSE(Fits(row.type, user, row.most + 1));
      EXPECT_FALSE(Fits(row.type, user, -1));
    }
  }
}

TEST(Packet, OnlyTheRtsOfAMessageCountsBytesThatDoNotFollow) {
  for (int type = 1; type <= 13; ++type) {
    EXPECT_EQ(HasPayload(static_cast<PacketType>(type)), type != 2) << type;
  }
}

TEST(Packet, UnknownTypesAndVersionsAreNamed) {
  const auto why = [](const PacketHeader& header) {
    return std::string(CheckPacket(header, PacketUser::kTcp, kMost).message());
  };
  for (const int type : {0, 16, 255}) {
    EXPECT_THAT(why({.type = static_cast<PacketType>(type)}),
                HasSubstr("a packet of type " + std::to_string(type) + ", version 3"));
  }
  EXPECT_THAT(why({.version = 1}), HasSubstr("version 1 (known: 3)"));
  EXPECT_THAT(why({.type = PacketType::kCts, .bytes = 5}), HasSubstr("with 5 bytes (at most 0)"));
}

}  // namespace
}  // namespace entrain
