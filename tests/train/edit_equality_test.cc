// Exchanges must equal synchronous training, one replica alone, a sum of the kept entries, and the
// formulas of the outer step. Some results must have equal bits.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/merging_reference.h"
#include "tests/train/rounds.h"

namespace entrain {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Grid kGrids[] = {{1, 2}, {1, 3}, {2, 1}, {2, 2}, {2, 3}, {4, 2}};

std::string Describe(const Grid& grid) {
  return absl::StrCat("M ", grid.shards, ", N ", grid.replicas);
}

// Calls `with` for each element of the four layers. Returns the results.
std::vector<double> OfAllElements(const std::function<double(int layer, int64_t element)>& with) {
  std::vector<double> numbers;
  for (int l = 0; l < 4; ++l) {
    for (int64_t i = 0; i < kFourLayers[static_cast<size_t>(l)]; ++i) {
      numbers.push_back(with(l, i));
    }
  }
  return numbers;
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, double error) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], error) << "element " << i;
  }
}

// ---- Synchronous training, and one replica alone -----------------------------------------------

// H = 1, eta = 1, mu = 0, and SGD as the inner optimizer.
TEST(Edit, SyncEveryStepWithLearningRateOneIsSynchronousSgd) {
  constexpr int kSteps = 12;
  for (const Grid& grid : kGrids) {
    for (const int warmup : {0, 5}) {
      SCOPED_TRACE(absl::StrCat(Describe(grid), ", warm-up ", warmup));
      Collected params(grid);
      RunReplicas(grid, FourLayers(), [&](Replica& r) {
        EditOptions options = Averaging();
        options.local_sgd_warmup_steps = warmup;
        r.Edit(options);
        for (int step = 0; step < kSteps; ++step) {
          const auto syncing = r.edit().BeginForward(true, true);
          ASSERT_TRUE(syncing.ok()) << syncing.status();
          EXPECT_EQ(*syncing, step > warmup);
          SgdStep{.lr = 0.5f}.Run(r, step);
        }
        EXPECT_TRUE(r.Forward());
        params.Put(r, r.params());
      });
      const std::vector<double> want = OfAllElements([&](int l, int64_t i) {
        double theta = Replica::Initial(l, i);
        for (int step = 0; step < kSteps; ++step) {
          double mean = 0;
          for (int rank = 0; rank < grid.ranks(); ++rank) {
            mean += (0.3 * theta + Noise(rank, step, l, i)) / grid.ranks();
          }
          theta -= 0.5 * mean;
        }
        return theta;
      });
      for (int replica = 0; replica < grid.replicas; ++replica) {
        ExpectNear(params.Whole(replica), want, 2e-6);
      }
    }
  }
}

// Exchanges neither reset nor change the momentum of the inner optimizer. The outer step is b ← mu
// b + g; a ← a - eta (g + mu b) with g = a - theta + decay a.
TEST(Edit, OneReplicaIsTheInnerOptimizerPlusAnOuterStepOnItsOwnDelta) {
  constexpr int kSteps = 13, kInterval = 3, kStreams = 2;
  constexpr double kEta = 0.7, kMu = 0.8, kDecay = 0.1;
  const std::vector<double> want = OfAllElements([](int l, int64_t i) {
    double theta = Replica::Initial(l, i), velocity = 0, a = theta, b = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0 && step % kInterval == 0) {
        const double g = a - theta + kDecay * a;
        b = kMu * b + g;
        a -= kEta * (g + kMu * b);
        theta = a;
      }
      const double mean = 0.3 * theta + (Noise(0, step, l, i) + Noise(1, step, l, i)) / 2.0;
      velocity = 0.9 * velocity + mean;
      theta -= 0.05 * velocity;
    }
    return theta;
  });
  for (const int shards : {1, 2}) {
    Collected params({shards, 1});
    RunReplicas({shards, 1}, FourLayers(), [&](Replica& r) {
      EditOptions options = Averaging();
      options.local_sgd_sync_interval = kInterval;
      options.outer_lr = kEta;
      options.outer_momentum = kMu;
      options.outer_nesterov = true;
      options.outer_weight_decay = kDecay;
      r.Edit(options);
      std::vector<float> velocity;
      for (int step = 0; step < kSteps; ++step) {
        ASSERT_TRUE(r.edit().BeginForward(true, true).ok());
        SgdStep{.lr = 0.05f, .streams = kStreams, .velocity = &velocity}.Run(r, step);
      }
      EXPECT_EQ(r.edit().info().syncs, (kSteps - 1) / kInterval);
      params.Put(r, r.params());
    });
    ExpectNear(params.Whole(0), want, 5e-6);
  }
}

// The same data is cut among more ranks: warm-up, local steps, and exchanges with all options.
TEST(Edit, ShardedRunsEqualUpToReductionOrder) {
  constexpr int kSteps = 21, kStreams = 4;
  std::vector<float> want;
  for (const int shards : {1, 2, 4}) {
    const Grid grid{shards, 2};
    SCOPED_TRACE(Describe(grid));
    Collected params(grid);
    RunReplicas(grid, FourLayers(), [&](Replica& r) {
      EditOptions options = Judged();
      options.local_sgd_warmup_steps = 2;
      options.local_sgd_sync_interval = 3;
      options.clip_pseudo_grad = 0.3;
      r.Edit(options);
      int clipped = 0;
      for (int step = 0; step < kSteps; ++step) {
        const auto syncing = r.edit().BeginForward(true, true);
        ASSERT_TRUE(syncing.ok()) << syncing.status();
        SgdStep{.lr = 0.1f, .streams = kStreams}.Run(r, step);
        clipped += *syncing && r.edit().Report(0)->clip_factor < 1 ? 1 : 0;
      }
      EXPECT_EQ(r.edit().info().syncs, 6);
      EXPECT_GT(clipped, 0);
      params.Put(r, r.params());
    });
    const std::vector<float> got = params.Whole(1);
    want = shards == 1 ? got : want;
    ExpectNear(got, {want.begin(), want.end()}, 5e-6);
  }
}

// Each replica sends the largest tenth of its shard. The rest counts as zero.
TEST(Edit, DensityATenthEqualsTheDenseSumOfKeptEntries) {
  ShardConfig config;
  config.layer_counts = {40, 203, 61};
  for (const Merging& merging :
       {Merging{{}, Consensus::kNone, false}, Merging{{}, Consensus::kSum, true}}) {
    for (const int shards : {1, 2}) {
      RunReplicas({shards, 3}, config, [&](Replica& r) {
        EditOptions options;
        options.reducer = ReducerKind::kGta;
        options.sparsification_method = Sparsification::kMagnitude;
        options.density = 0.1;
        options.consensus_method = merging.consensus;
        options.normalize = merging.normalize;
        r.Edit(options);
        r.Forward();
        for (int round = 0; round < 3; ++round) {
          const auto drift = [round](int replica, int l, int64_t i) {
            return Noise(replica, round, l, i) / 4;
          };
          const std::vector<float> anchor = r.Anchor();
          r.DriftFromAnchor([&](int l, int64_t i) { return drift(r.replica(), l, i); });
          r.EndStep();
          ASSERT_TRUE(r.Forward());
          for (int l = 0; l < 3; ++l) {
            const SlabLayer& layer = r.shards().slab().layer(l);
            std::vector<Values> kept;
            for (int n = 0; n < 3; ++n) {
              Values deltas;
              for (int64_t i = 0; i < layer.valid; ++i) {
                const float a = anchor[static_cast<size_t>(layer.offset + i)];
                const float theta = a + drift(n, l, layer.first + i);
                deltas.push_back(a - theta);
              }
              kept.push_back(LargestOf(deltas, 0.1));
            }
            const Values mean = MergedReference(merging, kept);
            EXPECT_GT(std::count_if(mean.begin(), mean.end(), [](double x) { return x != 0; }), 0);
            for (int64_t i = 0; i < layer.valid; ++i) {
              const auto at = static_cast<size_t>(layer.offset + i);
              ASSERT_NEAR(r.params()[at], anchor[at] - mean[static_cast<size_t>(i)], 1e-6)
                  << "round " << round << " layer " << l << " element " << i;
            }
          }
        }
      });
    }
  }
}

// ---- Bits --------------------------------------------------------------------------------------

TEST(Edit, AnchorsHaveTheSameBitsAfterEverySync) {
  EditOptions packed = Averaging(), adamw = Weighed();
  packed.reducer = ReducerKind::kGta;
  packed.consensus_method = Consensus::kCount;
  packed.wire_format = WireFormat::kInt8;
  packed.wire_rounding = WireRounding::kStochastic;
  packed.error_feedback = true;
  adamw.outer_optimizer = OuterKind::kAdamw;
  adamw.outer_nesterov = false;
  adamw.outer_lr = 0.05;
  for (const EditOptions& options : {Judged(), packed, adamw}) {
    for (const Grid& grid : kGrids) {
      SCOPED_TRACE(Describe(grid));
      const Rounds run{grid, options};
      std::vector<Collected> anchors(static_cast<size_t>(run.rounds), Collected(grid));
      std::vector<std::vector<uint64_t>> checksums(static_cast<size_t>(grid.ranks()));
      run.Run([&](Replica& r, int round) {
        const EditInfo info = r.edit().info();
        EXPECT_EQ(info.syncs, round + 1);
        EXPECT_EQ(info.last_sync_step, round + 1);
        EXPECT_NE(info.anchor_checksum, 0u);
        anchors[static_cast<size_t>(round)].Put(r, r.Anchor());
        checksums[static_cast<size_t>(r.replica() * grid.shards + r.slot())].push_back(
            info.anchor_checksum);
      });
      for (const Collected& after : anchors) {
        after.ExpectAlike();
      }
      for (size_t rank = 0; rank < checksums.size(); ++rank) {
        EXPECT_EQ(checksums[rank], checksums[rank % static_cast<size_t>(grid.shards)]);
        EXPECT_NE(checksums[rank][0], checksums[rank][1]);
      }
    }
  }
}

TEST(Edit, HowFarTheWorkerRunsAheadChangesNothing) {
  const std::vector<float> want = Rounds{{2, 2}, Weighed()}.Run().Whole(0);
  for (const int prefetch : {0, 2, 9}) {
    for (const int shard_prefetch : {0, 3}) {
      Rounds run{{2, 2}, Weighed()};
      run.options.prefetch = prefetch;
      run.shard_prefetch = shard_prefetch;
      EXPECT_EQ(run.Run().Whole(0), want) << prefetch << " " << shard_prefetch;
    }
  }
}

// ---- Formulas -----------------------------------------------------------------------------------

TEST(Edit, OuterStepsAreThePublishedOnes) {
  ShardConfig config;
  config.layer_counts = {3};
  RunReplicas({1, 1}, config, [](Replica& r) {
    EditOptions options = Averaging();
    options.outer_lr = 0.8;
    options.outer_momentum = 0.85;
    options.outer_nesterov = true;
    std::fill(r.params().begin(), r.params().end(), 1.0f);
    r.Edit(options);
    r.Forward();
    const float deltas[] = {0, 0.5f, 0.25f, -0.1f};
    const float anchors[] = {1, 0.26f, -0.399f, -0.64115f};
    for (int k = 0; k < 4; ++k) {
      r.DriftFromAnchor([&](int, int64_t) { return -deltas[k]; });
      r.EndStep();
      EXPECT_TRUE(r.Forward());
      EXPECT_NEAR(r.params()[1], anchors[k], 1e-6);
    }
  });
}

TEST(Edit, MeanSumAndHeavyBallAreTheirFormulas) {
  const auto mean = [](const Rounds& run, int l, int64_t i) {
    double sum = 0;
    for (int n = 0; n < run.grid.replicas; ++n) {
      sum += run.Drift(n, 0, l, i);
    }
    return sum / run.grid.replicas;
  };
  struct Case {
    const char* name;
    EditOptions options;
    double factor;  // of the mean drift
  };
  EditOptions linear, sum, heavy = Averaging();
  linear.reducer = sum.reducer = ReducerKind::kLinear;
  sum.normalize = false;
  heavy.outer_lr = 0.5;
  heavy.outer_momentum = 0.9;
  for (const Case& c : {Case{"mean, no outer optimizer", linear, 1},
                        Case{"sum, no outer optimizer", sum, 3}, Case{"heavy ball", heavy, 0.5}}) {
    Rounds run{{2, 3}, c.options};
    run.rounds = 1;
    const std::vector<float> got = run.Run().Whole(2);
    size_t at = 0;
    for (int l = 0; l < 4; ++l) {
      for (int64_t i = 0; i < kFourLayers[static_cast<size_t>(l)]; ++i) {
        const double want = Replica::Initial(l, i) + c.factor * mean(run, l, i);
        ASSERT_NEAR(got[at++], want, 1e-6) << c.name;
      }
    }
  }
}

TEST(Edit, AdamwOutsideIsAdamwOnTheCombinedDelta) {
  EditOptions options;
  options.outer_optimizer = OuterKind::kAdamw;
  options.outer_lr = 0.05;
  options.outer_weight_decay = 0.1;
  options.clip_pseudo_grad = 0.5;
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 2}, FourLayers(), [&](Replica& r) {
      r.Edit(options);
      r.Forward();
      // The same for one element, computed in double.
      double anchor = Replica::Initial(3, 0), m = 0, v = 0;
      for (int round = 1; round <= 3; ++round) {
        r.DriftFromAnchor([&](int, int64_t) { return r.replica() == 0 ? 0.1f : 0.3f; });
        r.EndStep();
        ASSERT_TRUE(r.Forward());
        const double grad = -0.2 * r.edit().Report(3)->clip_factor;
        m = 0.9 * m + 0.1 * grad;
        v = 0.999 * v + 0.001 * grad * grad;
        const double step =
            m / (1 - std::pow(0.9, round)) / (std::sqrt(v / (1 - std::pow(0.999, round))) + 1e-8);
        anchor -= 0.05 * (step + 0.1 * anchor);
        r.ForEach(r.params(), [&](int l, int64_t, float& value) {
          if (l == 3) {
            EXPECT_NEAR(value, anchor, 1e-5) << "round " << round;
          }
        });
        EXPECT_EQ(r.params(), r.Anchor());
      }
    });
  }
}

TEST(Edit, LionOutsideIsLionOnTheCombinedDelta) {
  EditOptions options;
  options.outer_optimizer = OuterKind::kLion;
  options.outer_lr = 0.05;
  options.outer_beta1 = 0.5;
  options.outer_beta2 = 0.75;
  options.outer_weight_decay = 0.1;
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 2}, FourLayers(), [&](Replica& r) {
      r.Edit(options);
      r.Forward();
      double anchor = Replica::Initial(3, 0), m = 0;
      // The moment is larger than the delta of the second round, but smaller than that of the
      // third.
      for (const double delta : {0.4, -0.05, -0.3}) {
        r.DriftFromAnchor([&](int, int64_t) { return static_cast<float>(delta); });
        r.EndStep();
        ASSERT_TRUE(r.Forward());
        const double grad = -delta;
        const double mixed = 0.5 * m + 0.5 * grad;
        anchor -= 0.05 * ((mixed > 0 ? 1 : -1) + 0.1 * anchor);
        m = 0.75 * m + 0.25 * grad;
        r.ForEach(r.params(), [&](int l, int64_t, float& value) {
          if (l == 3) {
            EXPECT_NEAR(value, anchor, 1e-5) << "delta " << delta;
          }
        });
        EXPECT_EQ(r.params(), r.Anchor());
      }
    });
  }
}

TEST(Edit, PlainAveragingHasNoAnchor) {
  Collected params({2, 3});
  RunReplicas({2, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(EditOptions());
    EXPECT_FALSE(r.Forward());
    r.ForEach(r.params(), [&](int, int64_t i, float& value) {
      // A replica whose parameters are not finite has no influence.
      value = r.replica() == 2 ? kNan : static_cast<float>(i + 2 * r.replica());
    });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_EQ(r.edit().info().anchor_checksum, 0u);
    EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().CopyAnchor(r.grads().data())));
    EXPECT_THAT(r.edit().Report(0)->weights, testing::ElementsAre(0.5, 0.5, 0));
    r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
      ASSERT_EQ(value, static_cast<float>(i + 1)) << "layer " << l;
    });
  });
}

}  // namespace
}  // namespace entrain
