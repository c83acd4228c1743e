// Replicas that an exchange leaves out: norms that stand out, and values that are not finite. Also
// the state of detectors afterwards.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/log.h"
#include "tests/train/rounds.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Averages replicas that a detector judges after six norms. Noise never is an outlier for it.
EditOptions Detecting(EditOptions options = Averaging()) {
  options.skip_anomaly = true;
  options.ewma_alpha = 0.1;
  options.ewma_warmup_steps = 6;
  options.ewma_threshold = 8;
  return options;
}

// The anchors of all ranks, by round.
using History = std::vector<Collected>;

// A factor for the drifts of one replica, or of all (-1), in some rounds.
struct Spike {
  int replica;
  float times;
  std::vector<int> rounds;
  bool At(int round) const {
    return std::find(rounds.begin(), rounds.end(), round) != rounds.end();
  }
  float Of(int at, int round, float drift) const {
    return (replica < 0 || at == replica) && At(round) ? times * drift : drift;
  }
};

// ---- All rejected ------------------------------------------------------------------------------

// Runs with and without a round in which all replicas are rejected. The later rounds must be equal.
// They would differ if the momentum had taken a step, or if a detector had learnt from the round.
TEST(Edit, AllRejectedLeavesAnchorAndMomentumBitUnchanged) {
  constexpr int kBad = 8, kRounds = 11;
  for (const float times : {kNan, kInf, 100.0f}) {
    SCOPED_TRACE(times);
    const Rounds plain{{2, 2}, Detecting(Weighed()), kRounds};
    History want(kRounds, Collected(plain.grid)), got = want;
    plain.Run([&](Replica& r, int round) { want[static_cast<size_t>(round)].Put(r, r.Anchor()); });
    RunReplicas(plain.grid, FourLayers(), [&](Replica& r) {
      r.Edit(plain.options);
      r.Forward();
      for (int round = 0; round < kRounds; ++round) {
        if (round == kBad) {
          const std::vector<float> anchor = r.Anchor();
          const uint64_t checksum = r.edit().info().anchor_checksum;
          r.DriftFromAnchor(
              [&](int l, int64_t i) { return times * plain.Drift(r.replica(), round, l, i); });
          r.EndStep();
          EXPECT_TRUE(r.Forward());
          EXPECT_EQ(r.Anchor(), anchor);
          EXPECT_EQ(r.params(), anchor);
          EXPECT_EQ(r.edit().info().anchor_checksum, checksum);
          for (int l = 0; l < 4; ++l) {
            EXPECT_THAT(r.edit().Report(l)->weights, testing::Each(0));
            EXPECT_TRUE(r.edit().Report(l)->rolled_back);
          }
        }
        plain.Step(r, round);
        got[static_cast<size_t>(round)].Put(r, r.Anchor());
      }
      EXPECT_EQ(r.edit().info().rollbacks, 4);
      EXPECT_EQ(r.edit().info().rejections, 4);
    });
    for (int round = 0; round < kRounds; ++round) {
      const auto at = static_cast<size_t>(round);
      EXPECT_EQ(got[at].Whole(0), want[at].Whole(0)) << "round " << round;
      EXPECT_EQ(got[at].Whole(1), want[at].Whole(0)) << "round " << round;
    }
  }
}

TEST(Edit, DetectorsLearnAnewWhenAllRejectTwice) {
  EditOptions options = Averaging();
  options.skip_anomaly = true;
  options.ewma_alpha = 0.1;
  options.ewma_warmup_steps = 4;
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    std::vector<int64_t> rollbacks;
    for (int round = 0; round < 12; ++round) {
      r.DriftFromAnchor([&](int l, int64_t i) {
        return Noise(r.replica(), round, l, i) * (round < 8 ? 0.1f : 10.0f);  // permanently
      });
      r.EndStep();
      ASSERT_TRUE(r.Forward());
      rollbacks.push_back(r.edit().info().rollbacks);
    }
    EXPECT_EQ(rollbacks[7], 0);
    EXPECT_EQ(rollbacks[8], 4);   // all four layers
    EXPECT_EQ(rollbacks[9], 8);   // and once more
    EXPECT_EQ(rollbacks[11], 8);  // accepted as the new level
  });
}

// ---- One rejected ------------------------------------------------------------------------------

// A run of three replicas, and a run of two of them that continues from its checkpoint. The third
// replica is rejected by its detector in three rounds in a row, so the results must be equal to
// those without it.
TEST(Edit, OneRejectedEqualsTheRunOfTheOthers) {
  constexpr int kLearn = 8, kRounds = 11;
  const Spike spike{1, 100, {8, 9, 10}};
  for (const int shards : {1, 2}) {
    const Directory directory;
    const CheckpointOptions checkpoint = To(directory, CheckpointKind::kPortable);
    Rounds with{{shards, 3}, Detecting(Weighed()), kRounds},
        without{{shards, 2}, Detecting(Weighed()), kRounds};
    with.change = [&](int replica, int round, float drift) {
      return spike.Of(replica, round, drift);
    };
    without.seed = [](int replica) { return replica == 0 ? 0 : 2; };
    History got(kRounds, Collected(with.grid)), want(kRounds, Collected(without.grid));
    with.Run([&](Replica& r, int round) {
      if (round == kLearn - 1) {
        ASSERT_EQ(r.edit().state().Save(checkpoint), absl::OkStatus());
      }
      for (int l = 0; l < 4; ++l) {
        const LayerReport report = *r.edit().Report(l);
        EXPECT_EQ(report.weights[1] == 0, spike.At(round));
        EXPECT_NEAR(report.weights[0] + report.weights[1] + report.weights[2], 1, 1e-12);
      }
      got[static_cast<size_t>(round)].Put(r, r.Anchor());
    });
    RunReplicas(without.grid, FourLayers(), [&](Replica& r) {
      r.Edit(without.options);
      ASSERT_EQ(r.edit().state().Load(checkpoint), absl::OkStatus());
      EXPECT_FALSE(r.Forward());
      for (int round = kLearn; round < kRounds; ++round) {
        without.Step(r, round);
        want[static_cast<size_t>(round)].Put(r, r.Anchor());
      }
    });
    for (size_t round = kLearn; round < kRounds; ++round) {
      EXPECT_EQ(got[round].Whole(1), want[round].Whole(0)) << "round " << round;
    }
  }
}

// Holds for any values that the replica brings, for any combination of the others, and from the
// first round on.
TEST(Edit, NotFiniteReplicaNeverContaminatesOthers) {
  EditOptions elected = Weighed(), counted = Averaging(), coarse, average;
  elected.reducer = counted.reducer = coarse.reducer = ReducerKind::kGta;
  elected.consensus_method = Consensus::kSum;
  counted.consensus_method = Consensus::kCount;
  coarse.wire_format = WireFormat::kInt8;
  coarse.error_feedback = true;
  for (const EditOptions& options : {Weighed(), elected, counted, coarse, average}) {
    for (const float poison : {kNan, kInf, -kInf}) {
      SCOPED_TRACE(poison);
      const Rounds with{{2, 3}, options};
      Rounds without{{2, 2}, options};
      without.seed = [](int replica) { return replica == 0 ? 0 : 2; };
      Collected got(with.grid), want(without.grid);
      const auto run = [&](const Rounds& rounds, Collected* to) {
        RunReplicas(rounds.grid, FourLayers(), [&](Replica& r) {
          r.Edit(rounds.options);
          r.Forward();
          for (int round = 0; round < rounds.rounds; ++round) {
            r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
              // All elements are bad, or one element of each layer.
              const bool bad = to == &got && r.replica() == 1 && (round % 2 == 0 || i == 0);
              value += bad ? poison : rounds.Drift(r.replica(), round, l, i);
            });
            r.EndStep();
            ASSERT_TRUE(r.Forward());
          }
          to->Put(r, r.params());
        });
      };
      run(with, &got);
      run(without, &want);
      got.ExpectAlike();
      for (const float value : got.Whole(1)) {
        ASSERT_TRUE(std::isfinite(value));
      }
      // Three replicas cut a layer into other blocks than two, and the int8 steps of these blocks
      // differ.
      const float error = options.wire_format == WireFormat::kInt8 ? 0.02f : 0;
      EXPECT_THAT(got.Whole(1), testing::Pointwise(testing::FloatNear(error), want.Whole(0)));
    }
  }
}

struct Named {
  std::string name;
  EditOptions options;
};

// One set of options for each option that changes how contributions are combined.
std::vector<Named> WaysToCombine() {
  std::vector<Named> ways = {{"plain averaging", {}}, {"penalty", Weighed()}, {"judged", Judged()}};
  const auto add = [&](const std::string& name, EditOptions options, auto change) {
    change(options);
    ways.push_back({name, options});
  };
  using O = EditOptions;
  for (const OuterKind kind : {OuterKind::kSgd, OuterKind::kAdamw, OuterKind::kLion}) {
    add(absl::StrCat("diloco, outer ", static_cast<int>(kind)), {}, [&](O& o) {
      o.outer_optimizer = kind;
      o.outer_nesterov = kind == OuterKind::kSgd;
      o.outer_lr = kind == OuterKind::kSgd ? 0.7 : 0.01;
    });
  }
  add("callback", {}, [](O& o) {
    o.outer_optimizer = OuterKind::kCallback;
    o.outer_step = [](void*, int32_t, int64_t, float* anchor, const float* grad, size_t count) {
      for (size_t i = 0; i < count; ++i) {
        anchor[i] -= grad[i];
      }
      return 0;
    };
  });
  add("sums", {}, [](O& o) {
    o.reducer = ReducerKind::kLinear;
    o.normalize = false;
  });
  for (const Consensus consensus : {Consensus::kNone, Consensus::kSum, Consensus::kCount}) {
    add(absl::StrCat("gta, consensus ", static_cast<int>(consensus)), Averaging(), [&](O& o) {
      o.reducer = ReducerKind::kGta;
      o.consensus_method = consensus;
    });
  }
  for (const Sparsification kind :
       {Sparsification::kMagnitude, Sparsification::kRandom, Sparsification::kRescaledRandom}) {
    add(absl::StrCat("sparse ", static_cast<int>(kind)), Averaging(), [&](O& o) {
      o.reducer = ReducerKind::kGta;
      o.sparsification_method = kind;
      o.density = 0.5;
      o.sparsify_chunk = kind == Sparsification::kMagnitude ? 64 : 0;
      o.wire_format = kind == Sparsification::kMagnitude ? WireFormat::kInt2 : WireFormat::kFull;
    });
  }
  for (const WireFormat wire : {WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4}) {
    for (const bool feedback : {false, true}) {
      add(absl::StrCat("wire ", static_cast<int>(wire), feedback ? ", feedback" : ""), Averaging(),
          [&](O& o) {
            o.wire_format = wire;
            o.error_feedback = feedback;
          });
    }
  }
  for (const OverlapMerge merge :
       {OverlapMerge::kAdd, OverlapMerge::kMix, OverlapMerge::kRestart}) {
    add(absl::StrCat("overlap, merge ", static_cast<int>(merge)), Averaging(), [&](O& o) {
      o.overlap_steps = 1;
      o.overlap_merge = merge;
      o.staleness_penalty = merge == OverlapMerge::kRestart;
    });
  }
  add("fragments", Averaging(), [](O& o) {
    o.fragments = 2;
    o.local_sgd_sync_interval = 2;
  });
  add("as published", Weighed(), [](O& o) { o.compat = true; });
  return ways;
}

// Whatever a replica brings, all replicas leave it out, and only it.
TEST(Edit, NotFiniteIsQuarantinedAlikeByEveryOption) {
  for (const Named& way : WaysToCombine()) {
    for (const float poison : {kNan, -kInf, 3e38f}) {
      SCOPED_TRACE(absl::StrCat(way.name, ", poison ", poison));
      const Grid grid = {2, 3};
      Collected got(grid);
      std::vector<std::vector<double>> weights(static_cast<size_t>(grid.ranks()));
      RunReplicas(grid, FourLayers(), [&](Replica& r) {
        r.Edit(way.options);
        r.Forward();
        for (int round = 0; round < 6; ++round) {
          // All elements are bad, or one element of each layer.
          r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
            const bool bad = r.replica() == 1 && (round % 2 == 0 || i == 0);
            value += bad ? poison : Noise(r.replica(), round, l, i) / 8;
          });
          r.EndStep();
          if (round == 5) {
            ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
          }
          r.Forward();
        }
        got.Put(r, r.params());
        for (int l = 0; l < 4; ++l) {
          const LayerReport report = *r.edit().Report(l);
          if (way.options.overlap_steps == 0) {  // else the merge before has dropped what is bad
            EXPECT_THAT(report.weights, testing::ElementsAre(testing::Gt(0), 0, testing::Gt(0)));
            EXPECT_EQ(report.accepted, r.replica() != 1);
          }
          auto& to = weights[static_cast<size_t>(r.replica() * grid.shards + r.slot())];
          to.insert(to.end(), report.weights.begin(), report.weights.end());
        }
      });
      got.ExpectAlike();
      EXPECT_THAT(weights, testing::Each(weights[0]));
      for (const float value : got.Whole(1)) {
        ASSERT_LT(std::abs(value), 100) << "false also for NaN";
      }
      if (HasFailure()) {
        return;
      }
    }
  }
}

// Each of these contributions is finite, and their sum is not.
TEST(Edit, AFiniteSumThatOverflowsIsQuarantined) {
  EditOptions sums;
  sums.reducer = ReducerKind::kLinear;
  sums.normalize = false;
  EditOptions moments;
  moments.outer_optimizer = OuterKind::kAdamw;
  for (const EditOptions& options : {sums, moments}) {
    RunReplicas({2, 3}, FourLayers(), [&](Replica& r) {
      r.Edit(options);
      r.Forward();
      r.DriftFromAnchor([&](int, int64_t) { return r.replica() == 0 ? 0.5f : -3e38f; });
      r.EndStep();
      ASSERT_TRUE(r.Forward());
      EXPECT_THAT(r.edit().Report(2)->weights, testing::ElementsAre(1, 0, 0));
      r.ForEach(r.params(), [](int, int64_t, float& value) { ASSERT_LT(std::abs(value), 10); });
    });
  }
}

TEST(Edit, OneBadShardRejectsTheLayerOfTheWholeReplicaOnly) {
  RunReplicas({2, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Weighed());
    r.Forward();
    r.DriftFromAnchor(
        [&](int l, int64_t i) { return r.replica() == 1 && l == 2 && i == 49 ? kNan : 0.25f; });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_THAT(r.edit().Report(1)->weights, testing::ElementsAre(0.5, 0.5));
    EXPECT_THAT(r.edit().Report(2)->weights, testing::ElementsAre(1, 0));
    r.ForEach(r.params(), [](int, int64_t, float& value) { ASSERT_TRUE(std::isfinite(value)); });
  });
}

// ---- Detectors ---------------------------------------------------------------------------------

// Returns how many layers of replica 1 were rejected in each of `rounds` rounds.
std::vector<int64_t> RejectionsOf(const EditOptions& options, const Spike& spike, int rounds) {
  std::vector<int64_t> rejected(static_cast<size_t>(rounds));
  Rounds run{{1, 3}, options, rounds};
  run.change = [&](int replica, int round, float drift) { return spike.Of(replica, round, drift); };
  run.Run([&](Replica& r, int round) {
    EXPECT_TRUE(r.replica() == 1 || r.edit().info().rejections == 0);
    if (r.replica() == 1) {
      rejected[static_cast<size_t>(round)] = r.edit().info().rejections;
    }
  });
  std::adjacent_difference(rejected.begin(), rejected.end(), rejected.begin());
  return rejected;
}

// As published, a rejected norm is ingested with a million added. Then the first spike is the last
// one that a detector finds.
TEST(Edit, DetectorRecoversAfterOneSpike) {
  const Spike spike{1, 100, {20, 24, 25}};
  std::vector<int64_t> want(28);
  want[20] = want[24] = want[25] = 4;
  EXPECT_EQ(RejectionsOf(Detecting(), spike, 28), want);
  EditOptions published = Detecting();
  published.compat = true;
  want[24] = want[25] = 0;
  EXPECT_EQ(RejectionsOf(published, spike, 28), want);
}

// Five rejections follow, then six norms to learn from, and then it judges again.
TEST(Edit, LevelShiftRecovers) {
  Spike shift{1, 100, {}};
  for (int round = 10; round < 40; ++round) {
    shift.rounds.push_back(round);
  }
  std::vector<int64_t> want(40);
  std::fill(want.begin() + 10, want.begin() + 15, 4);
  EXPECT_EQ(RejectionsOf(Detecting(), shift, 40), want);
}

TEST(Edit, ASpikeIsRejectedAndEqualsAbsenceWhereTheDetectorHasLearnt) {
  const EditOptions options = Detecting();
  RunReplicas({2, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    for (int round = 0; round < 12; ++round) {
      const bool spike = round == 10 && r.replica() == 1;
      r.DriftFromAnchor([&](int l, int64_t i) {
        // Only layer 2 has the spike.
        return Noise(r.replica(), round, l, i) * (spike && l == 2 ? 50.0f : 0.1f);
      });
      const std::vector<float> anchor = r.Anchor();
      r.EndStep();
      ASSERT_TRUE(r.Forward());
      for (int l = 0; l < 4; ++l) {
        const bool rejected = round == 10 && l == 2;
        const LayerReport report = *r.edit().Report(l);
        EXPECT_EQ(report.weights[1], rejected ? 0 : 1.0 / 3) << "round " << round << " layer " << l;
        EXPECT_EQ(report.weights[0], rejected ? 0.5 : 1.0 / 3);
        EXPECT_TRUE(std::isfinite(report.norms[1]));
        if (spike && l == 2) {
          EXPECT_GT(report.score.z, report.score.limit);
          EXPECT_GE(report.score.limit, 8);
        }
      }
      // The anchor is that of the other two replicas.
      size_t at = 0;
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        if (round == 10 && l == 2) {
          const auto offset = static_cast<size_t>(r.shards().slab().layer(2).offset);
          const double mean = (Noise(0, 10, l, i) + Noise(2, 10, l, i)) / 2 * 0.1;
          ASSERT_NEAR(value, anchor[offset + at++] + mean, 1e-5);
        }
      });
    }
    EXPECT_EQ(r.edit().info().rejections, r.replica() == 1 ? 1 : 0);
    EXPECT_EQ(r.edit().info().rollbacks, 0);
  });
}

TEST(Edit, CompatLeavesRejectedMassOutOfTheMean) {
  for (const bool compat : {false, true}) {
    RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
      EditOptions options = Averaging();
      options.compat = compat;
      r.Edit(options);
      r.Forward();
      const float start = r.Anchor()[0];
      r.DriftFromAnchor([&](int, int64_t) { return r.replica() == 0 ? 1.0f : kNan; });
      r.EndStep();
      ASSERT_TRUE(r.Forward());
      EXPECT_NEAR(r.params()[0], start + (compat ? 0.5f : 1.0f), 1e-6);
    });
  }
}

TEST(Edit, DebugLinesSayWhatWasDecided) {
  struct Sink {
    absl::Mutex mutex;
    std::vector<std::string> lines;
  } sink;
  SetLogSink(
      [](int32_t, const char* line, void* user) {
        auto* to = static_cast<Sink*>(user);
        absl::MutexLock lock(&to->mutex);
        to->lines.emplace_back(line);
      },
      &sink);
  RunReplicas({2, 2}, FourLayers(), [&](Replica& r) {
    EditOptions options = Weighed();
    options.skip_anomaly = true;
    options.is_debug = true;
    r.Edit(options);
    r.Forward();
    r.DriftFromAnchor([&](int, int64_t) { return r.replica() == 0 ? 0.25f : kNan; });
    r.EndStep();
    ASSERT_TRUE(r.Forward());
  });
  SetLogSink(nullptr, nullptr);
  EXPECT_EQ(sink.lines.size(), 2u * 4) << "a replica and layer";
  EXPECT_THAT(sink.lines,
              testing::Contains(testing::AllOf(HasSubstr(
                  "edit: rendezvous 1, layer 3, replica 0: norm 0.25, z 0 of 0, accepted, "
                  "weight 1, clip factor 1; accepted so far 1 of 2"))));
  EXPECT_THAT(sink.lines, testing::Contains(testing::AllOf(HasSubstr("layer 3, replica 1: norm "),
                                                           HasSubstr("rejected, weight 0"))));
}

}  // namespace
}  // namespace entrain
