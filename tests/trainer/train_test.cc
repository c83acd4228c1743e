// entrain-train as a user starts it: small runs on 4 ranks, and the relations between their logs
// and summaries.
#include <cmath>
#include <filesystem>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/train_fixture.h"

namespace trainer_test {
namespace {

using testing::HasSubstr;

TEST_F(TrainTest, EditLearnsAndKeepsTheAnchorsOfAllReplicasAlike) {
  Run("edit", 4,
      "--method edit --shard-size 2 --steps 70 --local_sgd_sync_interval 8 "
      "--local-sgd-warmup-steps 6 --lr 0.01");
  const auto log = Log("edit");
  ASSERT_EQ(log.size(), 140u);
  std::set<int> synced;
  for (const auto& [key, record] : log) {
    if (record["synced"]) {
      synced.insert(key.first);
      ASSERT_TRUE(record.contains("anchor_checksum"));
      EXPECT_EQ(record["anchor_checksum"], log.at({key.first, 0})["anchor_checksum"]) << key.first;
    }
  }
  // Steps are counted from 1. An exchange runs with the forward pass after 6 + 8 k steps.
  for (int step = 15; step <= 70; step += 8) {
    EXPECT_TRUE(synced.count(step)) << step;
  }
  const json summary = Summary("edit");
  EXPECT_EQ(summary["steps"], 70);
  EXPECT_EQ(summary["ranks"], 4);
  EXPECT_EQ(summary["tokens"], 70 * 4 * 4 * 32);
  EXPECT_GT(summary["bytes_sent_sync"], 0.0);
  EXPECT_GT(summary["bytes_sent_init"], 0.0);
  EXPECT_TRUE(summary["anchor_checksum"].is_string());
  EXPECT_LT(summary["val_loss"], 0.6 * summary["unigram_entropy"].get<double>());
}

TEST_F(TrainTest, RepeatsBitForBit) {
  const std::string flags =
      "--method edit --shard-size 2 --steps 20 --local-sgd-sync-interval 4 --seed 5";
  Run("first", 4, flags);
  Run("second", 4, flags);
  EXPECT_EQ(Losses("first"), Losses("second"));
  EXPECT_EQ(Summary("first")["val_loss"], Summary("second")["val_loss"]);
  EXPECT_EQ(Summary("first")["anchor_checksum"], Summary("second")["anchor_checksum"]);
}

// With plain SGD, averaging parameters after every step equals averaging gradients.
TEST_F(TrainTest, EditWithAnExchangeEachStepIsSynchronousSgd) {
  const std::string flags =
      "--shard-size 2 --steps 24 --optimizer sgd --lr 0.3 --grad-clip 0 --weight-decay 0 ";
  Run("ddp", 4, flags + "--method ddp");
  Run("edit", 4,
      flags +
          "--method edit --local-sgd-sync-interval 1 --outer-lr 1 --outer-momentum 0 "
          "--no-pseudo-gradnorm-reduce --clip-pseudo-grad 0");
  const auto ddp = Log("ddp");
  for (const auto& [key, record] : Log("edit")) {
    EXPECT_NEAR(record["loss"].get<double>(), ddp.at(key)["loss"].get<double>(), 1e-4) << key.first;
  }
  EXPECT_NEAR(Summary("edit")["val_loss"].get<double>(), Summary("ddp")["val_loss"].get<double>(),
              1e-4);
}

// The ascent uses each rank's own gradient, or the mean of all, for any sharding of the model.
TEST_F(TrainTest, ShardingDoesNotChangeSharpnessAwareSteps) {
  for (const std::string way : {"local", "global"}) {
    const std::string flags =
        "--method ddp --steps 10 --optimizer sgd --momentum 0.9 --lr 0.1 "
        "--wsam decoupled --wsam-gamma 0.7 --wsam-rho 0.2 "
        "--gradient-accumulation-steps 2 --wsam-perturbation " +
        way + " ";
    Run(way + "1", 4, flags + "--shard-size 1");
    Run(way + "4", 4, flags + "--shard-size 4");
    EXPECT_NEAR(Summary(way + "1")["val_loss"].get<double>(),
                Summary(way + "4")["val_loss"].get<double>(), 1e-4);
  }
  EXPECT_NE(Summary("local1")["val_loss"], Summary("global1")["val_loss"]);
}

// With one rank, its own gradient is the mean. With radius 0, only the first gradient counts.
TEST_F(TrainTest, SharpnessAwareStepsAtTheirEnds) {
  const std::string flags = "--method ddp --steps 10 --optimizer adamw ";
  Run("local", 1, flags + "--wsam coupled --wsam-adaptive");
  Run("global", 1, flags + "--wsam coupled --wsam-adaptive --wsam-perturbation global");
  EXPECT_NEAR(Losses("local").back(), Losses("global").back(), 1e-5);
  Run("still", 1, flags + "--grad-clip 0 --wsam decoupled --wsam-rho 0");
  Run("plain", 1, flags + "--grad-clip 0");
  EXPECT_EQ(Losses("still"), Losses("plain"));
  EXPECT_NE(Losses("local"), Losses("plain"));
}

TEST_F(TrainTest, AgdLearnsAloneAndWithSharpnessAwareStepsInBf16) {
  const std::string flags =
      "--method edit --shard-size 2 --steps 60 --local-sgd-sync-interval 8 --optimizer agd "
      "--agd-delta 1e-6 --lr 5e-4 --seed 3 ";
  Run("agd", 4, flags);
  Run("wsam", 4, flags + "--wsam coupled --wsam-gamma 0.6 --precision bf16");
  for (const char* name : {"agd", "wsam"}) {
    EXPECT_LT(Summary(name)["val_loss"].get<double>(),
              0.8 * Summary(name)["unigram_entropy"].get<double>());
    double shares = 0.0;
    for (const auto& [key, record] : Log(name)) {
      const double share = record["adaptive_share"];
      EXPECT_TRUE(share >= 0.0 && share <= 1.0) << share;
      shares += share;
    }
    EXPECT_GT(shares, 0.0);
  }
}

// The same four batches per step, for any sharding of the model.
TEST_F(TrainTest, ShardingDoesNotChangeTheMathematics) {
  const std::string flags = "--method ddp --steps 12 ";
  Run("m1", 4, flags + "--shard-size 1");
  Run("m4", 4, flags + "--shard-size 4 --shard-prefetch 2");
  EXPECT_NEAR(Summary("m1")["val_loss"].get<double>(), Summary("m4")["val_loss"].get<double>(),
              2e-3);
  EXPECT_EQ(Summary("m1")["bytes_sent_shard"], 0.0);
  EXPECT_EQ(Summary("m4")["bytes_sent_sync"], 0.0);
}

TEST_F(TrainTest, AccumulatedMicroBatchesAreOneStep) {
  Run("two", 2, "--method edit --shard-size 2 --steps 10 --gradient-accumulation-steps 2");
  EXPECT_EQ(Log("two").size(), 10u);
  EXPECT_EQ(Summary("two")["tokens"], 10 * 2 * 2 * 4 * 32);
}

TEST_F(TrainTest, Bf16LearnsLikeF32AndSendsHalf) {
  const std::string flags = "--method ddp --shard-size 2 --steps 40 --lr 0.01 ";
  Run("f32", 4, flags);
  Run("bf16", 4, flags + "--precision bf16");
  const double f32 = Summary("f32")["val_loss"];
  EXPECT_NEAR(Summary("bf16")["val_loss"].get<double>(), f32, 0.05 * f32);
  EXPECT_LT(Summary("bf16")["bytes_sent_shard"].get<double>(),
            0.6 * Summary("f32")["bytes_sent_shard"].get<double>());
}

TEST_F(TrainTest, ExactResumeBitEqual) {
  const std::string flags =
      "--method edit --shard-size 2 --steps 24 --local-sgd-sync-interval 4 --seed 5 ";
  Run("without", 4, flags);
  for (const std::string kind : {"", "--no-full-state-dict --no-rank0-only "}) {
    const std::string saves = " --save-dir " + Path("saves") + " --save-every 12 " + kind;
    Run("straight", 4, flags + saves);
    EXPECT_EQ(Losses("straight"), Losses("without"));
    EXPECT_TRUE(std::filesystem::exists(Path("saves/step-00000024.ckpt")));
    Run("resumed", 4, flags + kind + " --resume " + Path("saves/step-00000012.ckpt"));
    EXPECT_EQ(LossesAfter(0, Log("resumed")), LossesAfter(12, Log("straight")));
    EXPECT_EQ(Log("resumed").size(), 24u);  // two replicas, twelve steps
    for (const char* field : {"val_loss", "anchor_checksum"}) {
      EXPECT_EQ(Summary("resumed")[field], Summary("straight")[field]) << field;
      EXPECT_EQ(Summary("resumed")[field], Summary("without")[field]) << field;
    }
    std::filesystem::remove_all(Path("saves"));
  }
}

TEST_F(TrainTest, ARunIsContinuedOrRefusedWhereItsCheckpointsLie) {
  for (const std::string method :
       {"edit --local-sgd-sync-interval 4", "acco --max-microbatches 1"}) {
    SCOPED_TRACE(method);
    const std::string flags =
        "--method " + method + " --save-every 4 --save-dir " + Path("saves") + " --steps ";
    EXPECT_THAT(Run("run", 2, flags + "16 --resume latest --keep 2").output,
                HasSubstr("no checkpoint in " + Path("saves") + ": the run begins"));
    const auto exists = [&](const std::string& step) {
      return std::filesystem::exists(Path("saves/step-000000" + step + ".ckpt"));
    };
    EXPECT_TRUE(exists("16") && exists("12") && !exists("08") && !exists("04"));
    const Outcome refused = Shell(Launch(2) + "--data " + Path("text") +
                                  " --hidden-size 32 --layers 2 " + flags + "24");
    EXPECT_NE(refused.code, 0);
    EXPECT_EQ(Count(refused.output,
                    "has step-00000016.ckpt of an earlier run; --resume latest "
                    "continues it, --overwrite begins anew"),
              1)
        << refused.output;
    // Under a launcher that restarts jobs the run continues by itself, and its log too.
    setenv("TORCHELASTIC_RUN_ID", "job", 1);
    const Outcome restarted = Run("run", 2, flags + "24");
    unsetenv("TORCHELASTIC_RUN_ID");
    EXPECT_THAT(restarted.output, HasSubstr("resuming from " + Path("saves/step-00000016.ckpt")));
    const auto log = Log("run");
    EXPECT_TRUE(log.contains({1, 0}) && log.contains({16, 1}) && log.contains({24, 1}));
    // A checkpoint that is not whole is left out.
    std::filesystem::resize_file(Path("saves/step-00000024.ckpt"), 1000);
    EXPECT_THAT(Run("other", 2, flags + "28 --resume latest").output,
                HasSubstr("taking an older one"));
    Run("anew", 2, flags + "8 --overwrite --keep 1");
    EXPECT_TRUE(Log("anew").contains({1, 0}));
    EXPECT_TRUE(exists("08") && !exists("12") && !exists("16") && !exists("28"));
    std::filesystem::remove_all(Path("saves"));
  }
}

// With 100 KiB for a file there is room for the log, and none for a checkpoint.
TEST_F(TrainTest, ASaveThatFailsEndsTheRunOrIsCounted) {
  for (const std::string method : {"edit --local-sgd-sync-interval 4", "acco"}) {
    SCOPED_TRACE(method);
    const std::string command =
        "trap '' XFSZ; ulimit -f 100; ENTRAIN_TRANSPORTS=tcp " + Launch(2) + "--data " +
        Path("text") +
        " --hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --val-batches 4 "
        "--steps 16 --save-every 4 --save-dir " +
        Path("saves") + " --summary " + Path("run.json") + " --method " + method;
    const Outcome ended = Shell(command);
    EXPECT_NE(ended.code, 0);
    EXPECT_EQ(Count(ended.output, "step-00000004.ckpt: cannot write"), 1) << ended.output;
    const Outcome counted = Shell(command + " --failed-saves continue");
    EXPECT_EQ(counted.code, 0) << counted.output;
    EXPECT_EQ(Count(counted.output, "the run continues without this checkpoint"), 4)
        << counted.output;
    EXPECT_EQ(Summary("run")["failed_saves"], 4);
    EXPECT_TRUE(std::filesystem::is_empty(Path("saves")));
  }
}

TEST_F(TrainTest, PortableResumeOnOtherMeshes) {
  const std::string flags = "--method edit --local-sgd-sync-interval 4 --lr 0.01 ";
  Run("straight", 4,
      flags + "--shard-size 2 --steps 32 --checkpoint-kind portable --save-every 24 --save-dir " +
          Path("saves"));
  const auto mean = [](const std::map<std::pair<int, int>, double>& losses) {
    double sum = 0;
    for (const auto& [key, loss] : losses) {
      sum += loss / static_cast<double>(losses.size());
    }
    return sum;
  };
  const double before = mean(LossesAfter(0, Log("straight")));
  const double went_on = mean(LossesAfter(24, Log("straight")));
  EXPECT_LT(went_on, 0.8 * before);
  const std::string resume =
      "--steps 32 --checkpoint-kind portable --resume " + Path("saves/step-00000024 ");
  for (const auto& [name, ranks, shard_size] :
       {std::tuple{"n4", 4, 1}, std::tuple{"m3", 3, 3}, std::tuple{"alone", 1, 1}}) {
    Run(name, ranks, flags + resume + "--shard-size " + std::to_string(shard_size));
    EXPECT_EQ(Log(name).begin()->first.first, 25) << name;
    EXPECT_NEAR(mean(LossesAfter(24, Log(name))), went_on, 0.1 * went_on) << name;
  }
}

TEST_F(TrainTest, AEditSavesAtARendezvousAndGoesOn) {
  const std::string flags =
      "--method a-edit --shard-size 2 --local-sgd-sync-time 0.005 --min-total-global-steps 1 ";
  Run("first", 4, flags + "--steps 60 --save-every 20 --save-dir " + Path("saves"));
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(Path("saves"))) {
    files.insert(entry.path());
  }
  ASSERT_GE(files.size(), 2u);  // one at the end, and at least one before
  EXPECT_THAT(*files.begin(), HasSubstr("/exchange-0"));
  Run("second", 4, flags + "--steps 80 --resume " + *files.rbegin());
  EXPECT_EQ(Log("second").size(), 40u);  // steps of each replica after the first run
  EXPECT_EQ(Log("second").begin()->first.first, 61);
  EXPECT_GE(Summary("second")["syncs"], Summary("first")["syncs"]);
}

TEST_F(TrainTest, DilocoLearns) {
  Run("diloco", 2, "--method diloco --steps 60 --local-sgd-sync-interval 6 --lr 0.01");
  const json summary = Summary("diloco");
  EXPECT_LT(summary["val_loss"], 0.6 * summary["unigram_entropy"].get<double>());
}

TEST_F(TrainTest, AEditMeetsByTimeLearnsAndEndsAlike) {
  for (const char* overlap : {"", " --overlap-steps 1"}) {
    const std::string name = "a-edit" + std::string(*overlap != 0 ? "-overlap" : "");
    Run(name, 4,
        "--method a-edit --shard-size 2 --steps 70 --local-sgd-sync-time 0.02 "
        "--min-total-global-steps 4 --use-step-weight --local-sgd-warmup-steps 6 --lr 0.01" +
            std::string(overlap));
    const json summary = Summary(name);
    EXPECT_EQ(summary["method"], "a-edit");
    EXPECT_EQ(summary["steps"], 70);
    EXPECT_GT(summary["syncs"], 0);
    EXPECT_TRUE(summary["anchor_checksum"].is_string());  // the run compares it between replicas
    EXPECT_LT(summary["val_loss"].get<double>(), summary["unigram_entropy"].get<double>());
  }
}

// Emulated steps and delays take the given time, but change no bit of the training.
TEST_F(TrainTest, StepsAndStragglersTakeAsLongAsTheFlagsSay) {
  const std::string flags = "--method edit --steps 12 --local-sgd-sync-interval 4 ";
  Run("plain", 2, flags);
  Run("padded", 2, flags + "--step-ms 20");
  Run("late", 2, flags + "--step-ms 20 --straggler fixed --straggler-ms 30 --straggler-replica 1");
  EXPECT_EQ(Losses("padded"), Losses("plain"));
  EXPECT_EQ(Losses("late"), Losses("plain"));
  EXPECT_GE(Summary("padded")["wall_s"], 12 * 0.020);
  EXPECT_GE(Summary("late")["wall_s"], 12 * 0.050);
  // The first four steps come before the first meeting, so no replica waits.
  const auto late = Log("late");
  EXPECT_GE(late.at({4, 1})["seconds"], 4 * 0.050);
  EXPECT_GE(late.at({4, 0})["seconds"], 4 * 0.020);
  // In each of two intervals and at the end, replica 0 waits for four times 30 ms, if the machine
  // lets it run.
  const auto waited = Summary("late")["idle_share"].get<std::vector<double>>();
  ASSERT_EQ(waited.size(), 2u);
  EXPECT_GT(waited[0], waited[1]);
  EXPECT_LT(waited[0], 1.0);
}

TEST_F(TrainTest, ShuffledLabelsReachOneReplicaInOneIntervalInSoMany) {
  const std::string flags =
      "--method edit --steps 80 --local-sgd-sync-interval 10 --local-sgd-warmup-steps 10 --lr "
      "0.01 ";
  Run("clean", 2, flags);
  Run("shuffled", 2, flags + "--shuffle-labels-every 3 --shuffle-labels-replica 1");
  const auto clean = Log("clean");
  const auto shuffled = Log("shuffled");
  const auto differs = [&](int step, int replica) {
    return clean.at({step, replica})["loss"] != shuffled.at({step, replica})["loss"];
  };
  // Warm-up, then the intervals 1 (steps 11 to 20), 2, and 3 (31 to 40). Until then there is no
  // difference.
  for (int step = 1; step <= 80; ++step) {
    EXPECT_EQ(differs(step, 0), step > 40) << step;
    EXPECT_EQ(differs(step, 1), step > 30) << step;
    const bool nonsense = (step > 30 && step <= 40) || (step > 60 && step <= 70);
    const double excess =
        shuffled.at({step, 1})["loss"].get<double>() - shuffled.at({step, 0})["loss"].get<double>();
    EXPECT_EQ(excess > 0.8, nonsense) << step << ": " << excess;
  }
}

TEST_F(TrainTest, EachReplicaLearnsFromItsOwnPartOfTheText) {
  {
    std::ofstream text(Path("text"));
    text << std::string(19000, 'a');  // easy to learn
    uint32_t state = 1;
    for (int i = 0; i < 21000; ++i) {
      state = state * 1664525u + 1013904223u;
      text << static_cast<char>('a' + (state >> 24) % 26);
    }
  }
  for (const std::string method : {"edit", "acco"}) {
    Run(method, 2, "--steps 60 --lr 0.01 --text-parts 2 --method " + method);
    const auto log = Log(method);
    EXPECT_LT(log.at({60, 0})["loss"], 0.5) << method;
    EXPECT_GT(log.at({60, 1})["loss"], 2.0) << method;
  }
}

TEST_F(TrainTest, AEditReplicasThatCountTogetherEndTogether) {
  Run("together", 3,
      "--method a-edit --steps 60 --steps-together --local-sgd-sync-time 0.1 "
      "--min-total-global-steps 1 --step-ms 5 --straggler fixed --straggler-ms 20 --lr 0.01");
  const json summary = Summary("together");
  const auto steps = summary["replica_steps"].get<std::vector<int>>();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_LT(steps[0], 60);  // five times slower than the others
  EXPECT_GT(steps[1], steps[0]);
  EXPECT_GT(steps[2], steps[0]);
  const int all = steps[0] + steps[1] + steps[2];
  EXPECT_GE(all, 180);
  EXPECT_EQ(summary["tokens"], all * 4 * 32);
  const auto log = Log("together");
  EXPECT_EQ(log.size(), static_cast<size_t>(all));
  // Learning rates fall as for the mean replica: the slow replica's rates do not stay high.
  const double slow = log.at({steps[0], 0})["lr"];
  const double fast = log.at({steps[1], 1})["lr"];
  EXPECT_LT(slow, 0.004);
  EXPECT_LT(fast, 0.004);
}

TEST_F(TrainTest, PseudoGradientsTravelInTheFormatsTheFlagsSay) {
  const std::string flags = "--method edit --steps 40 --local-sgd-sync-interval 8 --reducer gta ";
  Run("dense", 4, flags);
  Run("int8", 4, flags + "--consensus-method sum --wire-format int8 --error-feedback");
  Run("sparse", 4, flags + "--sparsification-method magnitude --density 0.1 --error-feedback");
  const double dense = Summary("dense")["bytes_sent_sync"];
  EXPECT_LT(Summary("int8")["bytes_sent_sync"].get<double>(), 0.3 * dense);
  EXPECT_LT(Summary("sparse")["bytes_sent_sync"].get<double>(), 0.4 * dense);
}

TEST_F(TrainTest, PostLocalSgdAndExchangesBehindStepsLearn) {
  Run("plain", 2, "--method post-local-sgd --steps 60 --local-sgd-sync-interval 5 --lr 0.01");
  EXPECT_TRUE(Summary("plain")["anchor_checksum"].is_null());
  Run("behind", 2,
      "--method diloco --steps 60 --local-sgd-sync-interval 5 --overlap-steps 5 --lr 0.01");
  for (const char* name : {"plain", "behind"}) {
    const json summary = Summary(name);
    EXPECT_LT(summary["val_loss"].get<double>(), summary["unigram_entropy"].get<double>()) << name;
  }
}

// Runs continue from a checkpoint with exchanges under way, or with a remainder of error feedback.
TEST_F(TrainTest, Co2StreamingDiLoCoAndSparseLoCoLearnAndResumeBitEqual) {
  for (const std::string name : {"co2", "streaming-diloco", "sparseloco"}) {
    const std::string flags = "--method " + name +
                              " --shard-size 2 --steps 60 --local-sgd-sync-interval 6 "
                              "--local-sgd-warmup-steps 6 --lr 0.01 ";
    Run("straight", 4, flags + "--save-every 30 --save-dir " + Path("saves"));
    EXPECT_LT(Summary("straight")["val_loss"].get<double>(),
              Summary("straight")["unigram_entropy"].get<double>())
        << name;
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(Path("saves"))) {
      files.insert(entry.path());
    }
    ASSERT_EQ(files.size(), 2u);
    Run("resumed", 4, flags + "--resume " + *files.begin());
    for (const char* field : {"val_loss", "anchor_checksum"}) {
      EXPECT_EQ(Summary("resumed")[field], Summary("straight")[field]) << name << " " << field;
    }
    EXPECT_EQ(LossesAfter(0, Log("resumed")).size() % 2, 0u);
    EXPECT_GE(LossesAfter(0, Log("resumed")).size(), 40u);
    std::filesystem::remove_all(Path("saves"));
  }
}

// No replica waits for a round, so runs differ. Saves and evaluations need all replicas.
TEST_F(TrainTest, DecoupledDiLoCoLearnsEvaluatesSavesAndResumes) {
  for (const int shards : {1, 2}) {
    const std::string flags =
        "--method decoupled-diloco --shard-size " + std::to_string(shards) +
        " --steps 60 --local-sgd-sync-interval 6 "
        "--local-sgd-warmup-steps 6 --step-ms 10 --eval-interval 20 --lr 0.01 ";
    Run("straight", 2 * shards, flags + "--save-every 30 --save-dir " + Path("saves"));
    EXPECT_LT(Summary("straight")["val_loss"].get<double>(),
              Summary("straight")["unigram_entropy"].get<double>());
    EXPECT_FALSE(Summary("straight")["anchor_checksum"].is_null());
    EXPECT_GT(Summary("straight")["syncs"].get<int>(), 8);
    ASSERT_TRUE(std::filesystem::exists(Path("saves") + "/step-00000030.ckpt"));
    Run("resumed", 2 * shards, flags + "--resume " + Path("saves") + "/step-00000030.ckpt");
    EXPECT_LT(Summary("resumed")["val_loss"].get<double>(),
              Summary("resumed")["unigram_entropy"].get<double>());
    std::filesystem::remove_all(Path("saves"));
  }
}

// Exchanges may go without the slow replica, but saves and evaluations are of all.
TEST_F(TrainTest, RoundsClosedEarlySaveEvaluateAndResume) {
  const std::string flags =
      "--method diloco --quorum 2 --late carry --steps 30 --local-sgd-sync-interval 4 "
      "--step-ms 5 --straggler fixed --straggler-replica 1 --straggler-ms 15 --eval-interval 10 "
      "--lr 0.01 ";
  Run("straight", 3, flags + "--save-every 10 --save-dir " + Path("saves"));
  EXPECT_LT(Summary("straight")["val_loss"].get<double>(),
            Summary("straight")["unigram_entropy"].get<double>());
  int evaluated = 0;
  for (const auto& [key, record] : Log("straight")) {
    evaluated += record.contains("val_loss") ? 1 : 0;
  }
  EXPECT_GE(evaluated, 3);
  for (const char* save : {"step-00000010", "step-00000020", "step-00000030"}) {
    EXPECT_TRUE(std::filesystem::exists(Path("saves") + "/" + save + ".ckpt")) << save;
  }
  Run("resumed", 3, flags + "--resume " + Path("saves") + "/step-00000020.ckpt");
  EXPECT_LT(Summary("resumed")["val_loss"].get<double>(),
            Summary("resumed")["unigram_entropy"].get<double>());
}

TEST_F(TrainTest, PlainAveragingHasNoAnchorsToShow) {
  Run("plain", 2,
      "--method diloco --outer-optimizer none --reducer none --steps 6 --local-sgd-sync-interval "
      "2");
  int synced = 0;
  for (const auto& [key, record] : Log("plain")) {
    synced += record["synced"] ? 1 : 0;
    EXPECT_FALSE(record.contains("anchor_checksum")) << record;
  }
  EXPECT_GT(synced, 0);
  EXPECT_TRUE(Summary("plain")["anchor_checksum"].is_null());
}

TEST_F(TrainTest, LinesOfProgressSayWhatIsLeft) {
  const Outcome outcome = Run("lines", 2, "--method ddp --steps 6 --eval-interval 3");
  EXPECT_THAT(outcome.output, testing::ContainsRegex("step 1/6 .* [0-9]+ bytes/s  [0-9]+ s left"));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("step 3/6 .* left  validation [0-9]"));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("step 6/6 .* bytes/s  validation [0-9]"));
}

TEST_F(TrainTest, RunsAloneWithoutALauncherAndWritesASample) {
  const Outcome outcome =
      Shell("env -u ENTRAIN_STORE -u RANK -u WORLD_SIZE timeout 100 " ENTRAIN_TRAIN
            " --method ddp --steps 8 --hidden-size 32 --sample 20 --prompt 'sync ' --data " +
            Path("text") + " --summary " + Path("alone.json"));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 8/8"));
  const json summary = Summary("alone");
  EXPECT_EQ(summary["ranks"], 1);
  EXPECT_THAT(summary["sample"].get<std::string>(), testing::StartsWith("sync "));
}

// Rank 2 of a 2 x 2 mesh is killed after step 20. Rank 3 of its replica ends by itself, the launcher
// starts both again, and they join as one replica.
TEST_F(TrainTest, AReplicaOfTwoRanksIsReplacedAsAWhole) {
  std::ofstream(Path("rank")) << "if [ $RANK$ENTRAIN_RESTARTS = 20 ]; then\n"
                              << "  (until grep -qs '\"step\":20,' " << Path("run.log")
                              << "; do sleep 0.02; done; kill -9 $$) &\n"
                              << "fi\n"
                              << "exec " ENTRAIN_TRAIN " \"$@\"\n";
  const Outcome outcome =
      Shell("timeout 100 " ENTRAIN_RUN " -n 4 --elastic -- sh " + Path("rank") + " --data " +
            Path("text") +
            " --hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --val-batches 4"
            " --shard-size 2 --on-loss finish --admit exchange --newcomer-warmup 2 --steps 150"
            " --step-ms 10 --local-sgd-sync-interval 4 --eval-interval 50 --log " +
            Path("run.log") + " --summary " + Path("run.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("was killed by SIGKILL (Killed); restarting it, 1 of 3"));
  EXPECT_EQ(Count(outcome.output, "restarting it, 1 of 3"), 2) << outcome.output;
  EXPECT_EQ(Count(outcome.output, ": replica 1 joins"), 1) << outcome.output;
  const auto log = Log("run");
  EXPECT_TRUE(log.contains({150, 0}));
  EXPECT_TRUE(log.contains({150, 1}));
  EXPECT_EQ(Summary("run")["replica_steps"].size(), 2u);
}

// Each of two replicas is killed, the second one when the first has been replaced. The run saves and
// evaluates meanwhile, and the launcher knows that the replacement is a member.
TEST_F(TrainTest, TwoReplicasAreReplacedOneAfterTheOther) {
  // Rank 1 kills itself after step 20, and rank 0 when the replacement trains.
  std::ofstream(Path("rank")) << "row=; [ $RANK$ENTRAIN_RESTARTS = 10 ] && row='\"step\":20,'\n"
                              << "[ $RANK$ENTRAIN_RESTARTS = 00 ] &&"
                              << " row='\"step\":[1-9][0-9][0-9],\"replica\":1,'\n"
                              << "if [ -n \"$row\" ]; then\n"
                              << "  (until grep -qs \"$row\" " << Path("run.log")
                              << "; do sleep 0.02; done; kill -9 $$) &\n"
                              << "fi\n"
                              << "exec " ENTRAIN_TRAIN " \"$@\"\n";
  for (const std::string method : {"edit --local-sgd-sync-interval 4", "acco"}) {
    SCOPED_TRACE(method);
    std::filesystem::remove(Path("run.log"));
    const Outcome outcome =
        Shell("timeout 100 " ENTRAIN_RUN " -n 2 --elastic -- sh " + Path("rank") + " --data " +
              Path("text") + " --method " + method +
              " --hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --val-batches "
              "4 --on-loss finish --admit exchange --steps 400 --step-ms 10 --eval-interval 20 "
              "--save-every 10 --save-dir " +
              Path("saves") + " --log " + Path("run.log") + " --summary " + Path("run.json"));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_EQ(Count(outcome.output, "restarting it, 1 of 3"), 2) << outcome.output;
    EXPECT_EQ(Count(outcome.output, " joins"), 2) << outcome.output;
    EXPECT_EQ(Summary("run")["steps"], 400);
    EXPECT_TRUE(std::filesystem::exists(Path("saves/step-00000400.ckpt")));
    std::filesystem::remove_all(Path("saves"));
  }
}

// All ranks are killed, one after the other before its replacement counts, or in one moment. They
// meet again, continue from the last checkpoint, and a rank that is killed later is replaced.
TEST_F(TrainTest, ARunOfWhichAllRanksWereLostContinuesFromItsLastCheckpoint) {
  setenv("ENTRAIN_RUN_ID", "job", 1);  // entrain-run and the ranks then use a part of the store
  std::ofstream(Path("rank")) << "row=; [ $ENTRAIN_RESTARTS = 0 ] && row='\"step\":60,'\n"
                              << "[ $RANK$ENTRAIN_RESTARTS = 11 ] && row='\"step\":200,'\n"
                              << "if [ -n \"$row\" ]; then\n"
                              << "  (until grep -qs \"$row\" " << Path("run.log")
                              << "; do sleep 0.02; done; kill -9 $$) &\n"
                              << "fi\n"
                              << "exec " ENTRAIN_TRAIN " \"$@\"\n";
  const std::string run =
      "timeout 100 " ENTRAIN_RUN " -n 2 --elastic -- sh " + Path("rank") + " --data " +
      Path("text") +
      " --local-sgd-sync-interval 4"
      " --hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --val-batches "
      "4 --on-loss finish --admit exchange --steps 400 --step-ms 10 --log " +
      Path("run.log") + " --summary " + Path("run.json");
  const Outcome outcome = Shell(run + " --save-every 10 --save-dir " + Path("saves"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(Count(outcome.output, "restarting it, 1 of 3"), 2) << outcome.output;
  EXPECT_EQ(Count(outcome.output, "resuming from " + Path("saves") + "/step-000000"), 1)
      << outcome.output;
  EXPECT_EQ(Count(outcome.output, " joins"), 1) << outcome.output;
  EXPECT_EQ(Summary("run")["steps"], 400);
  EXPECT_TRUE(std::filesystem::exists(Path("saves/step-00000400.ckpt")));
  std::filesystem::remove_all(Path("saves"));
  // Without a checkpoint it does not begin anew.
  std::filesystem::remove(Path("run.log"));
  const Outcome lost = Shell(run);
  EXPECT_NE(lost.code, 0) << lost.output;
  EXPECT_THAT(lost.output, HasSubstr("no other rank has a communicator that it could join"));
  unsetenv("ENTRAIN_RUN_ID");
}

// A process of another job (another seed) that comes to the store of a run by mistake is refused by
// name, and the run is unharmed.
TEST_F(TrainTest, AReplicaOfAnotherRunIsRefused) {
  std::ofstream(Path("rank")) << "if [ $RANK$ENTRAIN_RESTARTS = 10 ]; then\n"
                              << "  (until grep -qs '\"step\":20,' " << Path("run.log")
                              << "; do sleep 0.02; done; kill -9 $$) &\n"
                              << "fi\n"
                              << "[ $RANK$ENTRAIN_RESTARTS = 11 ] && set -- \"$@\" --seed 9\n"
                              << "exec " ENTRAIN_TRAIN " \"$@\"\n";
  for (const std::string method : {"edit --local-sgd-sync-interval 4", "acco"}) {
    SCOPED_TRACE(method);
    const Outcome outcome =
        Shell("timeout 100 " ENTRAIN_RUN " -n 2 --elastic -- sh " + Path("rank") + " --data " +
              Path("text") + " --method " + method +
              " --hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --val-batches "
              "4 --on-loss finish --admit exchange --steps 400 --step-ms 10 --log " +
              Path("run.log") + " --summary " + Path("run.json"));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("identity: seed: "));
    EXPECT_EQ(Count(outcome.output, " joins"), 1) << outcome.output;
    EXPECT_EQ(Summary("run")["steps"], 400);
    std::filesystem::remove(Path("run.log"));
  }
}

TEST_F(TrainTest, WhatIsWrongIsSaidOnceByOneRank) {
  const auto once = [&](const std::string& flags, const std::string& line) {
    const Outcome outcome = Shell(Launch(4) + flags);
    EXPECT_NE(outcome.code, 0) << flags;
    EXPECT_EQ(Count(outcome.output, line), 1) << outcome.output;
    EXPECT_EQ(Count(outcome.output, "entrain-train: "), 1) << outcome.output;
  };
  once("--data " + Path("absent"), "cannot read data file '" + Path("absent") + "': No such file");
  once("--data " + Path("text") + " --shard-size 3", "--shard-size 3 does not divide the 4 ranks");
  once("--data " + Path("text") + " --heads 5", "--heads 5 does not divide");
  once("--data " + Path("text") + " --log /nowhere/x", "cannot write '/nowhere/x'");
  once("--data " + Path("text") + " --seq-length 60000", "is too short");
  once("--data " + Path("text") + " --method ddp --outer-lr 1", "--outer-lr has no effect");
  once("--data " + Path("text") + " --straggler fixed --straggler-ms 1 --straggler-replica 4",
       "--straggler-replica 4 is none of the 4 replicas");
  once("--data " + Path("text") + " --resume " + Path("absent"),
       Path("absent.ckpt") + ": cannot open it: No such file");
  once("--data " + Path("text") + " --resume " + Path("text"), "text.ckpt: cannot open it");
  // The error comes before the first step, not after the last.
  once("--data " + Path("text") + " --summary /nowhere/y --steps 1000000000",
       "cannot write '/nowhere/y'");
}

}  // namespace
}  // namespace trainer_test
