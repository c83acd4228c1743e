// A-EDiT end to end: replicas that meet by time, each by its own clock.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/layer_sync.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using testing::HasSubstr;

const std::vector<int64_t> kLayers = {37, 8, 50};

ShardConfig Layers() {
  ShardConfig config;
  config.layer_counts = kLayers;
  return config;
}

// tau: 10 seconds.
EditOptions Async(const Clock* clock) {
  EditOptions options = Averaging();
  options.use_async = true;
  options.local_sgd_sync_time = 10;
  options.min_total_global_steps = 1;
  options.clock = clock;
  return options;
}

// Makes steps of `seconds`, which move every element by `drift`, until a forward pass exchanges.
// Returns the number of steps.
int StepsUntilExchange(Replica& r, FakeClock& clock, double seconds, float drift) {
  for (int steps = 1; steps < 1000; ++steps) {
    r.ForEach(r.params(), [&](int, int64_t, float& value) { value += drift; });
    clock.Advance(static_cast<int64_t>(seconds * kSecond));
    r.EndStep();
    if (r.Forward()) {
      return steps;
    }
  }
  ADD_FAILURE() << "no exchange in 1000 steps";
  return 0;
}

float First(const Replica& r, const std::vector<float>& slab) {
  return slab[static_cast<size_t>(const_cast<Replica&>(r).shards().slab().layer(0).offset)];
}

TEST(AEdit, ReplicasOfAnySpeedMeetWhenTheirTimeIsUp) {
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 2}, Layers(), [shards](Replica& r) {
      FakeClock clock;
      r.Edit(Async(&clock));
      EXPECT_FALSE(r.Forward());
      const bool fast = r.replica() == 0;
      // A replica of several ranks learns of the time one step later.
      const int late = shards > 1 ? 1 : 0;
      for (int round = 0; round < 3; ++round) {
        const float before = First(r, r.params());
        EXPECT_EQ(StepsUntilExchange(r, clock, fast ? 1 : 4, fast ? 1.0f : 8.0f),
                  (fast ? 10 : 3) + late);
        const double mean = ((10 + late) * 1.0 + (3 + late) * 8.0) / 2;
        EXPECT_NEAR(First(r, r.params()), before + mean, 1e-4);
        EXPECT_EQ(r.params(), r.Anchor());
      }
      const EditInfo info = r.edit().info();
      EXPECT_EQ(info.rendezvous, 3);
      EXPECT_EQ(info.syncs, 3);
      const std::vector<Standing> standings = r.edit().results().standings();
      EXPECT_EQ(standings[0].steps_since, static_cast<uint64_t>(10 + late));
      EXPECT_EQ(standings[1].steps_since, static_cast<uint64_t>(3 + late));
      EXPECT_EQ(standings[1].steps, static_cast<uint64_t>(3 * (3 + late)));
    });
  }
}

// The clock of a replica. LayerSync reads it to see whether the time is up, and again after the
// wait. At the second reading in a step the replicas have met, and the clock shows the time of the
// last arrival.
class MeetingClock final : public Clock {
 public:
  MeetingClock(std::vector<std::atomic<int64_t>>* all, size_t me) : all_(all), me_(me) {}
  int64_t Now() const override { return asked_++ == 0 ? (*all_)[me_].load() : Latest(); }
  int64_t Latest() const {
    int64_t latest = 0;
    for (const std::atomic<int64_t>& one : *all_) {
      latest = std::max(latest, one.load());
    }
    return latest;
  }
  void Advance(int64_t ns) {
    asked_ = 0;
    (*all_)[me_] += ns;
  }

 private:
  std::vector<std::atomic<int64_t>>* const all_;
  const size_t me_;
  mutable int asked_ = 0;
};

// The exchanges of four replicas, one of them slow, on a virtual clock. If the interval began
// before the wait, the fast replicas would in the end only wait: trigger_test.
TEST(AEdit, IdleShareStaysBelowFivePercent) {
  constexpr int kReplicas = 4;
  const int rounds = 2000;
  ShardConfig config;
  config.layer_counts = {3};
  std::vector<std::atomic<int64_t>> times(kReplicas);
  std::barrier<> gate(kReplicas);
  RunReplicas({1, kReplicas}, config, [&](Replica& r) {
    const auto me = static_cast<size_t>(r.replica());
    MeetingClock clock(&times, me);
    EditOptions options = Async(&clock);
    options.local_sgd_sync_time = 60;
    r.Edit(options);
    EXPECT_FALSE(r.Forward());
    std::mt19937_64 random(me);
    std::uniform_real_distribution<double> jitter(0.95, 1.05);
    const double seconds = r.replica() == kReplicas - 1 ? 3.3 : 1.0;
    int64_t idle = 0;
    for (int round = 0; round < rounds; ++round) {
      do {
        clock.Advance(static_cast<int64_t>(seconds * jitter(random) * kSecond));
        r.EndStep();
      } while (!r.Forward());
      gate.arrive_and_wait();
      const int64_t wait = clock.Latest() - times[me];
      gate.arrive_and_wait();
      idle += wait;
      times[me] += wait;
    }
    EXPECT_EQ(r.edit().info().syncs, rounds);
    EXPECT_LT(static_cast<double>(idle), 0.05 * static_cast<double>(times[me]));
  });
}

// The wait is not a part of the next interval, however long it was.
TEST(AEdit, ALateReplicaIsWaitedFor) {
  FakeClock clocks[2];
  std::atomic<bool> waits{false};
  RunReplicas({1, 2}, Layers(), [&](Replica& r) {
    FakeClock& clock = clocks[r.replica()];
    r.Edit(Async(&clock));
    r.Forward();
    const float start = First(r, r.params());
    if (r.replica() == 0) {
      clock.Advance(9 * kSecond);
      r.EndStep();
      EXPECT_FALSE(r.Forward());
      clock.Advance(kSecond);
      r.EndStep();
      waits = true;
      EXPECT_TRUE(r.Forward());
    } else {
      while (!waits) {
        std::this_thread::yield();
      }
      clocks[0].Advance(500 * kSecond);  // while the first replica waits
      EXPECT_EQ(StepsUntilExchange(r, clock, 10, 4), 1);
    }
    EXPECT_NEAR(First(r, r.params()), start + 2, 1e-4);
    EXPECT_EQ(StepsUntilExchange(r, clock, 1, 0), 10);
  });
}

TEST(AEdit, BetweenRendezvousNothingCrossesReplicas) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    r.Edit(Async(&clock));
    r.Forward();
    r.MeetAll();  // the mesh's own barriers are over
    const uint64_t before = r.edit().info().bytes_sent_sync;
    for (int step = 0; step < 20; ++step) {
      r.EndStep();
      EXPECT_FALSE(r.Forward());
    }
    EXPECT_EQ(r.edit().info().bytes_sent_sync, before);
  });
}

TEST(AEdit, TooFewStepsAreNoExchangeAndKeepCounting) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    EditOptions options = Async(&clock);
    options.min_total_global_steps = 10;
    r.Edit(options);
    r.Forward();
    // 2 steps per interval and replica: 4, 8, then 12 since the last exchange.
    ASSERT_EQ(r.edit().Record(5, 0, 0), absl::OkStatus());
    EXPECT_EQ(StepsUntilExchange(r, clock, 5, 1), 6);
    const EditInfo info = r.edit().info();
    EXPECT_EQ(info.rendezvous, 3);
    EXPECT_EQ(info.syncs, 1);
    EXPECT_EQ(info.last_sync_step, 6);
    for (const Standing& one : r.edit().results().standings()) {
      EXPECT_EQ(one.steps_since, 6u);
      EXPECT_EQ(one.tokens_since, 5u) << "also what was recorded before";
    }
    EXPECT_EQ(StepsUntilExchange(r, clock, 5, 1), 6) << "counted from the exchange on";
  });
}

TEST(AEdit, ARequestExchangesWhateverTheMinimum) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    EditOptions options = Async(&clock);
    options.min_total_global_steps = 1000;
    r.Edit(options);
    r.Forward();
    r.EndStep();
    EXPECT_FALSE(r.Forward());
    ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_EQ(r.edit().info().syncs, 1);
  });
}

TEST(AEdit, ReplicasCountByWhatTheyHaveTrained) {
  for (const bool tokens : {false, true}) {
    RunReplicas({2, 2}, Layers(), [tokens](Replica& r) {
      FakeClock clock;
      EditOptions options = Async(&clock);
      options.use_step_weight = true;
      r.Edit(options);
      r.Forward();
      const bool fast = r.replica() == 0;
      if (tokens) {
        // Each of the two ranks records this number.
        ASSERT_EQ(r.edit().Record(fast ? 50 : 150, 0, 0), absl::OkStatus());
      }
      StepsUntilExchange(r, clock, fast ? 1 : 4, 1);  // 11 and 4 steps
      const LayerReport report = *r.edit().Report(1);
      EXPECT_NEAR(report.weights[0], tokens ? 0.25 : 11.0 / 15, 1e-12);
      EXPECT_NEAR(report.weights[1], tokens ? 0.75 : 4.0 / 15, 1e-12);
    });
  }
}

// All steps of one replica were skipped, as with a loss scale that is too large.
TEST(AEdit, AReplicaThatTrainedOnNothingHasNoWeight) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    EditOptions options = Async(&clock);
    options.use_step_weight = true;
    r.Edit(options);
    r.Forward();
    const float start = First(r, r.params());
    ASSERT_EQ(r.edit().Record(r.replica() == 0 ? 50 : 0, 0, 0), absl::OkStatus());
    StepsUntilExchange(r, clock, 4, r.replica() == 0 ? 1.0f : 100.0f);
    EXPECT_THAT(r.edit().Report(1)->weights, testing::ElementsAre(1, 0));
    EXPECT_EQ(First(r, r.params()),
              start + static_cast<float>(r.edit().results().standings()[0].steps_since));
  });
}

// Replica 0 makes more steps before the first exchange, replica 1 before the second.
TEST(AEdit, CompatWeighsByStepsSinceTheBeginning) {
  for (const bool compat : {false, true}) {
    RunReplicas({2, 2}, Layers(), [compat](Replica& r) {
      FakeClock clock;
      EditOptions options = Async(&clock);
      options.use_step_weight = true;
      options.compat = compat;
      r.Edit(options);
      r.Forward();
      for (const int replica : {0, 1}) {
        StepsUntilExchange(r, clock, r.replica() == replica ? 1 : 4, 1);
        const std::vector<Standing> all = r.edit().results().standings();
        const auto share = [&](uint64_t Standing::*steps) {
          return static_cast<double>(all[0].*steps) /
                 static_cast<double>(all[0].*steps + all[1].*steps);
        };
        const double want = share(compat ? &Standing::steps : &Standing::steps_since);
        EXPECT_NEAR(r.edit().Report(1)->weights[0], want, 1e-12);
        EXPECT_GT(std::abs(share(&Standing::steps) - share(&Standing::steps_since)),
                  replica == 0 ? -1 : 0.1);
      }
    });
  }
}

TEST(AEdit, MetricsAndWishesTravelWithTheRendezvous) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    r.Edit(Async(&clock));
    r.Forward();
    EXPECT_TRUE(std::isnan(r.edit().info().metric));
    // Weights are 1, 2 on replica 0 and 3, 4 on replica 1. The metric equals the weight.
    const double weight = 1 + r.replica() * 2 + r.slot();
    ASSERT_EQ(r.edit().Record(0, weight, weight), absl::OkStatus());
    if (r.replica() == 1 && r.slot() == 1) {
      ASSERT_EQ(r.edit().Wish(kWantCheckpoint), absl::OkStatus());
    }
    StepsUntilExchange(r, clock, 4, 1);
    EXPECT_DOUBLE_EQ(r.edit().info().metric, 30.0 / 10);
    EXPECT_EQ(r.edit().info().wishes, kWantCheckpoint);
    StepsUntilExchange(r, clock, 4, 1);
    EXPECT_TRUE(std::isnan(r.edit().info().metric));
    EXPECT_EQ(r.edit().info().wishes, 0u);
  });
}

// A replica that has made all its steps stays until the others have, and does not pull them back to
// the point at which it stopped.
TEST(AEdit, AnEarlyFinisherLeavesProperly) {
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 3}, Layers(), [](Replica& r) {
      FakeClock clock;
      r.Edit(Async(&clock));
      r.Forward();
      const float start = First(r, r.params());
      StepsUntilExchange(r, clock, 10, static_cast<float>(r.replica()));
      const float mean = static_cast<float>(r.edit().results().standings()[0].steps_since);
      EXPECT_NEAR(First(r, r.params()), start + mean, 1e-4);
      if (r.replica() > 0) {
        StepsUntilExchange(r, clock, 10, 1);
        StepsUntilExchange(r, clock, 10, 1);
      }
      EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
      EXPECT_EQ(r.params(), r.Anchor());
      // Both others made the same number of steps. Replica 0 had no weight.
      const float both = static_cast<float>(2 * r.edit().results().standings()[1].steps) / 3;
      EXPECT_NEAR(First(r, r.params()), start + mean + both, 1e-4);
      EXPECT_EQ(r.edit().info().rejections, 0) << "absence is none";
      EXPECT_THAT(std::string(r.edit().BeginForward(true, true).status().message()),
                  HasSubstr("after leave"));
      EXPECT_TRUE(absl::IsFailedPrecondition(r.edit().Leave()));
    });
  }
}

TEST(AEdit, WhatALeaverHasNotExchangedStillCounts) {
  RunReplicas({1, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    r.Edit(Async(&clock));
    r.Forward();
    const float start = First(r, r.params());
    r.ForEach(r.params(),
              [&](int, int64_t, float& value) { value += r.replica() == 0 ? 2.0f : 4.0f; });
    r.EndStep();
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
    EXPECT_NEAR(First(r, r.params()), start + 3, 1e-4);
    EXPECT_EQ(r.edit().info().syncs, 1);
  });
}

// A replica that stops in warm-up stops together with all others. One that stops at its last step
// has nothing to exchange.
TEST(AEdit, LeavingAtTheEndOfWarmup) {
  for (const int shards : {1, 2}) {
    RunReplicas({shards, 2}, Layers(), [](Replica& r) {
      FakeClock clock;
      EditOptions options = Async(&clock);
      options.local_sgd_warmup_steps = 2;
      r.Edit(options);
      r.Forward();
      r.EndStep();
      const absl::Status early = r.edit().Leave();
      EXPECT_TRUE(absl::IsFailedPrecondition(early)) << early;
      EXPECT_THAT(std::string(early.message()), HasSubstr("step 1 of 2 of warm-up"));
      r.Forward();
      r.EndStep();
      const std::vector<float> before = r.params();
      EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
      EXPECT_EQ(r.params(), before);
      EXPECT_EQ(r.edit().info().syncs, 0);
      EXPECT_EQ(r.edit().info().rendezvous, 1);
    });
  }
}

TEST(AEdit, AnAbsentReplicaIsNamedAtTheDeadline) {
  RunReplicas({1, 3}, Layers(), [](Replica& r) {
    FakeClock clock;
    EditOptions options = Async(&clock);
    options.timeout_ns = 500 * kMillisecond;
    r.Edit(options);
    r.Forward();
    r.EndStep();
    if (r.replica() != 1) {  // replica 1 does not come in time
      clock.Advance(20 * kSecond);
      const absl::Status status = r.edit().BeginForward(true, true).status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status) ||
                  absl::IsUnavailable(status))
          << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::AllOf(HasSubstr("rendezvous"), HasSubstr("rank 1")));
    }
    r.MeetAll();
  });
}

TEST(AEdit, ALostNumberDuringAnIntervalIsLeftOut) {
  RunReplicas({2, 2}, Layers(), [](Replica& r) {
    FakeClock clock;
    EditOptions options = Async(&clock);
    options.use_step_weight = true;
    r.Edit(options);
    r.Forward();
    const bool bad = r.replica() == 1;
    StepsUntilExchange(r, clock, 3, bad ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
    EXPECT_EQ(r.edit().Report(0)->weights, (std::vector<double>{1, 0}));
    EXPECT_EQ(r.params(), r.Anchor());
    EXPECT_TRUE(std::isfinite(First(r, r.params())));
    EXPECT_EQ(r.edit().info().rejections, bad ? 3 : 0);
  });
}

}  // namespace
}  // namespace entrain
