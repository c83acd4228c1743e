// Exchanges that run behind further steps, and their merges.

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/layer_sync.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ShardConfig Layers() {
  ShardConfig config;
  config.layer_counts = {37, 8, 50};
  return config;
}

EditOptions Overlapped(int64_t interval, int32_t steps) {
  EditOptions options = Averaging();
  options.local_sgd_sync_interval = interval;
  options.overlap_steps = steps;
  return options;
}

// Moves every element of every layer.
void Move(Replica& r, float by) {
  r.ForEach(r.params(), [&](int, int64_t, float& value) { value += by; });
}

// Returns one element. All elements have moved alike.
float Moved(Replica& r) {
  const SlabLayer& layer = r.shards().slab().layer(2);
  return r.params()[static_cast<size_t>(layer.offset)] - Replica::Initial(2, layer.first);
}

TEST(Overlap, MergesAfterItsStepsWithWhatWasDoneSince) {
  for (const int shards : {1, 2}) {
    for (const int32_t behind : {1, 2, 4}) {
      RunReplicas({shards, 2}, Layers(), [behind](Replica& r) {
        r.Edit(Overlapped(4, behind));
        const float own = r.replica() == 0 ? 1 : 3;
        double theta = 0, then = 0;  // one element, computed here
        EXPECT_FALSE(r.Forward());
        for (int step = 1; step <= 16; ++step) {
          Move(r, own);
          theta += own;
          r.EndStep();
          const bool began = r.Forward();
          if (step >= 4 && step % 4 == behind % 4 && step >= 4 + behind) {
            const double other = then + (r.replica() == 0 ? 1 : -1) * 2.0 * 4;
            theta = (then + other) / 2 + (theta - then);
          }
          EXPECT_EQ(began, step % 4 == 0) << step;
          if (step % 4 == 0) {
            then = theta;
          }
          EXPECT_NEAR(Moved(r), theta, 1e-4) << "step " << step << ", merged " << behind << " late";
        }
        EXPECT_EQ(r.edit().Leave(), absl::OkStatus());  // the last exchange still runs
      });
    }
  }
}

TEST(Overlap, ForwardPassesDoNotWaitForOtherReplicas) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    r.Edit(Overlapped(4, 4));
    r.Forward();
    if (r.replica() == 0) {
      for (int step = 1; step <= 7; ++step) {  // the other replica has made none yet
        Move(r, 1);
        r.EndStep();
        r.Forward();
      }
      EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().CopyAnchor(nullptr)));
      EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().Report(0).status()));
      EXPECT_EQ(r.edit().info().syncs, 0);
    }
    r.MeetAll();
    if (r.replica() == 1) {
      for (int step = 1; step <= 7; ++step) {
        Move(r, 1);
        r.EndStep();
        r.Forward();
      }
    }
    Move(r, 1);
    r.EndStep();
    EXPECT_TRUE(r.Forward());  // merges, and begins the next exchange
    EXPECT_NEAR(Moved(r), 8, 1e-4);
    EXPECT_GE(r.edit().info().syncs, 1);
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
  });
}

TEST(Overlap, AnchorsHaveTheSameBitsAndARequestBringsAllThere) {
  RunReplicas({2, 3}, Layers(), [](Replica& r) {
    EditOptions options = Overlapped(2, 1);
    options.outer_momentum = 0.8;
    options.outer_nesterov = true;
    options.skip_anomaly = true;
    options.clip_pseudo_grad = 0.5;
    r.Edit(options);
    r.Forward();
    for (int step = 1; step <= 9; ++step) {
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        value += Noise(r.replica(), step, l, i) / 8;
      });
      r.EndStep();
      r.Forward();  // compares the checksums of the anchors
    }
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    r.ForEach(r.params(), [&](int l, int64_t i, float& value) { value += Noise(l, i); });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_EQ(r.params(), r.Anchor());
  });
}

// The exchange in Leave includes the replica's own changes that a merge has kept, and the layers of
// another fragment that were not exchanged, although no step follows.
TEST(Overlap, WhoLeavesWhereAnExchangeHasJustBegunIsLeftWithTheAnchor) {
  for (const int32_t fragments : {1, 2}) {
    for (const int32_t behind : {0, 2}) {
      RunReplicas({1, 2}, Layers(), [&](Replica& r) {
        EditOptions options = Overlapped(4, behind);
        options.overlap_merge = behind > 0 ? OverlapMerge::kMix : OverlapMerge::kAdd;
        options.fragments = fragments;
        r.Edit(options);
        EXPECT_FALSE(r.Forward());
        bool began = false;
        while (r.edit().info().steps < 8) {
          r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
            value += Noise(l, i) * static_cast<float>(1 + r.replica());
          });
          r.EndStep();
          began = r.Forward();
        }
        EXPECT_TRUE(began);
        EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
        EXPECT_EQ(r.params(), r.Anchor());
      });
    }
  }
}

// The fragment that was just exchanged is not exchanged again: that would let the momentum take an
// extra step.
TEST(Overlap, WhoLeavesAtAFragmentsStepExchangesTheOthersAlone) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    EditOptions options = Overlapped(4, 0);
    options.fragments = 2;
    options.outer_momentum = 0.8;
    r.Edit(options);
    EXPECT_FALSE(r.Forward());
    bool began = false;
    for (int step = 1; step <= 8; ++step) {
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        value += Noise(r.replica(), step, l, i) / 8;
      });
      r.EndStep();
      began = r.Forward();
    }
    EXPECT_TRUE(began);  // the exchange of layer 2
    std::vector<float> before = r.Anchor();
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
    std::vector<float> after = r.Anchor();
    EXPECT_EQ(r.params(), after);
    std::vector<float> moved[3];
    r.ForEach(before, [&](int l, int64_t, float& value) { moved[l].push_back(value); });
    r.ForEach(after, [&, at = std::vector<size_t>(3)](int l, int64_t, float& value) mutable {
      moved[l][at[static_cast<size_t>(l)]++] -= value;
    });
    for (int l = 0; l < 3; ++l) {
      EXPECT_EQ(moved[l] == std::vector<float>(moved[l].size()), l == 2) << "layer " << l;
    }
  });
}

TEST(Overlap, WhatWasNotANumberBecomesTheAnchor) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    r.Edit(Overlapped(2, 1));
    r.Forward();
    for (int step = 1; step <= 3; ++step) {
      Move(r, r.replica() == 0 ? 1.0f : kNan);
      r.EndStep();
      r.Forward();
    }
    EXPECT_NEAR(Moved(r), r.replica() == 0 ? 3 : 2, 1e-4);
    EXPECT_EQ(r.edit().info().rejections, r.replica() == 0 ? 0 : 3);
  });
}

TEST(Overlap, ByTimeItIsMergedWhenItHasComeAndNobodyWaits) {
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 2}, Layers(), [](Replica& r) {
      FakeClock clock;
      EditOptions options = Overlapped(1, 1);
      options.use_async = true;
      options.local_sgd_sync_time = 10;
      options.min_total_global_steps = 1;
      options.clock = &clock;
      r.Edit(options);
      r.Forward();
      const bool fast = r.replica() == 0;
      int64_t steps = 0;
      // Runs until three exchanges were merged here. The fast replica trains while the other is
      // still on its way.
      for (int64_t syncs = 0; syncs < 3 && steps < 200000;) {
        Move(r, 1);
        clock.Advance((fast ? 1 : 4) * kSecond);
        r.EndStep();
        ++steps;
        r.Forward();
        const EditInfo info = r.edit().info();
        syncs = r.edit().CopyAnchor(std::vector<float>(r.params().size()).data()).ok() ? info.syncs
                                                                                       : syncs;
        std::this_thread::yield();
      }
      // Each step moves every replica alike, so the position tells the total number of steps.
      EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
      EXPECT_EQ(r.params(), r.Anchor());
      const std::vector<Standing> all = r.edit().results().standings();
      const double mean = static_cast<double>(all[0].steps + all[1].steps) / 2;
      EXPECT_NEAR(Moved(r), mean, mean * 1e-4);
      EXPECT_EQ(all[fast ? 0 : 1].steps, static_cast<uint64_t>(steps));
    });
  }
}

TEST(Overlap, AFailureBehindIsMetAtTheNextForward) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    EditOptions options = Overlapped(1, 1);
    options.timeout_ns = 200 * kMillisecond;
    r.Edit(options);
    r.Forward();
    if (r.replica() == 0) {
      Move(r, 1);
      r.EndStep();
      EXPECT_TRUE(r.Forward());  // begun
      Move(r, 1);
      r.EndStep();
      const absl::Status status = r.edit().BeginForward(true, true).status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 1"));
    }
    r.MeetAll();
  });
}

}  // namespace
}  // namespace entrain
