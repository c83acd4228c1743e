// EDiT end to end: when it exchanges, and what comes of it.

#include "lib/train/layer_sync.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "tests/support/ranks.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<int64_t> kLayers = {37, 8, 50, 1};

ShardConfig Layers(int prefetch = 1) {
  ShardConfig config;
  config.layer_counts = kLayers;
  config.prefetch = prefetch;
  return config;
}

EditOptions Averaging() {  // eta = 1, mu = 0: a ← mean theta
  EditOptions options;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_lr = 1;
  options.outer_momentum = 0;
  return options;
}

EditOptions Whole() {  // everything that this version has
  EditOptions options;
  options.reducer = ReducerKind::kLinear;
  options.pseudo_gradnorm_reduce = true;
  options.clip_pseudo_grad = 0.8;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_nesterov = true;
  return options;
}

// Some numbers of each rank, written while the ranks run and read afterwards.
class Collected {
 public:
  explicit Collected(const Grid& grid) : grid_(grid), slabs_(static_cast<size_t>(grid.ranks())) {}
  void Put(const Replica& r, std::vector<float> slab) {
    slabs_[static_cast<size_t>(r.replica() * grid_.shards + r.slot())] = std::move(slab);
  }
  const std::vector<float>& at(int replica, int slot) const {
    return slabs_[static_cast<size_t>(replica * grid_.shards + slot)];
  }
  // Of one replica, all slots together.
  std::vector<float> Whole(int replica) const {
    std::vector<std::vector<float>> slabs;
    for (int slot = 0; slot < grid_.shards; ++slot) {
      slabs.push_back(at(replica, slot));
    }
    return Assemble(slabs, kLayers);
  }

 private:
  const Grid grid_;
  std::vector<std::vector<float>> slabs_;
};

// Runs rounds in which every replica drifts by Noise(seed of replica, round, layer, element) from
// the anchor, then exchanges; gives the anchors of all ranks at the end.
struct Rounds {
  Grid grid;
  EditOptions options;
  int rounds = 4;
  int shard_prefetch = 1;
  // Changes a drift; by default none.
  std::function<float(int replica, int round, float drift)> change = {};
  // The seed of a replica's drift; by default its number.
  std::function<int(int replica)> seed = {};

  float Drift(int replica, int round, int layer, int64_t i) const {
    const int from = seed ? seed(replica) : replica;
    const float drift = Noise(from, round, layer, i) / 4;
    return change ? change(replica, round, drift) : drift;
  }

  Collected Run(const std::function<void(Replica&, int round)>& after = {}) const {
    Collected anchors(grid);
    RunReplicas(grid, Layers(shard_prefetch), [&](Replica& r) {
      r.Edit(options);
      EXPECT_FALSE(r.Forward());  // creates the anchors
      for (int round = 0; round < rounds; ++round) {
        r.DriftFromAnchor([&](int l, int64_t i) { return Drift(r.replica(), round, l, i); });
        r.EndStep();
        EXPECT_TRUE(r.Forward());
        EXPECT_EQ(r.params(), r.Anchor());
        if (after) {
          after(r, round);
        }
      }
      anchors.Put(r, r.Anchor());
    });
    return anchors;
  }
};

// ---- Equalities ---------------------------------------------------------------------------------

// A gradient that depends on the parameter, the step and the rank's data.
float Gradient(float theta, int rank, int step, int layer, int64_t i) {
  return 0.3f * theta + Noise(rank, step, layer, i);
}

void TrainStep(Replica& r, int step, float lr) {
  const int rank = r.replica() * r.shards().slab().slots() + r.slot();
  std::vector<std::vector<float>> layers;
  ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
  for (int l = 0; l < 4; ++l) {
    ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
    const auto params = r.shards().Wait(l);
    ASSERT_TRUE(params.ok()) << params.status();
    const auto* values = static_cast<const float*>(*params);
    layers.emplace_back(values, values + r.shards().slab().layer(l).full);
    ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
  }
  for (int l = 3; l >= 0; --l) {
    const auto grads = r.shards().Gradients(l);
    ASSERT_TRUE(grads.ok()) << grads.status();
    const std::vector<float>& theta = layers[static_cast<size_t>(l)];
    for (size_t i = 0; i < theta.size(); ++i) {
      static_cast<float*>(*grads)[i] += Gradient(theta[i], rank, step, l, static_cast<int64_t>(i));
    }
    ASSERT_EQ(r.shards().ReduceGradients(l), absl::OkStatus());
  }
  ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
  for (size_t i = 0; i < r.params().size(); ++i) {
    r.params()[i] -= lr * r.grads()[i];
    r.grads()[i] = 0;
  }
  r.EndStep();
}

// Synchronous SGD on the same data, by plain loops in double.
std::vector<double> SynchronousSgd(int ranks, int steps, double lr) {
  std::vector<double> whole;
  for (int l = 0; l < 4; ++l) {
    for (int64_t i = 0; i < kLayers[static_cast<size_t>(l)]; ++i) {
      double theta = Replica::Initial(l, i);
      for (int step = 0; step < steps; ++step) {
        double mean = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          mean += (0.3 * theta + Noise(rank, step, l, i)) / ranks;
        }
        theta -= lr * mean;
      }
      whole.push_back(theta);
    }
  }
  return whole;
}

class Meshes : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  Grid grid() const { return {std::get<0>(GetParam()), std::get<1>(GetParam())}; }
};
INSTANTIATE_TEST_SUITE_P(All, Meshes,
                         testing::Values(std::tuple(1, 2), std::tuple(1, 3), std::tuple(2, 1),
                                         std::tuple(2, 2), std::tuple(2, 3), std::tuple(4, 2)),
                         [](const auto& param) {
                           return absl::StrCat("m", std::get<0>(param.param), "_n",
                                               std::get<1>(param.param));
                         });

TEST_P(Meshes, ExchangingEveryStepEqualsSynchronousSgd) {
  constexpr int kSteps = 12;
  for (const int warmup : {0, 5}) {
    Collected params(grid());
    RunReplicas(grid(), Layers(), [&](Replica& r) {
      EditOptions options = Averaging();
      options.local_sgd_warmup_steps = warmup;
      r.Edit(options);
      for (int step = 0; step < kSteps; ++step) {
        const auto syncing = r.edit().BeginForward(true, true);
        ASSERT_TRUE(syncing.ok()) << syncing.status();
        EXPECT_EQ(*syncing, step > warmup);
        TrainStep(r, step, 0.5f);
      }
      EXPECT_TRUE(r.Forward());
      params.Put(r, r.params());
    });
    const std::vector<double> want = SynchronousSgd(grid().ranks(), kSteps, 0.5);
    for (int replica = 0; replica < grid().replicas; ++replica) {
      const std::vector<float> got = params.Whole(replica);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], 2e-6) << "element " << i << ", warm-up " << warmup;
      }
    }
  }
}

TEST_P(Meshes, AnchorsHaveTheSameBitsInAllReplicas) {
  Rounds run{grid(), Whole()};
  std::vector<std::vector<uint64_t>> checksums(static_cast<size_t>(grid().ranks()));
  const Collected anchors = run.Run([&](Replica& r, int round) {
    const EditInfo info = r.edit().info();
    EXPECT_EQ(info.syncs, round + 1);
    EXPECT_EQ(info.last_sync_step, round + 1);
    EXPECT_NE(info.anchor_checksum, 0u);
    checksums[static_cast<size_t>(r.replica() * grid().shards + r.slot())].push_back(
        info.anchor_checksum);
  });
  for (int replica = 1; replica < grid().replicas; ++replica) {
    for (int slot = 0; slot < grid().shards; ++slot) {
      EXPECT_EQ(anchors.at(replica, slot), anchors.at(0, slot));
      EXPECT_EQ(checksums[static_cast<size_t>(replica * grid().shards + slot)],
                checksums[static_cast<size_t>(slot)]);
    }
  }
  for (const auto& of_rank : checksums) {
    EXPECT_NE(of_rank[0], of_rank[1]);
  }
}

TEST(LayerSync, ShardedIsUnshardedUpToOrderOfSums) {
  const std::vector<float> want = Rounds{{1, 2}, Whole()}.Run().Whole(0);
  for (const int shards : {2, 3, 4}) {
    const std::vector<float> got = Rounds{{shards, 2}, Whole()}.Run().Whole(1);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-6) << shards << " shards, element " << i;
    }
  }
}

TEST(LayerSync, HowFarTheCourierRunsAheadChangesNothing) {
  const std::vector<float> want = Rounds{{2, 2}, Whole()}.Run().Whole(0);
  for (const int prefetch : {0, 2, 9}) {
    for (const int shard_prefetch : {0, 3}) {
      Rounds run{{2, 2}, Whole()};
      run.options.prefetch = prefetch;
      run.shard_prefetch = shard_prefetch;
      EXPECT_EQ(run.Run().Whole(0), want) << prefetch << " " << shard_prefetch;
    }
  }
}

TEST(LayerSync, AloneItIsTheOuterStepOnOnesOwnDelta) {
  // mu, eta, nesterov: b ← mu b + g; a ← a - eta (g + mu b).
  for (const int shards : {1, 2}) {
    Rounds run{{shards, 1}, Averaging()};
    run.options.outer_lr = 0.7;
    run.options.outer_momentum = 0.8;
    run.options.outer_nesterov = true;
    run.options.outer_weight_decay = 0.1;
    const std::vector<float> got = run.Run().Whole(0);
    size_t at = 0;
    for (int l = 0; l < 4; ++l) {
      for (int64_t i = 0; i < kLayers[static_cast<size_t>(l)]; ++i) {
        double a = Replica::Initial(l, i), b = 0;
        for (int round = 0; round < run.rounds; ++round) {
          const double g = -run.Drift(0, round, l, i) + 0.1 * a;
          b = 0.8 * b + g;
          a -= 0.7 * (g + 0.8 * b);
        }
        ASSERT_NEAR(got[at++], a, 2e-6) << "layer " << l << " element " << i;
      }
    }
  }
}

TEST(LayerSync, PublishedOuterSteps) {
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

TEST(LayerSync, OtherCombinations) {
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
      for (int64_t i = 0; i < kLayers[static_cast<size_t>(l)]; ++i) {
        const double want = Replica::Initial(l, i) + c.factor * mean(run, l, i);
        ASSERT_NEAR(got[at++], want, 1e-6) << c.name;
      }
    }
  }
}

TEST(LayerSync, AdamwOutsideIsAdamwOnTheCombinedDelta) {
  EditOptions options;
  options.outer_optimizer = OuterKind::kAdamw;
  options.outer_lr = 0.05;
  options.outer_weight_decay = 0.1;
  options.clip_pseudo_grad = 0.5;
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 2}, Layers(), [&](Replica& r) {
      r.Edit(options);
      r.Forward();
      // One element, in double, beside the whole machinery.
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

TEST(LayerSync, ASpikeIsRejectedAndEqualsAbsenceWhereTheDetectorHasLearnt) {
  EditOptions options = Averaging();
  options.skip_anomaly = true;
  options.ewma_alpha = 0.1;
  options.ewma_warmup_steps = 6;
  options.ewma_threshold = 8;
  RunReplicas({2, 3}, Layers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    for (int round = 0; round < 12; ++round) {
      const bool spike = round == 10 && r.replica() == 1;
      r.DriftFromAnchor([&](int l, int64_t i) {
        // Layer 2 alone goes astray.
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
      // The other two, and nothing of it.
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

TEST(LayerSync, DetectorsLearnAnewWhenAllRejectTwice) {
  EditOptions options = Averaging();
  options.skip_anomaly = true;
  options.ewma_alpha = 0.1;
  options.ewma_warmup_steps = 4;
  RunReplicas({1, 2}, Layers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    std::vector<int64_t> rollbacks;
    for (int round = 0; round < 12; ++round) {
      r.DriftFromAnchor([&](int l, int64_t i) {
        return Noise(r.replica(), round, l, i) * (round < 8 ? 0.1f : 10.0f);  // for good
      });
      r.EndStep();
      ASSERT_TRUE(r.Forward());
      rollbacks.push_back(r.edit().info().rollbacks);
    }
    EXPECT_EQ(rollbacks[7], 0);
    EXPECT_EQ(rollbacks[8], 4);   // all four layers
    EXPECT_EQ(rollbacks[9], 8);   // and again
    EXPECT_EQ(rollbacks[11], 8);  // that was the new level
  });
}

TEST(LayerSync, CompatLeavesRejectedMassOutOfTheMean) {
  for (const bool compat : {false, true}) {
    RunReplicas({1, 2}, Layers(), [&](Replica& r) {
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

TEST(LayerSync, DebugLinesSayWhatWasDecided) {
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
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    EditOptions options = Whole();
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
                  "weight 1, clip factor 1"))));
  EXPECT_THAT(sink.lines, testing::Contains(testing::AllOf(HasSubstr("layer 3, replica 1: norm "),
                                                           HasSubstr("rejected, weight 0"))));
}

TEST(LayerSync, PlainAveragingHasNoAnchor) {
  Collected params({2, 3});
  RunReplicas({2, 3}, Layers(), [&](Replica& r) {
    r.Edit(EditOptions());
    EXPECT_FALSE(r.Forward());
    r.ForEach(r.params(), [&](int, int64_t i, float& value) {
      // A replica whose parameters are not numbers counts for nothing.
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

// ---- Rejection ----------------------------------------------------------------------------------

TEST(LayerSync, AReplicaThatIsNotANumberEqualsItsAbsence) {
  for (const float poison : {kNan, std::numeric_limits<float>::infinity()}) {
    Rounds with{{2, 3}, Whole()};
    with.change = [&](int replica, int, float drift) { return replica == 1 ? poison : drift; };
    Rounds without{{2, 2}, Whole()};
    without.seed = [](int replica) { return replica == 0 ? 0 : 2; };
    const std::vector<float> got =
        with.Run([](Replica& r, int) {
              const LayerReport report = *r.edit().Report(1);
              EXPECT_FALSE(std::isfinite(report.norms[1]));
              EXPECT_EQ(report.weights[1], 0);
              EXPECT_NEAR(report.weights[0] + report.weights[2], 1, 1e-12);
            })
            .Whole(1);
    EXPECT_EQ(got, without.Run().Whole(0));
  }
}

TEST(LayerSync, OneBadShardRejectsTheLayerOfTheWholeReplicaOnly) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    r.Edit(Whole());
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

TEST(LayerSync, AllRejectedRollsBackAndLeavesAnchorAndMomentumAlone) {
  // With and without a round that nobody survives: the rounds after it must not know.
  Rounds plain{{2, 2}, Whole()};
  plain.rounds = 3;
  Rounds disturbed = plain;
  disturbed.rounds = 4;
  disturbed.change = [&](int, int round, float drift) { return round == 1 ? kNan : drift; };
  std::vector<uint64_t> before(4), after(4);
  const auto real_round = [](int round) { return round > 1 ? round - 1 : round; };
  Collected anchors(disturbed.grid);
  RunReplicas(disturbed.grid, Layers(), [&](Replica& r) {
    const auto rank = static_cast<size_t>(2 * r.replica() + r.slot());
    r.Edit(disturbed.options);
    r.Forward();
    for (int round = 0; round < 4; ++round) {
      before[rank] = r.edit().info().anchor_checksum;
      const std::vector<float> anchor = r.Anchor();
      r.DriftFromAnchor([&](int l, int64_t i) {
        return round == 1 ? kNan : plain.Drift(r.replica(), real_round(round), l, i);
      });
      r.EndStep();
      EXPECT_TRUE(r.Forward());
      if (round == 1) {
        EXPECT_EQ(r.Anchor(), anchor);
        EXPECT_EQ(r.params(), anchor);
        EXPECT_EQ(r.edit().info().anchor_checksum, before[rank]);
        EXPECT_THAT(r.edit().Report(0)->weights, testing::Each(0));
      }
    }
    anchors.Put(r, r.Anchor());
  });
  EXPECT_EQ(anchors.Whole(0), plain.Run().Whole(0));
}

// ---- Layers that do not train -------------------------------------------------------------------

TEST(LayerSync, AFrozenLayerIsNeitherExchangedNorCounted) {
  const Rounds all{{2, 2}, Whole()};
  const std::vector<float> whole = all.Run().Whole(0);
  for (const int frozen : {0, 2, 3}) {
    for (const int prefetch : {0, 1, 9}) {
      ShardConfig config = Layers(2);
      config.layer_frozen.assign(kLayers.size(), 0);
      config.layer_frozen[static_cast<size_t>(frozen)] = 1;
      EditOptions options = Whole();
      options.prefetch = prefetch;
      Collected anchors(all.grid);
      RunReplicas(all.grid, config, [&](Replica& r) {
        // What each replica has there stays its own.
        r.ForEach(r.params(), [&](int l, int64_t, float& value) {
          value += l == frozen ? static_cast<float>(r.replica()) : 0.0f;
        });
        r.Edit(options);
        r.Forward();
        for (int round = 0; round < all.rounds; ++round) {
          r.DriftFromAnchor([&](int l, int64_t i) {
            return l == frozen ? 0.0f : all.Drift(r.replica(), round, l, i);
          });
          r.EndStep();
          const uint64_t sync = r.edit().info().bytes_sent_sync;
          const uint64_t shard = r.edit().info().bytes_sent_shard;
          ASSERT_TRUE(*r.edit().BeginForward(true, true));
          ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
          for (int l = 0; l < 4; ++l) {
            ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
            ASSERT_TRUE(r.shards().Wait(l).ok());
          }
          for (int l = 0; l < 4; ++l) {
            ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
          }
          EXPECT_EQ(r.edit().info().syncs, round + 1);
          uint64_t deltas = 0;
          for (int l = 0; l < 4; ++l) {
            deltas += l == frozen ? 0 : 4 * static_cast<uint64_t>(r.shards().slab().layer(l).valid);
          }
          // A standing and three norms; the deltas. Within: four words of the standing and three norms,
          // then one a layer.
          EXPECT_GE(r.edit().info().bytes_sent_sync - sync, 64 + 8 * 3 + deltas);
          EXPECT_LE(r.edit().info().bytes_sent_sync - sync, 64 + 8 * 3 + deltas + 64);
          EXPECT_EQ(r.edit().info().bytes_sent_shard - shard, 8u * 10);
        }
        r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
          if (l == frozen) {
            ASSERT_EQ(value, Replica::Initial(l, i) + static_cast<float>(r.replica()));
          }
        });
        EXPECT_TRUE(absl::IsInvalidArgument(r.edit().Report(frozen).status()));
        EXPECT_EQ(r.edit().Report(1)->norms.size(), 2u);
        EXPECT_EQ(r.params(), r.Anchor());
        anchors.Put(r, r.Anchor());
      });
      // The layers that train come out as if the frozen one trained too.
      const std::vector<float> got = anchors.Whole(1);
      size_t at = 0;
      for (int l = 0; l < 4; ++l) {
        for (int64_t i = 0; i < kLayers[static_cast<size_t>(l)]; ++i, ++at) {
          if (l != frozen) {
            ASSERT_EQ(got[at], whole[at]) << "frozen " << frozen << ", layer " << l;
          }
        }
      }
    }
  }
}

TEST(LayerSync, AModelFrozenWholeIsRefused) {
  ShardConfig config = Layers();
  config.layer_counts = {3, 0};
  config.layer_frozen = {1, 0};
  RunReplicas({1, 1}, config, [](Replica& r) {
    const absl::Status status = LayerSync::Create(r.mesh(), &r.shards(), Averaging()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("there is nothing to exchange"));
  });
}

// ---- When ---------------------------------------------------------------------------------------

TEST(LayerSync, WarmupIsSynchronousThenLocal) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_warmup_steps = 2;
    options.local_sgd_sync_interval = 3;
    r.Edit(options);
    std::vector<int> exchanged;
    for (int step = 0; step < 9; ++step) {
      const EditInfo before = r.edit().info();
      EXPECT_EQ(before.in_warmup, step < 2);
      if (*r.edit().BeginForward(true, true)) {
        exchanged.push_back(step);
      }
      EXPECT_EQ(r.shards().gradient_scope(),
                step < 2 ? GradientScope::kGlobal : GradientScope::kLocal);
      const uint64_t sent = r.shards().stats().bytes_sent_sync;
      TrainStep(r, step, 0.1f);
      EXPECT_EQ(r.shards().stats().bytes_sent_sync > sent, step < 2) << "step " << step;
      if (exchanged.empty()) {
        EXPECT_EQ(r.edit().info().bytes_sent_sync, 0u);
        EXPECT_EQ(r.edit().info().bytes_sent_shard, 0u);
      }
      EXPECT_EQ(r.edit().info().steps, step + 1);
      EXPECT_EQ(r.edit().info().last_sync_step, step < 2 ? -1 : 2 + (step - 2) / 3 * 3);
    }
    EXPECT_THAT(exchanged, testing::ElementsAre(5, 8));
    EXPECT_EQ(r.edit().info().syncs, 2);
  });
}

TEST(LayerSync, ASecondForwardAtOneStepExchangesNothing) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    r.Edit(Whole());
    r.Forward();
    r.DriftFromAnchor([&](int, int64_t) { return 0.5f; });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    const uint64_t checksum = r.edit().info().anchor_checksum;
    EXPECT_FALSE(r.Forward());
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    EXPECT_FALSE(r.Forward());
    EXPECT_EQ(r.edit().info().anchor_checksum, checksum);
    EXPECT_EQ(r.edit().info().syncs, 1);
  });
}

TEST(LayerSync, EvaluationAndLaterMicrobatchesNeverExchange) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.gradient_accumulation_steps = 2;
    r.Edit(options);
    r.Forward();
    EXPECT_FALSE(r.Forward(true, false));
    r.EndStep();
    EXPECT_FALSE(r.Forward(false));
    EXPECT_TRUE(r.Forward());
    EXPECT_FALSE(r.Forward(true, false));
    EXPECT_THAT(std::string(r.edit().BeginForward(true, false).status().message()),
                HasSubstr("micro-batch 3 of step 1, but gradient_accumulation_steps is 2"));
    r.EndStep();
    EXPECT_FALSE(r.Forward(true, false));
    EXPECT_TRUE(r.Forward(true, true));
  });
}

TEST(LayerSync, AStepHasAsManyMicrobatchesAsTheOptionSays) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.gradient_accumulation_steps = 3;
    r.Edit(options);
    const auto expect_refused = [&r](const char* says) {
      const absl::Status status = r.edit().EndStep();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(says));
      EXPECT_EQ(r.edit().info().steps, 0);
    };
    expect_refused("0 of the step's micro-batches, but gradient_accumulation_steps is 3");
    r.Forward();
    r.Forward(false);  // evaluation is none
    r.Forward(true, false);
    expect_refused("end_step 0: begin_forward was called for 2 of");
    r.Forward();  // the step from its beginning
    expect_refused("for 1 of");
    r.Forward(true, false);
    r.Forward(true, false);
    r.EndStep();
    EXPECT_EQ(r.edit().info().steps, 1);
  });
}

TEST(LayerSync, RequestsExchangeBetweenIntervalsOnce) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = 100;
    options.local_sgd_warmup_steps = 1;
    r.Edit(options);
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    EXPECT_FALSE(r.Forward());  // warm-up: dropped
    r.EndStep();
    EXPECT_FALSE(r.Forward());  // the anchors
    r.EndStep();
    EXPECT_FALSE(r.Forward());
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    EXPECT_FALSE(r.Forward(false));
    EXPECT_TRUE(r.Forward());
    r.EndStep();
    EXPECT_FALSE(r.Forward());
  });
}

// ---- Traffic and overlap ------------------------------------------------------------------------

TEST(LayerSync, ExchangesCostTheirPayload) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    r.Edit(Whole());
    r.Forward();
    r.EndStep();
    EXPECT_EQ(r.edit().info().bytes_sent_sync, 0u);
    EXPECT_TRUE(r.Forward());
    int64_t valid = 0, shared = 0;
    for (int l = 0; l < 4; ++l) {
      valid += r.shards().slab().layer(l).valid;
      shared += 1;
    }
    const EditInfo info = r.edit().info();
    // Across: one record of a standing and four norms, and the deltas once.
    EXPECT_GE(info.bytes_sent_sync, 64u + 8 * 4 + 4u * static_cast<uint64_t>(valid));
    EXPECT_LE(info.bytes_sent_sync, 64u + 8 * 4 + 4u * static_cast<uint64_t>(valid) + 64);
    // Within: four norms and four words of the standing, then one for each layer's clip factor.
    EXPECT_EQ(info.bytes_sent_shard, 8u * 8 + 8u * static_cast<uint64_t>(shared));
  });
}

TEST(LayerSync, GathersAheadWaitForTheExchangeOfTheirLayer) {
  RunReplicas({2, 2}, Layers(3), [](Replica& r) {
    EditOptions options = Averaging();
    options.prefetch = 1;
    r.Edit(options);
    r.Forward();
    for (int round = 0; round < 20; ++round) {
      r.DriftFromAnchor([&](int, int64_t) { return static_cast<float>(2 * r.replica() + round); });
      const std::vector<float> anchor = r.Anchor();
      r.EndStep();
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
      for (int l = 0; l < 4; ++l) {
        // No WaitLayer: the gather waits for the exchange by itself.
        const auto params = r.shards().Wait(l);
        ASSERT_TRUE(params.ok()) << params.status();
        const SlabLayer& shape = r.shards().slab().layer(l);
        for (int64_t i = 0; i < shape.valid; ++i) {
          ASSERT_NEAR(static_cast<const float*>(*params)[shape.first + i],
                      anchor[static_cast<size_t>(shape.offset + i)] + static_cast<float>(1 + round),
                      1e-3)
              << "round " << round << " layer " << l;
        }
        for (int64_t i = 0; i < shape.full; ++i) {
          ASSERT_TRUE(std::isfinite(static_cast<const float*>(*params)[i]));
        }
      }
      for (int l = 0; l < 4; ++l) {
        ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
      }
    }
  });
}

TEST(LayerSync, TheCourierRunsAsFarAheadAsItMay) {
  for (const int prefetch : {0, 1, 2}) {
    RunReplicas({2, 2}, Layers(), [&](Replica& r) {
      EditOptions options = Averaging();
      options.prefetch = prefetch;
      r.Edit(options);
      r.Forward();
      r.EndStep();
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      // The first layer that is not done, as the refusal to end the step names it.
      const auto reaches = [&](int layer) {
        const std::string says = absl::StrCat("exchange of layer ", layer);
        const Deadline give_up = Deadline::After(10 * kSecond);
        while (r.edit().EndStep().message().find(says) == absl::string_view::npos) {
          ASSERT_FALSE(give_up.Passed(Clock::Real().Now())) << "prefetch " << prefetch;
        }
      };
      reaches(prefetch);
      ASSERT_EQ(r.edit().WaitLayer(0), absl::OkStatus());
      reaches(prefetch + 1);
      for (int l = 0; l < 4; ++l) {
        ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
      }
      EXPECT_GT(r.edit().info().sync_ns, 0u);
      EXPECT_GT(r.edit().info().exposed_ns, 0u);
    });
  }
}

TEST(LayerSync, CopiesAlongTheContextAxisCountOnceInNorms) {
  RunRanks(4, [](const std::shared_ptr<Communicator>& comm) {
    MeshConfig config;
    config.lengths[static_cast<size_t>(Axis::kContext)] = 2;
    const auto mesh = Mesh::Create(comm, config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    Replica r(*mesh, Layers());
    r.Edit(Whole());
    r.Forward();
    r.DriftFromAnchor([&](int, int64_t) { return r.replica() == 0 ? 0.25f : 0.5f; });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_NEAR(r.edit().Report(2)->norms[0], 0.25 * std::sqrt(50.0), 1e-6);
    EXPECT_NEAR(r.edit().Report(2)->norms[1], 0.5 * std::sqrt(50.0), 1e-6);
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// A model split by tensor and by pipeline stage, and sharded: norms, weights and clip factors are those of whole modules, and what is
// replicated stays alike.
TEST(LayerSync, ModelsSplitByTensorAndStageAreJudgedWhole) {
  RunRanks(16, [](const std::shared_ptr<Communicator>& comm) {
    MeshConfig mesh_config;
    for (const Axis axis : {Axis::kTensor, Axis::kPipeline, Axis::kShard}) {
      mesh_config.lengths[static_cast<size_t>(axis)] = 2;
    }
    const auto mesh = Mesh::Create(comm, mesh_config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig config;
    // Two modules a stage: a matrix of which each tensor rank has 31 elements, and a norm's 9 weights on both.
    config.layer_counts = {31, 9};
    config.layer_replicated = {0, 1};
    Replica r(*mesh, config);
    EditOptions options = Whole();
    options.clip_pseudo_grad = 0.3;
    r.Edit(options);
    r.Forward();
    const int stage = (*mesh)->coordinate(Axis::kPipeline);
    const int part = (*mesh)->coordinate(Axis::kTensor);
    const auto drift = [](int replica, int at_stage, int at_part, int l, int64_t i) {
      return Noise(replica, at_stage, l == 0 ? at_part : 0, 100 * l + i) / 4;
    };
    r.DriftFromAnchor([&](int l, int64_t i) { return drift(r.replica(), stage, part, l, i); });
    const std::vector<float> before = r.Anchor();
    r.EndStep();
    ASSERT_TRUE(r.Forward());
    for (int l = 0; l < 2; ++l) {
      const LayerReport report = *r.edit().Report(l);
      // The whole module, element by element, as one process would have it.
      double norms[2] = {0, 0}, combined = 0;
      for (int s = 0; s < 2; ++s) {
        for (int t = 0; t < (l == 0 ? 2 : 1); ++t) {
          for (int64_t i = 0; i < config.layer_counts[static_cast<size_t>(l)]; ++i) {
            const double d[2] = {drift(0, s, t, l, i), drift(1, s, t, l, i)};
            norms[0] += d[0] * d[0];
            norms[1] += d[1] * d[1];
            const double mean = report.weights[0] * d[0] + report.weights[1] * d[1];
            combined += mean * mean;
          }
        }
      }
      EXPECT_NEAR(report.norms[0], std::sqrt(norms[0]), 1e-5);
      EXPECT_NEAR(report.norms[1], std::sqrt(norms[1]), 1e-5);
      const double other = std::exp(std::sqrt(norms[0]) - std::sqrt(norms[1]));
      EXPECT_NEAR(report.weights[1], other / (1 + other), 1e-5);
      EXPECT_LT(report.clip_factor, 1);
      EXPECT_NEAR(report.clip_factor, 0.3 / (std::sqrt(combined) + 1e-6), 1e-5);
    }
    // The replicated module has the same bits along the tensor axis.
    const SlabLayer& norm = r.shards().slab().layer(1);
    std::vector<float> mine(r.params().begin() + norm.offset,
                            r.params().begin() + norm.offset + norm.shard);
    std::vector<float> both(2 * mine.size());
    ASSERT_EQ(
        (*mesh)->comm(Axis::kTensor)->AllGather(mine.data(), both.data(), norm.shard, DType::kF32),
        absl::OkStatus());
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), both.begin()));
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), both.begin() + norm.shard));
    EXPECT_NE(mine[0], before[static_cast<size_t>(norm.offset)]);
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(LayerSync, TensorRanksThatDisagreeAboutReplicasAreNamed) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    MeshConfig mesh_config;
    mesh_config.lengths[static_cast<size_t>(Axis::kTensor)] = 2;
    const auto mesh = Mesh::Create(comm, mesh_config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig config = Layers();
    config.layer_replicated = {0, 0, comm->rank() == 0 ? uint8_t{1} : uint8_t{0}, 0};
    Replica r(*mesh, config);
    const absl::Status status = LayerSync::Create(*mesh, &r.shards(), Averaging()).status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("elements of replicated layer 2: 50 on rank 0, 0 on rank 1"));
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(LayerSync, TwoObjectsInOneProcessDoNotMix) {
  RunMesh({2, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Replica one(mesh, Layers()), two(mesh, Layers());
    one.Edit(Averaging());
    EditOptions options = Averaging();
    options.local_sgd_warmup_steps = 1;
    two.Edit(options);
    for (int step = 0; step < 6; ++step) {
      const auto first = one.edit().BeginForward(true, true);
      const auto second = two.edit().BeginForward(true, true);
      ASSERT_TRUE(first.ok() && second.ok());
      EXPECT_EQ(*first, step > 0);
      EXPECT_EQ(*second, step > 1);
      TrainStep(two, step, 0.25f);
      TrainStep(one, step, 0.5f);
    }
    one.DestroyEdit();
    EXPECT_TRUE(two.Forward());
  });
}

// ---- Errors -------------------------------------------------------------------------------------

TEST(LayerSync, OptionsThatDifferAreNamedOnAllRanks) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = r.replica() == 1 ? 8 : 4;
    const absl::Status status = LayerSync::Create(r.mesh(), &r.shards(), options).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("edit: local_sgd_sync_interval: 4 on rank 0, 8 on rank 1 of the sync"));
  });
}

TEST(LayerSync, AnchorsThatDifferFailLoudlyWithBothChecksums) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    // Nobody broadcast: one replica begins elsewhere, by one bit in one shard.
    if (r.replica() == 1 && r.slot() == 0) {
      r.params()[3] = std::nextafter(r.params()[3], 9.0f);
    }
    r.Edit(Averaging());
    r.Forward();
    absl::Status status;
    // The other slots' anchors are alike; their ranks learn of it in this exchange or the next.
    for (int exchange = 0; exchange < (r.slot() == 0 ? 1 : 2) && status.ok(); ++exchange) {
      status.Update(r.edit().EndStep());
      status.Update(r.edit().BeginForward(true, true).status());
      for (int l = 0; l < 4; ++l) {
        status.Update(r.edit().WaitLayer(l));
      }
    }
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("anchors differ: checksum "));
    if (r.slot() == 0) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::ContainsRegex("edit: exchange 1: rendezvous: anchors differ: checksum "
                                         "[0-9a-f]{16} on replica 0, [0-9a-f]{16} on replica 1"));
    }
    EXPECT_EQ(r.edit().EndStep().code(), status.code());
  });
}

TEST(LayerSync, MisuseIsNamedAndHarmless) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    r.Edit(Averaging());
    EXPECT_THAT(
        std::string(LayerSync::Create(r.mesh(), &r.shards(), Averaging()).status().message()),
        HasSubstr("another EDiT object"));
    EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().CopyAnchor(r.grads().data())));
    r.Forward();
    EXPECT_THAT(std::string(r.edit().Report(0).status().message()),
                HasSubstr("no exchange of layer 0 yet"));
    EXPECT_THAT(std::string(r.edit().WaitLayer(4).message()),
                HasSubstr("layer: 4 is not in [0, 4)"));
    r.EndStep();
    ASSERT_TRUE(r.shards().Wait(2).ok());
    EXPECT_THAT(std::string(r.edit().BeginForward(true, true).status().message()),
                HasSubstr("layer 2 is gathered; release it first"));
    for (const int layer : {2, 3}) {  // and what was gathered ahead
      ASSERT_EQ(r.shards().Release(layer), absl::OkStatus());
    }
    ASSERT_TRUE(*r.edit().BeginForward(true, true));
    ASSERT_EQ(r.edit().WaitLayer(1), absl::OkStatus());
    EXPECT_THAT(std::string(r.edit().EndStep().message()),
                testing::ContainsRegex("nobody has waited for the exchange of layer [23]"));
    EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().Report(0).status()));
    for (int l = 0; l < 4; ++l) {
      ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
    }
    EXPECT_EQ(r.edit().EndStep(), absl::OkStatus());
  });
}

TEST(LayerSync, AReplicaThatNeverComesIsATimeout) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.timeout_ns = r.replica() == 0 ? 300 * kMillisecond : 0;
    r.Edit(options);
    r.Forward();
    r.EndStep();
    if (r.replica() == 0) {
      const int64_t start = Clock::Real().Now();
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      const absl::Status status = r.edit().WaitLayer(0);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("edit: exchange 1: rendezvous: "));
      EXPECT_LT(Clock::Real().Now() - start, 5 * kSecond);
    }
    r.MeetAll();  // the mesh's own communicators are none the worse
  });
}

TEST(LayerSync, AReplicaThatLeavesEndsTheOthersWaits) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    r.Edit(Averaging());
    r.Forward();
    r.EndStep();
    r.MeetAll();
    if (r.replica() == 1) {
      ASSERT_TRUE(*r.edit().BeginForward(true, true));
      r.DestroyEdit();  // in the middle of an exchange
      return;
    }
    ASSERT_TRUE(r.edit().BeginForward(true, true).ok());
    ASSERT_EQ(r.shards().Gather(3), absl::OkStatus());  // held back until its exchange
    absl::Status status;
    for (int l = 0; l < 4; ++l) {
      status.Update(r.edit().WaitLayer(l));
    }
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("edit: "));
    EXPECT_FALSE(r.shards().Wait(3).ok());
  });
}

}  // namespace
}  // namespace entrain
