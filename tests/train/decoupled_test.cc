// Rounds of fragments that no replica waits for (options quorum and overlap_steps, as in Decoupled
// DiLoCo). The tests hold a replica's caller back, and look at the parameters of all.
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/wait.h"
#include "tests/train/rounds.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// a ← mean of the theta that take part.
EditOptions Decoupled(int quorum, int64_t interval, int32_t behind, Late late = Late::kCarry) {
  EditOptions options = Averaging();
  options.local_sgd_sync_interval = interval;
  options.overlap_steps = behind;
  options.quorum = quorum;
  options.late = late;
  options.timeout_ns = 60 * kSecond;
  return options;
}

// A step: moves every element of every layer, then begins the next forward pass.
bool Train(Replica& r, float by, int64_t tokens = 0) {
  r.ForEach(r.params(), [&](int, int64_t, float& value) { value += by; });
  if (tokens > 0) {
    EXPECT_EQ(r.edit().Record(tokens, 0, 0), absl::OkStatus());
  }
  r.EndStep();
  return r.Forward();
}

// Returns how far an element of the layer has moved. All elements of a layer have moved alike.
float Moved(Replica& r, int layer = 0) {
  const SlabLayer& place = r.shards().slab().layer(layer);
  return r.params()[static_cast<size_t>(place.offset)] - Replica::Initial(layer, place.first);
}

void AwaitRounds(Replica& r, int64_t rounds) {
  ASSERT_TRUE(Becomes([&] { return r.edit().info().syncs >= rounds; }));
}

void Sync(Replica& r) {
  ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
  EXPECT_TRUE(r.Forward());
}

TEST(Decoupled, NobodyWaitsForAReplicaThatDoesNotCome) {
  std::atomic<bool> trained = false;
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    r.Edit(Decoupled(1, 4, 2));
    r.Forward();
    if (r.replica() == 1) {
      EXPECT_TRUE(Becomes([&] { return trained.load(); }));
      Train(r, 1);
    } else {
      int offers = 0;
      for (int step = 1; step <= 40; ++step) {
        offers += Train(r, 1) ? 1 : 0;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      EXPECT_GE(offers, 10);
      trained = true;
    }
    r.MeetAll();
    Sync(r);
    r.MeetAll();
  });
}

TEST(Decoupled, AQuorumExchangesAndTheLateReplicaTakesItOverAtItsNextStep) {
  for (const Late late : {Late::kCarry, Late::kDrop}) {
    RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
      r.Edit(Decoupled(2, 4, 2, late));
      r.Forward();
      if (r.replica() < 2) {
        const float own = r.replica() == 0 ? 1 : 3;
        for (int step = 1; step <= 4; ++step) {
          EXPECT_EQ(Train(r, own), step == 4);
        }
        AwaitRounds(r, 1);
        EXPECT_NEAR(Moved(r), 4 * own, 1e-5) << "its parameters are its caller's";
        Train(r, own);
        Train(r, own);
        EXPECT_NEAR(Moved(r), 8 + 2 * own, 1e-5) << "the mean of 4 and 12, and two own steps";
        EXPECT_EQ(r.edit().info().missed, 0);
        EXPECT_EQ(r.edit().Report(0)->weights, (std::vector<double>{0.5, 0.5, 0}));
      } else {
        Train(r, 10);
        AwaitRounds(r, 1);
        EXPECT_NEAR(Moved(r), 10, 1e-5) << "its parameters are its caller's";
        Train(r, 10);
        EXPECT_NEAR(Moved(r), late == Late::kDrop ? 8 : 28, 1e-5);
        EXPECT_EQ(r.edit().info().missed, 1);
      }
      r.MeetAll();
      Sync(r);
      // The first two bring two steps of 1 and 3. The third brings what it has kept, of 10.
      const float mean = (2 + 6 + (late == Late::kDrop ? 0 : 20)) / 3.0f;
      const float alone = (2 + 6) / 2.0f;
      EXPECT_NEAR(Moved(r), 8 + (late == Late::kDrop ? alone : mean), 1e-4);
      EXPECT_EQ(r.params(), r.Anchor());
      r.MeetAll();
    });
  }
}

TEST(Decoupled, FragmentsHaveRoundsOfTheirOwn) {
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    EditOptions options = Decoupled(2, 4, 1);
    options.fragments = 2;  // layers 0 and 1 at steps 2, 6 ..., layers 2 and 3 at steps 4, 8 ...
    r.Edit(options);
    r.Forward();
    const float own = r.replica() == 0 ? 1 : 3;
    Train(r, own);
    EXPECT_TRUE(Train(r, own));
    AwaitRounds(r, 1);
    Train(r, own);
    EXPECT_NEAR(Moved(r, 0), 4 + own, 1e-5);
    EXPECT_NEAR(Moved(r, 3), 3 * own, 1e-5);
    EXPECT_TRUE(Train(r, own));
    AwaitRounds(r, 2);
    Train(r, own);
    EXPECT_NEAR(Moved(r, 0), 4 + 3 * own, 1e-5);
    EXPECT_NEAR(Moved(r, 3), 8 + own, 1e-5);
    r.MeetAll();
    Sync(r);
    EXPECT_EQ(r.params(), r.Anchor());
    r.MeetAll();
  });
}

// Before the quorum offers a fragment again, the offer of the first replica takes its newer steps.
TEST(Decoupled, AnOfferThatNobodyHasAnsweredIsMadeAgain) {
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    r.Edit(Decoupled(2, 2, 1));
    r.Forward();
    if (r.replica() == 0) {
      for (int step = 1; step <= 6; ++step) {
        Train(r, 1);
      }
      r.MeetAll();
    } else {
      r.MeetAll();
      Train(r, 10);
      Train(r, 10);
    }
    AwaitRounds(r, 1);
    EXPECT_EQ(r.edit().info().rendezvous, 1);
    Train(r, 0);
    EXPECT_NEAR(Moved(r), (6 + 20) / 2, 1e-5);
    r.MeetAll();
    Sync(r);
    r.MeetAll();
  });
}

TEST(Decoupled, WeightsAreTokensTimesTokensPerStep) {
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    EditOptions options = Decoupled(2, 4, 1);
    options.reducer = ReducerKind::kLinear;
    options.use_step_weight = true;
    options.step_weight_ratio = 1;
    r.Edit(options);
    r.Forward();
    for (int step = 1; step <= 4; ++step) {
      Train(r, 1, r.replica() == 0 ? 10 : 20);
    }
    AwaitRounds(r, 1);
    Train(r, 1);
    const auto report = r.edit().Report(0);  // 40 x 10 and 80 x 20
    EXPECT_NEAR(report->weights[0], 0.2, 1e-9);
    EXPECT_NEAR(report->weights[1], 0.8, 1e-9);
    r.MeetAll();
    Sync(r);
    r.MeetAll();
  });
}

// Replicas of different speeds, with several rounds under way.
TEST(Decoupled, AnchorsHaveTheSameBitsAndReplicasLeave) {
  const std::vector<std::pair<Late, Grid>> cases = {{Late::kDrop, {1, 4}},
                                                    {Late::kCarry, {1, 4}},
                                                    {Late::kWeighted, {1, 4}},
                                                    {Late::kCarry, {2, 3}},
                                                    {Late::kDrop, {3, 2}}};
  for (const auto& [late, grid] : cases) {
    Collected ended(grid);
    RunReplicas(grid, FourLayers(), [&, late = late](Replica& r) {
      EditOptions options = Weighed();
      options.local_sgd_sync_interval = 4;
      options.fragments = 4;
      options.overlap_steps = 3;
      options.overlap_merge = OverlapMerge::kMix;
      options.quorum = 1;
      options.round_deadline = 1;
      options.late = late;
      options.timeout_ns = 60 * kSecond;
      r.Edit(options);
      r.Forward();
      const int steps = 30 + 20 * r.replica();
      for (int step = 0; step < steps; ++step) {
        r.ForEach(r.params(), [&](int layer, int64_t i, float& value) {
          value += Noise(r.replica(), step, layer, i) / 8;
        });
        r.EndStep();
        r.Forward();
        const std::chrono::milliseconds pause(3 + 4 * r.replica());
        std::this_thread::sleep_for(pause);  // replicas of different speed
      }
      EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
      EXPECT_EQ(r.params(), r.Anchor());
      EXPECT_GE(r.edit().info().rendezvous, 10);
      ended.Put(r, r.params());
      r.MeetAll();
    });
    ended.ExpectAlike();
  }
}

TEST(Decoupled, AWishAndAMetricAreToldWithTheOfferOrWhenItIsTakenBack) {
  for (const bool all : {false, true}) {
    RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
      r.Edit(Decoupled(2, 2, 1));
      r.Forward();
      if (r.replica() == 0) {
        ASSERT_EQ(r.edit().Wish(kWantCheckpoint), absl::OkStatus());
        ASSERT_EQ(r.edit().Record(1, 8, 1), absl::OkStatus());
        Train(r, 1);
        Train(r, 1);  // offers
        Train(r, 1);
        Train(r, 1);  // offers again
        Train(r, 1);
        r.MeetAll();
      } else {
        r.MeetAll();
        Train(r, 1);
      }
      if (all) {
        Sync(r);
      } else if (r.replica() == 1) {
        Train(r, 1);
      }
      AwaitRounds(r, 1);
      EXPECT_EQ(r.edit().info().wishes, kWantCheckpoint);
      EXPECT_EQ(r.edit().info().metric, 8);
      r.MeetAll();
      Train(r, 1);
      Sync(r);
      r.MeetAll();
    });
  }
}

// Replicas of short steps offer a fragment again before anybody decides. The times of the first offer
// count, so the grace ends all the same.
TEST(Decoupled, AnOfferThatIsMadeAgainDoesNotExtendTheGrace) {
  std::atomic<bool> over = false;
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    EditOptions options = Decoupled(1, 1, 1);
    options.round_deadline = 50;
    r.Edit(options);
    r.Forward();
    if (r.replica() == 0) {
      const int64_t until = Clock::Real().Now() + 10 * kSecond;
      while (r.edit().info().syncs < 3 && Clock::Real().Now() < until) {
        Train(r, 0.001f);
        const std::chrono::milliseconds pause(20);
        std::this_thread::sleep_for(pause);  // less than the time between two decisions
      }
      EXPECT_GE(r.edit().info().syncs, 3);
      over = true;
    } else {
      EXPECT_TRUE(Becomes([&] { return over.load(); }));
      Train(r, 0);
    }
    r.MeetAll();
    Sync(r);
    r.MeetAll();
  });
}

TEST(Decoupled, NobodySavesBesideAReplicaThatHasLeft) {
  const Directory directory;
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    r.Edit(Decoupled(1, 4, 1));
    r.Forward();
    Train(r, 1);
    if (r.replica() == 0) {
      Sync(r);
      const absl::Status refused = r.edit().state().Save(To(directory, CheckpointKind::kPortable));
      EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("a replica has left"));
      Train(r, 1);
    }
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
    EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable)), absl::OkStatus());
    r.MeetAll();
  });
}

TEST(Decoupled, ARunThatGoesOnCountsFromThere) {
  const Directory directory;
  for (const bool loads : {false, true}) {
    RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
      EditOptions options = Decoupled(2, 4, 1);
      options.reducer = ReducerKind::kLinear;
      options.use_step_weight = true;
      r.Edit(options);
      if (loads) {
        ASSERT_EQ(r.edit().state().Load(To(directory, CheckpointKind::kPortable)),
                  absl::OkStatus());
        EXPECT_EQ(r.edit().info().steps, 7);
      }
      r.Forward();
      for (int step = loads ? 7 : 0; step < (loads ? 8 : 6); ++step) {
        Train(r, 1);
      }
      if (loads) {
        AwaitRounds(r, 3);  // two before the save, and that of step 8
        EXPECT_EQ(r.edit().results().StandingOf(r.replica())->steps_since, 1u);
      } else {
        AwaitRounds(r, 1);
      }
      Train(r, 0);
      r.MeetAll();
      Sync(r);
      if (!loads) {
        EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable)),
                  absl::OkStatus());
      }
      r.MeetAll();
    });
  }
}

TEST(Decoupled, WhatDoesNotGoWithItIsRefusedByName) {
  const auto refused = [&](auto change, const char* text) {
    EditOptions options = Decoupled(2, 4, 2);
    EXPECT_EQ(CheckOptions(options), absl::OkStatus());
    change(options);
    EXPECT_THAT(std::string(CheckOptions(options).message()), HasSubstr(text));
  };
  using O = EditOptions;
  refused([](O& o) { o.overlap_merge = OverlapMerge::kRestart; }, "overlap_merge add and mix");
  refused([](O& o) { o.staleness_penalty = true; }, "do not go with staleness_penalty");
  refused(
      [](O& o) {
        o.late = Late::kDrop;
        o.anchor_check = AnchorCheck::kRepair;
      },
      "do not go with anchor_check repair");
  RunReplicas({.shards = 1, .replicas = 2, .copies = 2}, FourLayers(), [&](Replica& r) {
    const auto made = LayerSync::Create(r.mesh(), r.shared_shards(), Decoupled(2, 4, 2));
    EXPECT_THAT(std::string(made.status().message()),
                HasSubstr("does not go with context and tensor axes"));
    r.MeetAll();
  });
}

}  // namespace
}  // namespace entrain
