// entrain-train --device cuda as a user starts it, compared with --device cpu with the same seed.
// Uses the fake driver and the fake cuBLAS, or the machine's GPUs if TEST_GPU=1 is set.
#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/on_gpu.h"
#include "tests/trainer/train_fixture.h"

namespace trainer_test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class CudaTrainTest : public TrainTest {
 protected:
  CudaTrainTest() { UseFakesUnlessReal(); }

  // Runs it on both devices. All records and the summary must be equal, apart from rounding.
  void RunOnBoth(const std::string& name, int ranks, const std::string& flags) const {
    Run(name, ranks, flags + " --device cpu");
    Run(name + "-cuda", ranks, flags + " --device cuda");
    const auto cpu = Log(name), cuda = Log(name + "-cuda");
    ASSERT_EQ(cuda.size(), cpu.size());
    for (const auto& [key, record] : cpu) {
      EXPECT_NEAR(cuda.at(key)["loss"].get<double>(), record["loss"].get<double>(), kRounding)
          << name << ", step " << key.first;
      EXPECT_EQ(cuda.at(key)["synced"], record["synced"]) << name << ", step " << key.first;
      EXPECT_EQ(cuda.at(key).contains("anchor_checksum"), record.contains("anchor_checksum"));
    }
    for (const char* field : {"val_loss", "final_train_loss"}) {
      EXPECT_NEAR(Summary(name + "-cuda")[field].get<double>(), Summary(name)[field].get<double>(),
                  kRounding)
          << name;
    }
    for (const char* field : {"steps", "tokens", "syncs"}) {
      EXPECT_EQ(Summary(name + "-cuda")[field], Summary(name)[field]) << name << " " << field;
    }
    // Ranks that share a GPU exchange a few more bytes.
    const double bytes = Summary(name)["bytes_sent_shard"];
    EXPECT_NEAR(Summary(name + "-cuda")["bytes_sent_shard"].get<double>(), bytes, 0.02 * bytes);
  }

  static constexpr double kRounding = 5e-3;  // worst of bf16, after a dozen steps
};

TEST_F(CudaTrainTest, SynchronousStepsOfAReplicaAreTheCpus) {
  RunOnBoth("ddp", 2, "--method ddp --shard-size 2 --steps 6 --eval-interval 3");
  RunOnBoth("bf16", 2,
            "--method ddp --shard-size 2 --steps 6 --precision bf16 --wsam "
            "coupled --optimizer agd "
            "--lr 5e-4 --gradient-accumulation-steps 2");
}

TEST_F(CudaTrainTest, EditIsTheCpusAndGoesOnBitForBit) {
  const std::string flags =
      "--method edit --steps 12 --local-sgd-sync-interval 3 "
      "--local-sgd-warmup-steps 2 --seed 5 ";
  RunOnBoth("edit", 2, flags);
  Run("straight", 2, flags + "--device cuda --save-every 6 --save-dir " + Path("saves"));
  EXPECT_EQ(Losses("straight"), Losses("edit-cuda"));
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(Path("saves"))) {
    first = first.empty() ? entry.path().string() : std::min(first, entry.path().string());
  }
  Run("resumed", 2, flags + "--device cuda --resume " + first);
  for (const char* field : {"val_loss", "anchor_checksum"}) {
    EXPECT_EQ(Summary("resumed")[field], Summary("straight")[field]) << field;
  }
}

TEST_F(CudaTrainTest, AccoIsTheCpusAndGoesOnBitForBit) {
  const std::string flags =
      "--method acco --steps 8 --max-microbatches 1 "
      "--warmup-rounds 2 --seed 5 ";
  RunOnBoth("acco", 2, flags);
  Run("straight", 2, flags + "--device cuda --save-every 4 --save-dir " + Path("saves"));
  Run("resumed", 2, flags + "--device cuda --resume " + Path("saves/step-00000004.ckpt"));
  EXPECT_EQ(Summary("resumed")["val_loss"], Summary("straight")["val_loss"]);
  EXPECT_EQ(LossesAfter(0, Log("resumed")), LossesAfter(4, Log("straight")));
}

TEST_F(CudaTrainTest, TheOtherMethodsAreTheCpus) {
  for (const std::string method : {"post-local-sgd", "diloco", "streaming-diloco", "co2"}) {
    RunOnBoth(method, 2, "--method " + method + " --steps 9 --local-sgd-sync-interval 3");
  }
  for (const std::string method : {"dpu", "wp"}) {
    RunOnBoth(method, 2, "--method " + method + " --steps 6 --max-microbatches 1");
  }
  Run("offload", 2,
      "--method edit --steps 9 --local-sgd-sync-interval 3 --device cuda --cpu-offload");
  Run("edit", 2, "--method edit --steps 9 --local-sgd-sync-interval 3 --device cuda");
  EXPECT_EQ(Losses("offload"), Losses("edit"));
  // When replicas meet depends on time.
  Run("a-edit", 2,
      "--method a-edit --steps 40 --local-sgd-sync-time 0.05 --min-total-global-steps 4 --lr 0.01 "
      "--device cuda");
  EXPECT_GT(Summary("a-edit")["syncs"], 0);
  EXPECT_LT(Summary("a-edit")["val_loss"], Summary("a-edit")["unigram_entropy"]);
}

TEST_F(CudaTrainTest, DigitsInBf16WithSharpnessAwareStepsAreTheCpus) {
  {
    std::ofstream file(Path("digits"));
    uint32_t state = 1;
    for (int image = 0; image < 300; ++image) {
      const int digit = image % 10;
      for (int pixel = 0; pixel < 64; ++pixel) {
        state = state * 1664525u + 1013904223u;
        file << (pixel % 10 == digit ? 12 : (state >> 16) % 6) << ' ';
      }
      file << digit << '\n';
    }
  }
  const auto run = [&](const std::string& device) {
    const Outcome outcome =
        Shell(Launch(2) + "--task digits --layers 2 --data " + Path("digits") +
              " --method zero1 --steps 30 --batch-size 16 --lr 0.01 --precision bf16 "
              "--wsam coupled --sharpness-rho 0.05 --summary " +
              Path(device + ".json") + " --device " + device);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Summary(device);
  };
  const json cpu = run("cpu"), cuda = run("cuda");
  EXPECT_GT(cuda["val_accuracy"], 0.9);
  EXPECT_NEAR(cuda["val_loss"].get<double>(), cpu["val_loss"].get<double>(), kRounding);
  const double rise = cpu["sharpness"][0];
  EXPECT_GT(rise, 0.0);
  EXPECT_NEAR(cuda["sharpness"][0].get<double>(), rise, 0.05 * rise);
}

TEST_F(CudaTrainTest, WhatIsMissingIsSaidOnceByOneRank) {
  const auto once = [&](const std::string& settings, const std::string& flags,
                        const std::string& line) {
    const Outcome outcome =
        Shell("env " + settings + " " + Launch(2) + "--data " + Path("text") + " " + flags);
    EXPECT_NE(outcome.code, 0) << flags;
    EXPECT_EQ(Count(outcome.output, line), 1) << outcome.output;
    EXPECT_EQ(Count(outcome.output, "entrain-train: "), 1) << outcome.output;
  };
  once("ENTRAIN_CUDA_LIBRARY=/nowhere/libcuda.so", "--device cuda", "no CUDA driver here");
  once("TRAINER_CUBLAS_LIBRARY=/nowhere/libcublas.so", "--device cuda", "no cuBLAS here");
  once("A=1", "--device cuda:999", "--device cuda:999 is none of the ");
  once("A=1", "--device gpu", "'gpu' is not cpu, cuda or cuda:N");
}

TEST_F(CudaTrainTest, AnErrorOfTheGpuEndsTheRunAndIsNamed) {
  if (OnRealGpu()) {
    GTEST_SKIP() << "asks the fake driver for what no other gives";
  }
  for (const std::string method : {"ddp", "acco"}) {
    const Outcome outcome =
        Shell("FAKE_CUDA_FAIL=cuLaunchKernel:800:700 " + Launch(2) + "--data " + Path("text") +
              " --hidden-size 32 --layers 2 --steps 1000 --device cuda --method " + method);
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    // The launch may be one of the library, if the library has its own thread.
    EXPECT_THAT(outcome.output,
                AnyOf(HasSubstr("entrain-train: --device cuda: trainer_"),
                      HasSubstr("entrain-train: entrain_acco_install: acco: round ")));
    EXPECT_THAT(outcome.output, HasSubstr(": CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory"));
  }
}

}  // namespace
}  // namespace trainer_test
