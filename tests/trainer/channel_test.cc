// entrain-train with a gradient channel (zero1, acco, dpu, wp), as a user starts it.
#include <numeric>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/train_fixture.h"

namespace trainer_test {
namespace {

constexpr int kMicroBatch = 4 * 32;  // tokens

class ChannelTest : public TrainTest {
 protected:
  std::vector<int64_t> MicroBatches(const std::string& name) const {
    return Summary(name)["replica_microbatches"].get<std::vector<int64_t>>();
  }
};

// Both are synchronous, with the same batches and the same optimizer. Only the place of its state
// differs.
TEST_F(ChannelTest, Zero1IsDdp) {
  const std::string flags = "--steps 20 --lr 0.01 --gradient-accumulation-steps 2 ";
  Run("ddp", 3, flags + "--method ddp");
  Run("zero1", 3, flags + "--method zero1");
  const auto ddp = Log("ddp");
  ASSERT_EQ(ddp.size(), 60u);
  for (const auto& [key, record] : Log("zero1")) {
    EXPECT_NEAR(record["loss"].get<double>(), ddp.at(key)["loss"].get<double>(), 1e-3) << key.first;
    EXPECT_EQ(record["lr"], ddp.at(key)["lr"]) << key.first;
    EXPECT_EQ(record["tokens"], ddp.at(key)["tokens"]) << key.first;
    EXPECT_EQ(record["microbatches"], 6);
  }
  EXPECT_NEAR(Summary("zero1")["val_loss"].get<double>(), Summary("ddp")["val_loss"].get<double>(),
              1e-3);
  EXPECT_EQ(Summary("zero1")["tokens"], Summary("ddp")["tokens"]);
}

TEST_F(ChannelTest, AllMethodsLearnAndARoundOfAsManyMicroBatchesRepeatsBitForBit) {
  for (const std::string method : {"acco", "dpu", "wp"}) {
    const std::string flags = "--method " + method + " --steps 60 --lr 0.01 --max-microbatches 1 ";
    Run("first", 3, flags);
    Run("second", 3, flags);
    EXPECT_EQ(Losses("first"), Losses("second")) << method;
    const json summary = Summary("first");
    EXPECT_EQ(summary["val_loss"], Summary("second")["val_loss"]) << method;
    EXPECT_LT(summary["val_loss"], 0.8 * summary["unigram_entropy"].get<double>()) << method;
    // acco takes two halves of a batch in two rounds.
    const int rounds = method == "acco" ? 2 : 1;
    EXPECT_EQ(summary["steps"], 60);
    EXPECT_EQ(summary["syncs"], 60 * rounds);
    EXPECT_EQ(summary["tokens"], 60 * rounds * 3 * kMicroBatch);
    ASSERT_EQ(Log("first").size(), 180u);
    for (const auto& [key, record] : Log("first")) {
      EXPECT_EQ(record["tokens"], key.first * rounds * 3 * kMicroBatch);
      EXPECT_EQ(record["microbatches"], rounds * 3);
      EXPECT_TRUE(record["synced"]);
    }
  }
}

// No rank waits for a slow rank as long as it has something to compute. Every micro-batch is
// committed, or is too late and counted as such.
TEST_F(ChannelTest, AFastRankMakesMoreMicroBatches) {
  Run("late", 3,
      "--method acco --steps 12 --step-ms 4 --straggler fixed --straggler-replica 1 --straggler-ms "
      "40");
  const json summary = Summary("late");
  const auto made = MicroBatches("late");
  ASSERT_EQ(made.size(), 3u);
  EXPECT_GT(made[0], made[1]);
  EXPECT_GT(made[2], made[1]);
  EXPECT_GE(made[1], 24);
  const int64_t committed =
      std::accumulate(made.begin(), made.end(), -summary["dropped_microbatches"].get<int64_t>());
  EXPECT_EQ(summary["tokens"], committed * kMicroBatch);
  EXPECT_GE(summary["wall_s"], 24 * 0.044);
  EXPECT_GT(summary["bytes_held"], 8 * summary["params"].get<int64_t>());
}

TEST_F(ChannelTest, TokensEndARunAndLowerItsRate) {
  Run("tokens", 2, "--method acco --tokens 20K --max-microbatches 3 --lr 0.01 --min-lr 0.001");
  const json summary = Summary("tokens");
  const auto log = Log("tokens");
  const json last = log.rbegin()->second, before = log.at({last["step"].get<int>() - 1, 0});
  EXPECT_EQ(last["tokens"], summary["tokens"]);
  EXPECT_GE(summary["tokens"], 20 * 1024);
  EXPECT_LT(before["tokens"], 20 * 1024);
  EXPECT_LT(last["lr"], 0.003);
  EXPECT_GT(log.begin()->second["lr"], 0.0);
}

TEST_F(ChannelTest, WarmUpRoundsAreSynchronous) {
  const std::string flags = "--steps 12 --lr 0.01 --max-microbatches 1 --warmup-rounds 12 ";
  Run("zero1", 2, "--method zero1 --steps 12 --lr 0.01");
  Run("dpu", 2, "--method dpu " + flags);
  EXPECT_EQ(Losses("dpu"), Losses("zero1"));
}

TEST_F(ChannelTest, OptimizersSharpnessAndBf16) {
  for (const auto& [name, flags] :
       {std::pair<std::string, std::string>{
            "agd", "--optimizer agd --agd-delta 1e-6 --lr 2e-3 --precision bf16"},
        {"sgd", "--optimizer sgd --momentum 0.9 --lr 0.2"},
        {"wsam", "--wsam coupled --wsam-gamma 0.6 --lr 0.01"}}) {
    Run(name, 2, "--method acco --steps 60 --max-microbatches 1 " + flags);
    EXPECT_LT(Summary(name)["val_loss"].get<double>(),
              0.9 * Summary(name)["unigram_entropy"].get<double>())
        << name;
  }
  for (const auto& [key, record] : Log("agd")) {
    const double share = record["adaptive_share"];
    EXPECT_TRUE(share >= 0.0 && share <= 1.0) << share;
  }
  // Half of the bytes that f32 would send.
  EXPECT_NEAR(Summary("agd")["bytes_sent_sync"].get<double>(),
              0.5 * Summary("sgd")["bytes_sent_sync"].get<double>(),
              0.05 * Summary("sgd")["bytes_sent_sync"].get<double>());
}

// With radius 0 both gradients are equal. With another radius they are not.
TEST_F(ChannelTest, SharpnessAwareStepsAtTheirEnds) {
  const std::string flags = "--method zero1 --steps 10 ";
  Run("plain", 2, flags);
  Run("still", 2, flags + "--wsam coupled --wsam-rho 0");
  Run("wsam", 2, flags + "--wsam coupled");
  EXPECT_EQ(Losses("still"), Losses("plain"));
  EXPECT_NE(Losses("wsam"), Losses("plain"));
  // If nothing is delayed or clipped, the step is that of ddp.
  Run("ddp", 2, "--method ddp --steps 10 --grad-clip 0 --wsam coupled");
  Run("zero1", 2, "--method zero1 --steps 10 --grad-clip 0 --wsam coupled");
  const auto ddp = Losses("ddp"), zero1 = Losses("zero1");
  for (size_t i = 0; i < ddp.size(); ++i) {
    EXPECT_NEAR(zero1[i], ddp[i], 1e-3) << i;
  }
}

TEST_F(ChannelTest, ExactResumeBitEqual) {
  for (const auto& [method, more] :
       {std::pair<std::string, std::string>{"acco", "--optimizer agd --agd-delta 1e-6"},
        {"dpu", "--optimizer sgd --momentum 0.9 --no-full-state-dict --no-rank0-only"},
        {"wp", "--precision bf16"},
        {"zero1", ""}}) {
    std::string flags = "--method " + method + " --seed 5 " + more + " ";
    flags += method == "zero1" ? "" : "--max-microbatches 1 ";
    Run("straight", 3, flags + "--steps 24 --save-every 10 --save-dir " + Path("saves"));
    EXPECT_TRUE(std::filesystem::exists(Path("saves/step-00000024.ckpt"))) << method;
    Run("resumed", 3, flags + "--steps 24 --resume " + Path("saves/step-00000010.ckpt"));
    EXPECT_EQ(LossesAfter(0, Log("resumed")), LossesAfter(10, Log("straight"))) << method;
    EXPECT_EQ(Log("resumed").size(), 42u) << method;
    for (const auto& [key, record] : Log("resumed")) {
      const json straight = Log("straight").at(key);
      for (const char* field : {"lr", "tokens", "microbatches"}) {
        EXPECT_EQ(record[field], straight[field]) << method << " " << field << " " << key.first;
      }
    }
    EXPECT_EQ(Summary("resumed")["val_loss"], Summary("straight")["val_loss"]) << method;
    // A checkpoint at the end of a run can be continued as well, with more steps.
    Run("more", 3, flags + "--steps 30 --resume " + Path("saves/step-00000024.ckpt"));
    EXPECT_EQ(Log("more").begin()->first.first, 25) << method;
    EXPECT_EQ(Log("more").rbegin()->first.first, 30) << method;
    std::filesystem::remove_all(Path("saves"));
  }
}

TEST_F(ChannelTest, PortableResumeOnOtherRanksByAnotherMethod) {
  const std::string flags = "--lr 0.01 --checkpoint-kind portable --steps 60 ";
  Run("acco", 3, flags + "--method acco --save-every 40 --save-dir " + Path("saves"));
  for (const auto& [name, ranks] : {std::pair<std::string, int>{"zero1", 2}, {"dpu", 1}}) {
    Run(name, ranks, flags + "--method " + name + " --resume " + Path("saves/step-00000040.ckpt"));
    const auto log = Log(name);
    EXPECT_EQ(log.begin()->first.first, 41) << name;
    EXPECT_LT(log.begin()->second["loss"], 0.9 * Summary(name)["unigram_entropy"].get<double>());
  }
}

// An exact checkpoint is loaded as a portable one on other ranks: half batches and rounds that were
// not taken are dropped. --resume latest does so by itself.
TEST_F(ChannelTest, ExactCheckpointsResumeOnOtherRanks) {
  const std::string flags = "--lr 0.01 --method acco --save-dir " + Path("saves");
  Run("acco", 2, flags + " --steps 40");
  const Outcome latest = Run("latest", 3, flags + " --steps 60 --resume latest");
  EXPECT_THAT(latest.output,
              testing::HasSubstr("step-00000040.ckpt: loaded as a portable checkpoint"));
  EXPECT_EQ(Log("latest").begin()->first.first, 41);
  Run("alone", 1,
      "--lr 0.01 --method zero1 --steps 60 --checkpoint-kind portable --resume " +
          Path("saves/step-00000040.ckpt"));
  EXPECT_EQ(Log("alone").begin()->first.first, 41);
}

TEST_F(ChannelTest, WhatIsWrongIsSaidOnceByOneRank) {
  Run("acco", 2, "--method acco --steps 4 --save-dir " + Path("saves"));
  const auto once = [&](const std::string& flags, const std::string& line) {
    const Outcome outcome = Shell(Launch(2) + "--data " + Path("text") +
                                  " --hidden-size 32 --layers 2 --heads 2 " + flags);
    EXPECT_NE(outcome.code, 0) << flags;
    EXPECT_EQ(Count(outcome.output, line), 1) << outcome.output;
    EXPECT_EQ(Count(outcome.output, "entrain-train: "), 1) << outcome.output;
  };
  const std::string resume = " --resume " + Path("saves/step-00000004.ckpt");
  once("--method acco --steps 3" + resume, "is of step 4, and the run has 3");
  once("--method dpu" + resume, "the checkpoint is of method 0, and here it is 1");
  once("--method acco --optimizer sgd" + resume, "optim/");
  once("--method acco --resume " + Path("absent"), "absent.ckpt: cannot open it");
  once("--method acco --straggler fixed --straggler-ms 1 --straggler-replica 2",
       "--straggler-replica 2 is none of the 2 replicas");
}

}  // namespace
}  // namespace trainer_test
