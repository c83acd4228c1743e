// entrain-train --task digits as a user starts it, on the file that examples/digits.py writes.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/shell.h"
#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;
using testing::HasSubstr;

class DigitsTrainTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = testing::TempDir() + "entrain_digits_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    const Outcome written = Shell("/usr/bin/python3 -B " ENTRAIN_DIGITS " " + Path("digits"));
    ASSERT_EQ(written.code, 0) << written.output;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(directory_); }

  static std::string Path(const std::string& name) { return directory_ + "/" + name; }

  static json Run(const std::string& name, int ranks, const std::string& flags) {
    const std::string summary = Path(name + ".json");
    const Outcome outcome =
        Shell("timeout 100 " ENTRAIN_RUN " -n " + std::to_string(ranks) +
              " -- " ENTRAIN_TRAIN " --task digits --layers 2 --data " + Path("digits") +
              " --summary " + summary + " --log " + Path(name + ".log") + " " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("nats per image"));
    std::ifstream file(summary);
    return json::parse(file);
  }

  inline static std::string directory_;
};

TEST_F(DigitsTrainTest, TheFileIsTheSameEachTimeAndHasAllImages) {
  const Outcome again =
      Shell("/usr/bin/python3 -B " ENTRAIN_DIGITS " " + Path("again") + " && cmp " +
            Path("digits") + " " + Path("again") + " && wc -l <" + Path("again"));
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(again.output, "1797\n");
  EXPECT_THAT(Shell("/usr/bin/python3 -B " ENTRAIN_DIGITS " /absent/digits").output,
              HasSubstr("cannot write '/absent/digits': No such file"));
}

TEST_F(DigitsTrainTest, AdamWTellsNineInTenImagesApart) {
  const json summary = Run("ddp", 2, "--method ddp --steps 200 --batch-size 16 --lr 0.01");
  EXPECT_EQ(summary["task"], "digits");
  EXPECT_EQ(summary["params"], 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10);
  EXPECT_EQ(summary["tokens"], 200 * 2 * 16);
  EXPECT_GT(summary["val_accuracy"], 0.9);
  EXPECT_LE(summary["val_accuracy"], 1.0);
  EXPECT_LT(summary["val_loss"], 0.4);
  EXPECT_NEAR(summary["unigram_entropy"], 2.3026, 1e-3);
}

// Validation uses every image once, however the images are divided. The number of correct images
// must be the same with ranks and batches that divide them unevenly.
TEST_F(DigitsTrainTest, EveryValidationImageCountsOnce) {
  const json whole = Run("whole", 1, "--method ddp --steps 20 --lr 0.01 --batch-size 48");
  const json parts =
      Run("parts", 3, "--method ddp --steps 20 --lr 0.01 --batch-size 16 --shard-size 3");
  for (const json& summary : {whole, parts}) {
    const double right = summary["val_accuracy"].get<double>() * 359;
    EXPECT_NEAR(right, std::round(right), 1e-6);
  }
}

TEST_F(DigitsTrainTest, ReplicasThatMeetNowAndThenAgree) {
  const json summary = Run("edit", 4,
                           "--method edit --shard-size 2 --steps 200 --batch-size 8 --lr 0.01 "
                           "--local-sgd-sync-interval 10 --local-sgd-warmup-steps 20");
  EXPECT_GT(summary["val_accuracy"], 0.9);
  EXPECT_GT(summary["syncs"], 10);
  EXPECT_TRUE(summary["anchor_checksum"].is_string());  // the program fails if replicas differ
}

TEST_F(DigitsTrainTest, SharpnessAwareStepsOfAnyOptimizerLearnToo) {
  EXPECT_GT(Run("sgd", 2,
                "--method ddp --steps 200 --batch-size 16 --optimizer sgd --momentum 0.9 "
                "--lr 0.1 --wsam decoupled --wsam-gamma 0.5")["val_accuracy"],
            0.9);
  EXPECT_GT(Run("agd", 2,
                "--method ddp --steps 200 --batch-size 16 --optimizer agd --lr 0.001 "
                "--wsam coupled --wsam-perturbation global")["val_accuracy"],
            0.9);
}

// A very short step hardly changes the starting parameters. So the figures depend only on the
// parameters and the data, for any number of ranks.
TEST_F(DigitsTrainTest, SharpnessIsOfTheParametersWhateverTheRanks) {
  const std::string flags =
      "--steps 1 --lr 1e-20 --weight-decay 0 --batch-size 16 --sharpness-rho 0.001,0.1 --method ";
  const json alone = Run("alone", 1, flags + "ddp")["sharpness"];
  ASSERT_EQ(alone.size(), 2u);
  EXPECT_GT(alone[0], 0.0);
  EXPECT_GT(alone[1], 99 * alone[0].get<double>());
  const json shared = Run("shared", 4, flags + "edit --shard-size 2")["sharpness"];
  EXPECT_NEAR(alone[1], shared[1], 1e-4 * alone[1].get<double>());
  EXPECT_TRUE(Run("none", 1, "--steps 1 --method ddp")["sharpness"].empty());
}

TEST_F(DigitsTrainTest, AFileOfSomethingElseIsRefusedInOneLine) {
  std::ofstream(Path("text")) << "no images\n";
  const Outcome outcome = Shell("timeout 100 " ENTRAIN_RUN " -n 2 -- " ENTRAIN_TRAIN
                                " --method ddp --task digits --data " +
                                Path("text"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("text': line 1 has 'no' as its pixel 1"));
}

}  // namespace
