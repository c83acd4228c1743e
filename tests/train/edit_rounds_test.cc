// Rounds of the whole implementation, compared with rounds in double precision computed from the
// published rules.

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "lib/train/edit/layer_sync.h"
#include "tests/support/golden.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using Json = nlohmann::json;

void ExpectReport(const LayerReport& report, const Json& want) {
  for (size_t n = 0; n < report.norms.size(); ++n) {
    const double norm = Number(want["norm"][n]);
    if (std::isnan(norm)) {
      EXPECT_FALSE(std::isfinite(report.norms[n]));
    } else {
      EXPECT_NEAR(report.norms[n], norm, 1e-5);
    }
    EXPECT_NEAR(report.weights[n], Number(want["weight"][n]), 1e-5);
  }
  EXPECT_NEAR(report.clip_factor, Number(want["clip_factor"]), 1e-5);
}

void RunRounds(Replica& r, const Json& golden) {
  EditOptions options;
  options.reducer = ReducerKind::kLinear;
  options.pseudo_gradnorm_reduce = true;
  options.weight_softmax_temperature = golden["temperature"];
  options.clip_pseudo_grad = golden["clip"];
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_nesterov = true;
  options.outer_lr = golden["eta"];
  options.outer_momentum = golden["mu"];
  const auto replica = static_cast<size_t>(r.replica());
  r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
    value = golden["initial"][static_cast<size_t>(l)][static_cast<size_t>(i)];
  });
  r.Edit(options);
  r.Forward();
  for (size_t round = 0; round < golden["rounds"].size(); ++round) {
    const Json& want = golden["rounds"][round];
    r.DriftFromAnchor([&](int l, int64_t i) {
      return static_cast<float>(
          Number(golden["drifts"][round][replica][static_cast<size_t>(l)][static_cast<size_t>(i)]));
    });
    r.EndStep();
    ASSERT_TRUE(r.Forward());
    for (int l = 0; l < 2; ++l) {
      ExpectReport(*r.edit().Report(l), want[static_cast<size_t>(l)]);
    }
    r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
      const Json& anchor = want[static_cast<size_t>(l)]["anchor_after"];
      ASSERT_NEAR(value, Number(anchor[static_cast<size_t>(i)]), 1e-5)
          << "round " << round << " layer " << l << " element " << i;
    });
  }
}

TEST(EditRounds, WeightsClipAndOuterStepsMatchPublishedRules) {
  const Json golden = Golden("edit_rounds.json");
  ShardConfig config;
  config.layer_counts = golden["sizes"].get<std::vector<int64_t>>();
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 4}, config, [&](Replica& r) { RunRounds(r, golden); });
  }
}

// Returns options for the same numbers, with a detector for each layer and replica that judges the
// norms.
EditOptions OptionsOf(const Json& variant) {
  EditOptions options;
  options.reducer = ReducerKind::kLinear;
  options.pseudo_gradnorm_reduce = variant["norm_weights"];
  options.weight_softmax_temperature = variant["softmax_temperature"];
  options.skip_anomaly = variant["skip_anomaly"];
  options.ewma_alpha = variant["ewma_alpha"];
  options.ewma_warmup_steps = variant["ewma_warmup"];
  options.ewma_threshold = variant["ewma_threshold"];
  options.ewma_as_published = true;
  options.clip_pseudo_grad = variant["clip_pseudo_grad"];
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_nesterov = variant["outer"] == "nesterov";
  options.outer_lr = variant["eta"];
  options.outer_momentum = variant["mu"];
  return options;
}

void ExpectModule(const LayerReport& report, const Json& want, size_t me) {
  for (size_t n = 0; n < report.norms.size(); ++n) {
    const double norm = Number(want["norm"][n]);
    if (std::isfinite(norm)) {
      EXPECT_NEAR(report.norms[n], norm, 1e-5);
    } else {
      EXPECT_FALSE(std::isfinite(report.norms[n]));
    }
    EXPECT_NEAR(report.weights[n], Number(want["weight"][n]), 1e-5);
  }
  if (want["z"][me].is_null()) {
    EXPECT_TRUE(std::isinf(report.score.z));
  } else {
    EXPECT_NEAR(report.score.z, Number(want["z"][me]), 1e-4);
  }
  EXPECT_NEAR(report.score.limit,
              want["threshold"][me].is_null() ? 0 : Number(want["threshold"][me]), 1e-5);
  EXPECT_EQ(report.accepted, want["accepted"][me].get<bool>());
  EXPECT_EQ(report.rolled_back, !want["outer_step"].get<bool>());
  EXPECT_NEAR(report.clip_factor, Number(want["clip_factor"]), 1e-5);
}

TEST(EditRounds, DetectorWeightsClipAndOuterStepMatchTheSpecifiedRounds) {
  const Json golden = Golden("reducers.json")["edit"];
  ShardConfig config;
  config.layer_counts = golden["sizes"].get<std::vector<int64_t>>();
  ASSERT_FALSE(golden["variants"].empty());
  for (const Json& variant : golden["variants"]) {
    for (const int shards : {1, 2}) {
      RunReplicas({shards, 4}, config, [&](Replica& r) {
        const auto me = static_cast<size_t>(r.replica());
        r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
          value = golden["initial"][static_cast<size_t>(l)][static_cast<size_t>(i)];
        });
        r.Edit(OptionsOf(variant));
        r.Forward();
        const Json& drifts = golden["drifts"][variant["drift"].get<std::string>()];
        for (size_t round = 0; round < variant["rounds"].size(); ++round) {
          r.DriftFromAnchor([&](int l, int64_t i) {
            return static_cast<float>(
                Number(drifts[round][me][static_cast<size_t>(l)][static_cast<size_t>(i)]));
          });
          r.EndStep();
          ASSERT_TRUE(r.Forward());
          const Json& modules = variant["rounds"][round]["modules"];
          for (int l = 0; l < 2; ++l) {
            ExpectModule(*r.edit().Report(l), modules[static_cast<size_t>(l)], me);
          }
          r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
            const Json& anchor = modules[static_cast<size_t>(l)]["anchor_after"];
            ASSERT_NEAR(value, Number(anchor[static_cast<size_t>(i)]), 1e-5)
                << "round " << round << " layer " << l << " element " << i;
          });
        }
      });
    }
  }
}

// Four replicas with the pseudo-gradients 1, -2, 3 and -4 in every element. eta = 1.
TEST(EditRounds, ReducersMatchTheSpecifiedVectors) {
  struct Case {
    ReducerKind reducer;
    Consensus consensus;
    float want;
  };
  for (const Case& c : {Case{ReducerKind::kLinear, Consensus::kNone, -0.5f},
                        Case{ReducerKind::kGta, Consensus::kNone, -0.5f},
                        Case{ReducerKind::kGta, Consensus::kSum, -3.0f},
                        Case{ReducerKind::kGta, Consensus::kCount, 2.0f}}) {
    ShardConfig config;
    config.layer_counts = {13, 4};
    for (const int shards : {1, 2}) {
      RunReplicas({shards, 4}, config, [&](Replica& r) {
        EditOptions options;
        options.reducer = c.reducer;
        options.consensus_method = c.consensus;
        r.Edit(options);
        r.Forward();
        const std::vector<float> before = r.Anchor();
        const auto k = static_cast<float>(r.replica());
        r.DriftFromAnchor([&](int, int64_t) { return r.replica() % 2 == 0 ? -(k + 1) : k + 1; });
        r.EndStep();
        ASSERT_TRUE(r.Forward());
        size_t at = 0;
        for (int l = 0; l < 2; ++l) {
          const SlabLayer& layer = r.shards().slab().layer(l);
          for (int64_t i = 0; i < layer.valid; ++i) {
            at = static_cast<size_t>(layer.offset + i);
            ASSERT_NEAR(r.params()[at], before[at] - c.want, 1e-5);
          }
        }
      });
    }
  }
}

// Values that are not sent are paid later. With error feedback, after some rounds the anchors are
// as near to those of exact exchanges as a few steps of the format.
TEST(EditRounds, SparseAndQuantisedExchangesPayWhatTheyOwe) {
  struct Case {
    const char* name;
    Sparsification sparsification;
    double density;
    WireFormat wire;
    double bytes;  // upper limit, as a part of exact exchanges
  };
  ShardConfig config;
  config.layer_counts = {4000, 1000};
  constexpr int kRounds = 12;
  for (const Case& c :
       {Case{"exact", Sparsification::kNone, 1, WireFormat::kFull, 1},
        Case{"bf16", Sparsification::kNone, 1, WireFormat::kBF16, 0.55},
        Case{"int8", Sparsification::kNone, 1, WireFormat::kInt8, 0.32},
        Case{"int4", Sparsification::kNone, 1, WireFormat::kInt4, 0.2},
        Case{"magnitude", Sparsification::kMagnitude, 0.25, WireFormat::kFull, 0.55}}) {
    RunReplicas({2, 2}, config, [&](Replica& r) {
      EditOptions options;
      options.reducer = ReducerKind::kGta;
      options.sparsification_method = c.sparsification;
      options.density = c.density;
      options.wire_format = c.wire;
      options.error_feedback =
          c.sparsification != Sparsification::kNone || c.wire != WireFormat::kFull;
      r.Edit(options);
      r.Forward();
      const std::vector<float> start = r.Anchor();
      for (int round = 0; round < kRounds; ++round) {
        // The drift has the same direction in every round, and differs a little between replicas.
        r.DriftFromAnchor([&](int l, int64_t i) {
          return 0.1f * Noise(l, i) + 0.01f * Noise(r.replica(), round, l, i);
        });
        r.EndStep();
        ASSERT_TRUE(r.Forward());  // compares the last round's anchors
      }
      double off = 0, went = 0;
      size_t at = 0;
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        const SlabLayer& layer = r.shards().slab().layer(l);
        at = static_cast<size_t>(layer.offset + i - layer.first);
        double want = start[at];
        for (int round = 0; round < kRounds; ++round) {
          want += 0.1 * Noise(l, i) + 0.005 * (Noise(0, round, l, i) + Noise(1, round, l, i));
        }
        off += (value - want) * (value - want);
        went += (want - start[at]) * (want - start[at]);
      });
      // With kMagnitude at a quarter, about three rounds of twelve are owed.
      const double limit = c.sparsification != Sparsification::kNone ? 0.3
                           : c.wire == WireFormat::kInt4             ? 0.05
                                                                     : 0.01;
      EXPECT_LT(std::sqrt(off / went), limit) << c.name;
      const double exact = kRounds * (2500 * 4 + 64 + 2 * 8);
      EXPECT_LT(static_cast<double>(r.edit().info().bytes_sent_sync), c.bytes * exact * 1.05)
          << c.name;
    });
  }
}

}  // namespace
}  // namespace entrain
