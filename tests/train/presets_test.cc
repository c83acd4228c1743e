// CO2 and Streaming DiLoCo as sets of EDiT's options: fragments with their own schedules, and
// exchanges that finish late. Compared with a plain simulation in double.

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/fragments.h"
#include "lib/train/edit/layer_sync.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

const std::vector<int64_t> kCounts = {37, 8, 50, 1};

ShardConfig Layers() {
  ShardConfig config;
  config.layer_counts = kCounts;
  return config;
}

EditOptions Outer(double lr, double momentum) {
  EditOptions options;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_lr = lr;
  options.outer_momentum = momentum;
  return options;
}

EditOptions Co2(int64_t interval) {
  EditOptions options = Outer(0.7, 0.6);
  options.local_sgd_sync_interval = interval;
  options.overlap_steps = static_cast<int32_t>(interval);
  options.overlap_merge = OverlapMerge::kRestart;
  options.staleness_penalty = true;
  options.outer_momentum_clip = 0.9;
  return options;
}

EditOptions StreamingDiLoCo(int64_t interval, int32_t steps) {
  EditOptions options = Outer(0.4, 0.8);
  options.outer_nesterov = true;
  options.local_sgd_sync_interval = interval;
  options.fragments = 3;
  options.fragment_pattern = FragmentPattern::kStrided;
  options.overlap_steps = steps;
  options.overlap_merge = OverlapMerge::kMix;
  options.overlap_mix = 0.5;
  return options;
}

// Makes an inner step that pulls theta towards a value of the replica, so that its start matters.
double InnerStep(double theta, int replica, int64_t step, int layer, int64_t element) {
  return theta + 0.2 * (Noise(replica, layer, element) - theta) +
         0.05 * Noise(step, replica, layer, element);
}

// One layer of all replicas.
struct Simulated {
  std::vector<double> a, b, base;                // base: the anchor at the begin of the exchange
  std::vector<std::vector<double>> live, taken;  // by replica
  int64_t begun = -1;
  double last = 0, sum = 0;
  int steps = 0;
};

double Length(const std::vector<double>& x) {
  double square = 0;
  for (const double value : x) {
    square += value * value;
  }
  return std::sqrt(square);
}

void Merge(const EditOptions& o, Simulated* l) {
  const size_t replicas = l->live.size();
  std::vector<double> mean(l->a.size(), 0), step(l->a.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    for (size_t n = 0; n < replicas; ++n) {
      mean[i] += (l->base[i] - l->taken[n][i]) / static_cast<double>(replicas);
    }
  }
  const double gap = o.staleness_penalty && l->sum > 0 ? 1 + l->last / (l->sum / l->steps) : 1;
  for (size_t i = 0; i < mean.size(); ++i) {
    l->b[i] = o.outer_momentum * l->b[i] + mean[i] / gap;
  }
  if (o.outer_momentum_clip > 0) {
    const double factor = std::min(1.0, o.outer_momentum_clip / (Length(l->b) + 1e-6));
    for (double& value : l->b) {
      value *= factor;
    }
  }
  for (size_t i = 0; i < mean.size(); ++i) {
    step[i] =
        o.outer_lr * (o.outer_nesterov ? mean[i] / gap + o.outer_momentum * l->b[i] : l->b[i]);
    l->a[i] -= step[i];
  }
  l->last = Length(step);
  l->sum += l->last;
  ++l->steps;
  for (size_t n = 0; n < replicas; ++n) {
    for (size_t i = 0; i < mean.size(); ++i) {
      double& live = l->live[n][i];
      switch (o.overlap_merge) {
        case OverlapMerge::kAdd:
          live = l->a[i] + (live - l->taken[n][i]);
          break;
        case OverlapMerge::kMix:
          live = o.overlap_mix * live + (1 - o.overlap_mix) * l->a[i];
          break;
        case OverlapMerge::kRestart:
          live = l->a[i] + (live - l->base[i]);
          break;
      }
    }
  }
  l->begun = -1;
}

std::vector<Simulated> Begin(int replicas) {
  std::vector<Simulated> model(kCounts.size());
  for (size_t l = 0; l < model.size(); ++l) {
    for (int64_t i = 0; i < kCounts[l]; ++i) {
      model[l].a.push_back(Replica::Initial(static_cast<int>(l), i));
    }
    model[l].b.assign(model[l].a.size(), 0);
    model[l].live.assign(static_cast<size_t>(replicas), model[l].a);
  }
  return model;
}

void Step(const EditOptions& o, const FragmentSchedule& schedule, int64_t step,
          std::vector<Simulated>* model) {
  for (size_t l = 0; l < model->size(); ++l) {
    for (size_t n = 0; n < (*model)[l].live.size(); ++n) {
      for (size_t i = 0; i < (*model)[l].a.size(); ++i) {
        double& live = (*model)[l].live[n][i];
        live = InnerStep(live, static_cast<int>(n), step, static_cast<int>(l),
                         static_cast<int64_t>(i));
      }
    }
    Simulated& layer = (*model)[l];
    if (layer.begun >= 0 && step == layer.begun + o.overlap_steps) {
      Merge(o, &layer);
    }
  }
  for (const int l : schedule.Due(step)) {
    Simulated& layer = (*model)[static_cast<size_t>(l)];
    layer.begun = step;
    layer.base = layer.a;
    layer.taken = layer.live;
    if (o.overlap_merge == OverlapMerge::kRestart) {
      layer.live.assign(layer.live.size(), layer.a);
    }
    if (o.overlap_steps == 0) {
      Merge(o, &layer);
      layer.live.assign(layer.live.size(), layer.a);
    }
  }
}

class Presets : public ::testing::TestWithParam<std::tuple<Grid, std::string>> {};

TEST_P(Presets, FollowTheSimulation) {
  const auto& [grid, name] = GetParam();
  EditOptions options = name == "co2"         ? Co2(3)
                        : name == "streaming" ? StreamingDiLoCo(4, 1)
                        : name == "crowded"   ? StreamingDiLoCo(6, 6)  // three under way at a time
                                              : Outer(0.7, 0.8);
  if (name == "fragments") {  // layers wait for their exchange
    options.local_sgd_sync_interval = 5;
    options.fragments = 4;
  } else if (name == "restart_early") {
    options = Co2(4);
    options.overlap_steps = 2;
    options.outer_momentum_clip = 0;
  } else if (name == "own_schedules") {
    options.fragments = 2;
    options.fragment_of_layer = {0, 1, 1, 0};
    options.fragment_intervals = {2, 3};
    options.overlap_steps = 2;
    options.outer_nesterov = true;
    options.staleness_penalty = true;
  }
  RunReplicas(grid, Layers(), [&](Replica& r) {
    r.Edit(options);
    const FragmentSchedule schedule(options, r.shards().slab());
    std::vector<Simulated> model = Begin(grid.replicas);
    ASSERT_FALSE(r.Forward());
    for (int64_t step = 1; step <= 25; ++step) {
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        value = static_cast<float>(InnerStep(value, r.replica(), step, l, i));
      });
      Step(options, schedule, step, &model);
      r.EndStep();
      EXPECT_EQ(r.Forward(), !schedule.Due(step).empty()) << step;
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        const Simulated& layer = model[static_cast<size_t>(l)];
        const double expected =
            layer.live[static_cast<size_t>(r.replica())][static_cast<size_t>(i)];
        ASSERT_NEAR(value, expected, 2e-5) << "step " << step << ", layer " << l << ", " << i;
      });
    }
    // A request ends all exchanges, whichever are under way.
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_EQ(r.params(), r.Anchor());
  });
}

std::string NameOfPreset(const ::testing::TestParamInfo<std::tuple<Grid, std::string>>& test) {
  const auto& [grid, name] = test.param;
  return absl::StrCat("m", grid.shards, "_n", grid.replicas, "_", name);
}

INSTANTIATE_TEST_SUITE_P(Meshes, Presets,
                         ::testing::Combine(::testing::Values(Grid{1, 2}, Grid{2, 2}, Grid{1, 3}),
                                            ::testing::Values("co2", "streaming", "crowded",
                                                              "fragments", "restart_early",
                                                              "own_schedules")),
                         NameOfPreset);

// Only the fragment's layers cross the network. A replica that is not finite is left out of that
// fragment's exchange only.
TEST(FragmentExchanges, AreOfTheirLayersAlone) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    EditOptions options = Outer(1, 0);
    options.local_sgd_sync_interval = 4;
    options.fragments = 4;  // at steps 1, 2, 3, 4: one layer each
    r.Edit(options);
    r.Forward();
    EXPECT_THAT(std::string(r.edit().Report(2).status().message()),
                HasSubstr("no exchange of layer 2 yet"));
    uint64_t sent = r.edit().info().bytes_sent_sync;
    for (int step = 1; step <= 4; ++step) {
      r.ForEach(r.params(), [&](int l, int64_t, float& value) {
        value = l == 1 && r.replica() == 1 ? NAN : value + 1;
      });
      r.EndStep();
      EXPECT_TRUE(r.Forward());
      const uint64_t now = r.edit().info().bytes_sent_sync;
      // A standing, a norm and the layer.
      EXPECT_EQ(now - sent,
                64 + 8 + 4 * static_cast<uint64_t>(kCounts[static_cast<size_t>(step - 1)]))
          << step;
      sent = now;
      const bool bad = step == 2 && r.replica() == 1;
      EXPECT_EQ(r.edit().Report(step - 1)->accepted, !bad);
    }
    EXPECT_EQ(r.edit().info().syncs, 4);
  });
}

TEST(FragmentExchanges, RanksMustHaveTheSameFragments) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    EditOptions options = Outer(1, 0);
    options.fragments = 2;
    options.fragment_of_layer = {0, 1, 1, r.replica()};
    const auto edit = LayerSync::Create(r.mesh(), r.shared_shards(), options);
    EXPECT_TRUE(absl::IsDataLoss(edit.status())) << edit.status();
    EXPECT_THAT(std::string(edit.status().message()), HasSubstr("fragment_of_layer[3]"));
  });
}

// Replicas that meet by time may find that there were too few steps. Then no replica's changes are
// lost.
TEST(Restart, WhatWasTakenComesBackWhenThereIsNoExchange) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    EditOptions options = Outer(1, 0);
    options.use_async = true;
    options.local_sgd_sync_time = 10;
    options.min_total_global_steps = 7;
    options.overlap_steps = 1;
    options.overlap_merge = OverlapMerge::kRestart;
    options.clock = &clock;
    r.Edit(options);
    r.Forward();
    const auto move = [&](float by) {
      r.ForEach(r.params(), [&](int, int64_t, float& value) { value += by; });
      r.EndStep();
    };
    move(1);
    clock.Advance(11 * kSecond);
    EXPECT_TRUE(r.Forward());  // begun: 2 of 7 steps
    const float start = Replica::Initial(0, 0);
    EXPECT_NEAR(r.params()[0], start, 1e-5);  // the anchor
    move(2);
    // The changes come back when the other replica has met, too.
    for (int tries = 0; std::abs(r.params()[0] - (start + 3)) > 1e-5; ++tries) {
      ASSERT_LT(tries, 1000000);
      r.Forward();
      std::this_thread::yield();
    }
    EXPECT_EQ(r.edit().info().rendezvous, 1);
    EXPECT_EQ(r.edit().info().syncs, 0);
    EXPECT_NEAR(r.params()[0], start + 3, 1e-5);
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
  });
}

}  // namespace
}  // namespace entrain
