#include "lib/train/acco/microbatch_quota.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

ChannelOptions Between(int64_t least, int64_t most) {
  ChannelOptions options;
  options.min_microbatches = least;
  options.max_microbatches = most;
  return options;
}

TEST(MicrobatchQuota, ARoundTakesAtLeastAndAtMost) {
  MicrobatchQuota quota(Between(2, 3));
  EXPECT_FALSE(quota.enough());
  EXPECT_EQ(quota.Add(1, 0), absl::OkStatus());
  EXPECT_EQ(quota.CheckEnough().message(),
            "acco: install: 1 of at least 2 micro-batches of this round have been added");
  EXPECT_EQ(quota.Add(1, 0), absl::OkStatus());
  EXPECT_EQ(quota.CheckEnough(), absl::OkStatus());
  EXPECT_TRUE(quota.enough());
  EXPECT_FALSE(quota.full());
  EXPECT_EQ(quota.Add(2, 0).message(),
            "acco: microbatches: 2 more after 2 would be above 3 of this round");
  EXPECT_EQ(quota.added(), 2);
  EXPECT_EQ(quota.Add(1, 0), absl::OkStatus());
  EXPECT_TRUE(quota.full());
  quota.EndRound();
  EXPECT_EQ(quota.rounds(), 1);
  EXPECT_EQ(quota.added(), 0);
  EXPECT_FALSE(quota.full());
}

TEST(MicrobatchQuota, WithoutALimitARoundIsNeverFull) {
  MicrobatchQuota quota(Between(1, 0));
  EXPECT_EQ(quota.Add(1'000'000, 5), absl::OkStatus());
  EXPECT_FALSE(quota.full());
}

TEST(MicrobatchQuota, ScriptedRoundsTakeExactlySoManyAndEnd) {
  ChannelOptions options;
  options.scripted = {2, 1};
  MicrobatchQuota quota(options);
  EXPECT_EQ(quota.Add(3, 0).message(),
            "acco: microbatches: 3 more after 0 would be above 2 of this round");
  EXPECT_EQ(quota.Add(2, 0), absl::OkStatus());
  EXPECT_TRUE(quota.enough() && quota.full());
  quota.EndRound();
  EXPECT_EQ(quota.CheckRound(), absl::OkStatus());
  EXPECT_EQ(quota.Add(1, 0), absl::OkStatus());
  EXPECT_TRUE(quota.enough() && quota.full());
  quota.EndRound();
  EXPECT_EQ(quota.CheckRound().message(), "acco: scripted_counts has 2 rounds, and all are over");
}

TEST(MicrobatchQuota, WrongCountsAreRefused) {
  MicrobatchQuota quota(Between(1, 0));
  EXPECT_EQ(quota.Add(0, 5).message(), "acco: microbatches: 0 is less than 1");
  EXPECT_EQ(quota.Add(1, -1).message(), "acco: tokens: -1 is negative");
  EXPECT_EQ(quota.added(), 0);
}

}  // namespace
}  // namespace entrain
