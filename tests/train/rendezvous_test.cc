#include "lib/train/edit/rendezvous.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using testing::HasSubstr;

TEST(Rendezvous, RoundsAndAnchorsThatDifferAreNamed) {
  std::vector<Standing> all(3);
  EXPECT_EQ(CheckRounds(all, {0, 1, 4}), absl::OkStatus());
  EXPECT_EQ(CheckAnchors(all, {0, 1, 4}), absl::OkStatus());
  all[2].round = 7;
  EXPECT_THAT(std::string(CheckRounds(all, {0, 1, 4}).message()),
              HasSubstr("replica 0 is at its rendezvous 1, replica 4 at its rendezvous 8"));
  all[1].anchor_checksum = 0xabc;
  EXPECT_THAT(std::string(CheckAnchors(all, {0, 1, 4}).message()),
              HasSubstr("checksum 0000000000000000 on replica 0, 0000000000000abc on replica 1"));
}

TEST(Rendezvous, ExchangesWhenEnoughStepsWereMadeAllTogether) {
  std::vector<Standing> all(2);
  all[0].steps_since = 3;
  all[1].steps_since = 6;
  EXPECT_FALSE(Exchanges(all, 10));
  EXPECT_TRUE(Exchanges(all, 9));
}

TEST(Rendezvous, InsistingOrAllLeavingExchangesWhateverThereIs) {
  std::vector<Standing> all(2);
  all[0].flags = kInsist;
  EXPECT_FALSE(Exchanges(all, 1)) << "there is nothing";
  all[1].steps_since = 1;
  EXPECT_TRUE(Exchanges(all, 10));
  all[0].flags = kLeaving;
  EXPECT_FALSE(Exchanges(all, 10));
  EXPECT_FALSE(AllLeave(all));
  all[1].flags = kLeaving | kWantStop;
  EXPECT_TRUE(AllLeave(all));
  EXPECT_TRUE(Exchanges(all, 10));
}

TEST(Rendezvous, TokensCountWhereAllThatMadeStepsGiveThem) {
  std::vector<Standing> all(3);
  all[0] = {.steps_since = 4, .tokens_since = 400, .flags = kCounted};
  all[1] = {.steps_since = 2, .tokens_since = 900, .flags = kCounted};
  EXPECT_EQ(Trained(all, Amount::kTokens), (std::vector<double>{400, 900, 0}));
  all[1].tokens_since = 0;
  EXPECT_EQ(Trained(all, Amount::kTokens), (std::vector<double>{400, 0, 0}))
      << "it has counted none";
  all[1].flags = 0;
  EXPECT_EQ(Trained(all, Amount::kTokens), (std::vector<double>{4, 2, 0})) << "it has not counted";
  all[1].flags = kCounted;
  all[0].tokens_since = 0;
  EXPECT_EQ(Trained(all, Amount::kTokens), (std::vector<double>{4, 2, 0})) << "there were none";
}

TEST(Rendezvous, ANewcomerGrowsBesideOtherFlags) {
  const uint64_t others = kWantStop | kApplied | (uint64_t{3} << kLateShift);
  for (const uint64_t counted : {uint64_t{1}, uint64_t{4}, uint64_t{1000}}) {
    const Standing one = {.flags = others | (counted << kNewShift)};
    EXPECT_EQ(Grown(one, 1000), static_cast<double>(counted) / 1001);
    EXPECT_EQ(one.flags >> kLateShift, 3);
  }
  EXPECT_EQ(Grown({.flags = others}, 1000), 1);
}

// c_tokens c_tokens / c_steps, arXiv 2604.21428.
TEST(Rendezvous, WithClocksOfTheirOwnReplicasCountByTokensTimesTokensPerStep) {
  std::vector<Standing> all(3);
  all[0] = {.steps_since = 4, .tokens_since = 400, .flags = kCounted};
  all[1] = {.steps_since = 2, .tokens_since = 400, .flags = kCounted};
  EXPECT_EQ(Trained(all, Amount::kTimesRate), (std::vector<double>{40000, 80000, 0}));
  all[1].flags = 0;
  EXPECT_EQ(Trained(all, Amount::kTimesRate), (std::vector<double>{4, 2, 0})) << "no tokens: steps";
}

TEST(Rendezvous, AsPublishedAllStepsCountFromTheBeginning) {
  std::vector<Standing> all(2);
  all[0] = {.steps = 30, .steps_since = 4, .tokens_since = 400, .flags = kCounted};
  all[1] = {.steps = 10, .steps_since = 8, .tokens_since = 100, .flags = kCounted};
  EXPECT_EQ(Trained(all, Amount::kPublished), (std::vector<double>{30, 10}));
}

}  // namespace
}  // namespace entrain
