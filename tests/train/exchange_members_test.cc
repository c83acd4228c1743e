// The members of exchanges without communicators. With them: recovery_test, join_test, loss_test.
#include "lib/train/edit/exchange_members.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using testing::ElementsAre;

TEST(ExchangeMembers, AReplicaOfOneRankIsAlone) {
  ExchangeMembers members(ExchangeGroups(), 0);
  EXPECT_EQ(members.sync(), nullptr);
  EXPECT_EQ(members.model(), nullptr);
  EXPECT_EQ(members.me(), 0);
  EXPECT_EQ(members.most(), 1);
  EXPECT_THAT(members.replicas(), ElementsAre(0));
  EXPECT_EQ(members.bytes_sent().sync, 0u);
  members.SetNumbers(3, 8);
  EXPECT_EQ(members.me(), 3);
  EXPECT_EQ(members.most(), 8);
  members.Replace(nullptr, nullptr, {3});
  EXPECT_THAT(members.replicas(), ElementsAre(3));
  EXPECT_EQ(members.me(), 3);
  EXPECT_EQ(members.LeaveTogether(0, absl::DataLossError("differs")).message(), "differs");
}

TEST(ExchangeMembers, TheTimeLimitOfACallIsTheUsualOneAndTheExtraTime) {
  const ExchangeMembers members(ExchangeGroups(), 5 * kSecond);
  EXPECT_EQ(members.Options(7).timeout_ns, 5 * kSecond);
  EXPECT_EQ(members.Options(7).user_tag, 7);
  EXPECT_EQ(members.Options(7, 2 * kSecond).timeout_ns, 7 * kSecond);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(members.Options(7, kMost - kSecond).timeout_ns, kMost) << "no overflow";
  EXPECT_EQ(ExchangeMembers(ExchangeGroups(), 0).Options(7).timeout_ns, 0);
}

}  // namespace
}  // namespace entrain
