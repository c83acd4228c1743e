#include "lib/train/edit/trigger.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/log.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

// Returns the steps below `steps` at which a training run exchanges.
std::vector<int64_t> ExchangesUpTo(SyncTrigger& trigger, int64_t steps, int64_t request_at = -1) {
  std::vector<int64_t> at;
  StepInfo info;
  for (info.step = 0; info.step < steps; ++info.step) {
    info.requested = info.step == request_at;
    // Asks twice, as for a second forward pass at the same step.
    for (int forward = 0; forward < 2; ++forward) {
      if (*trigger.Due(info)) {
        at.push_back(info.step);
        info.last_sync_step = info.step;
      }
    }
  }
  return at;
}

// All layers, every `interval` steps.
FragmentSchedule Every(int64_t interval) {
  EditOptions options;
  options.local_sgd_sync_interval = interval;
  const std::vector<int64_t> counts = {1};
  return {options, *Slab::Make(counts, 1, 0)};
}

EditOptions ByTime(const Clock* clock, int64_t warmup_steps, double tau) {
  EditOptions options;
  options.use_async = true;
  options.clock = clock;
  options.local_sgd_warmup_steps = warmup_steps;
  options.local_sgd_sync_time = tau;
  return options;
}

TEST(StepTrigger, FiresAtWarmupPlusMultiplesOfTheInterval) {
  const FragmentSchedule schedule = Every(4);
  StepTrigger trigger(3, &schedule);
  EXPECT_THAT(ExchangesUpTo(trigger, 14), testing::ElementsAre(3, 7, 11));
}

TEST(StepTrigger, FiresAtOnceWithoutWarmup) {
  const FragmentSchedule schedule = Every(5);
  StepTrigger trigger(0, &schedule);
  EXPECT_THAT(ExchangesUpTo(trigger, 11), testing::ElementsAre(0, 5, 10));
}

TEST(StepTrigger, FiresAtEveryStepOnlyOnce) {
  const FragmentSchedule schedule = Every(1);
  StepTrigger trigger(1, &schedule);
  EXPECT_THAT(ExchangesUpTo(trigger, 4), testing::ElementsAre(1, 2, 3));
}

TEST(StepTrigger, RequestFiresBetweenButNotInWarmup) {
  const FragmentSchedule schedule = Every(4);
  StepTrigger trigger(2, &schedule);
  EXPECT_THAT(ExchangesUpTo(trigger, 8, 3), testing::ElementsAre(2, 3, 6));
  EXPECT_THAT(ExchangesUpTo(trigger, 8, 1), testing::ElementsAre(2, 6));
  EXPECT_THAT(ExchangesUpTo(trigger, 8, 6), testing::ElementsAre(2, 6));
}

// ---- By time ------------------------------------------------------------------------------------

TEST(TimeTrigger, FiresWhenTheIntervalIsOverAndAgainWhenItIsAfterMeeting) {
  FakeClock clock;
  const EditOptions options = ByTime(&clock, 2, 100e-9);
  TimeTrigger trigger(options, nullptr);
  EXPECT_FALSE(*trigger.Due({.step = 1}));
  EXPECT_TRUE(*trigger.Due({.step = 2}));  // makes the anchors
  trigger.Met();
  clock.Advance(99);
  EXPECT_FALSE(*trigger.Due({.step = 3, .last_sync_step = 2}));
  clock.Advance(1);
  EXPECT_TRUE(*trigger.Due({.step = 3, .last_sync_step = 2}));
  clock.Advance(500);  // waits for the others
  trigger.Met();
  EXPECT_FALSE(*trigger.Due({.step = 4, .last_sync_step = 3}));
  clock.Advance(100);
  EXPECT_FALSE(*trigger.Due({.step = 3, .last_sync_step = 3})) << "twice at one step";
  EXPECT_TRUE(*trigger.Due({.step = 4, .last_sync_step = 3}));
}

TEST(TimeTrigger, WarnsOnceIfExchangesTakeTheWholeInterval) {
  std::vector<std::string> lines;
  SetLogSink([](int32_t, const char* line,
                void* to) { static_cast<std::vector<std::string>*>(to)->emplace_back(line); },
             &lines);
  FakeClock clock;
  const EditOptions options = ByTime(&clock, 0, 0.2);
  TimeTrigger trigger(options, nullptr);
  const auto exchange_after = [&](int64_t steps, int64_t* step) {
    trigger.Met();
    clock.Advance(kSecond);  // the exchange
    EXPECT_TRUE(*trigger.Due({.step = *step + steps, .last_sync_step = *step}));
    *step += steps;
  };
  int64_t step = 0;
  for (int i = 0; i < 30; ++i) {
    exchange_after(i % 7 == 0 ? 2 : 1, &step);  // at times a step is quick
  }
  EXPECT_EQ(lines.size(), 0u);
  for (int i = 0; i < 30; ++i) {
    exchange_after(1, &step);
  }
  SetLogSink(nullptr, nullptr);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], testing::HasSubstr("longer than local_sgd_sync_time, 0.2 s"));
}

// Only the first rank's clock counts, and all ranks learn of its time at the same step. The clocks
// of the others may be ahead, behind (that of rank 1 is up after 30 steps, that of rank 2 never),
// or one of each.
TEST(TimeTrigger, RanksOfAReplicaAgree) {
  const std::vector<std::vector<int64_t>> kOthers = {{50, 100}, {1, 0}, {100, 0}};
  for (const std::vector<int64_t>& others : kOthers) {
    RunRanks(3, [&others](const std::shared_ptr<Communicator>& comm) {
      const auto rank = static_cast<size_t>(comm->rank());
      const int64_t step_ns = rank == 0 ? 4 : others[rank - 1];
      FakeClock clock;
      EditOptions options = ByTime(&clock, 0, 10e-9);
      options.timeout_ns = 10 * kSecond;
      TimeTrigger trigger(options, *comm->Split(0, comm->rank()));
      trigger.Met();
      StepInfo info{.last_sync_step = 0};
      std::vector<int64_t> due;
      for (info.step = 1; info.step < 30; ++info.step) {
        clock.Advance(step_ns);
        if (*trigger.Due(info)) {
          due.push_back(info.step);
          info.last_sync_step = info.step;
          trigger.Met();
        }
      }
      // The time is up at the third step after a meeting. The ranks know it at the fourth.
      EXPECT_THAT(due, testing::ElementsAre(4, 8, 12, 16, 20, 24, 28));
      EXPECT_EQ(comm->Barrier(), absl::OkStatus());
    });
  }
}

// The other ranks' clocks are up at once. The first rank's clock never is.
TEST(TimeTrigger, ClocksOfOtherRanksDoNotEndAnInterval) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    FakeClock clock;
    EditOptions options = ByTime(&clock, 0, 10e-9);
    options.timeout_ns = 10 * kSecond;
    TimeTrigger trigger(options, *comm->Split(0, comm->rank()));
    trigger.Met();
    for (int64_t step = 1; step < 10; ++step) {
      clock.Advance(comm->rank() == 0 ? 1 : 1000);
      EXPECT_FALSE(*trigger.Due({.step = step, .last_sync_step = 0}));
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(TimeTrigger, AWordOfTheLastIntervalIsNoneOfThis) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    FakeClock clock;
    EditOptions options = ByTime(&clock, 0, 10e-9);
    options.timeout_ns = 10 * kSecond;
    TimeTrigger trigger(options, *comm->Split(0, comm->rank()));
    trigger.Met();
    clock.Advance(20);
    EXPECT_FALSE(
        // Its time is up, and the message about it is under way.
        *trigger.Due({.step = 1, .last_sync_step = 0}));
    EXPECT_TRUE(*trigger.Due({.step = 2, .last_sync_step = 0, .requested = true}));
    trigger.Met();
    EXPECT_FALSE(*trigger.Due({.step = 3, .last_sync_step = 2}));
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// Replicas of different speeds on a virtual clock. Returns the largest share of its time that a
// replica waits.
double IdleShare(const std::vector<double>& step_seconds, double tau, int rounds, bool met_after) {
  struct Replica {
    FakeClock clock;
    EditOptions options;
    std::unique_ptr<TimeTrigger> trigger;
    StepInfo info{.last_sync_step = 0};
    int64_t idle = 0;
  };
  std::vector<Replica> replicas(step_seconds.size());
  for (Replica& r : replicas) {
    r.options = ByTime(&r.clock, 0, tau);
    r.trigger = std::make_unique<TimeTrigger>(r.options, nullptr);
    r.trigger->Met();
  }
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> jitter(0.95, 1.05);
  for (int round = 0; round < rounds; ++round) {
    int64_t last = 0;
    for (size_t n = 0; n < replicas.size(); ++n) {
      Replica& r = replicas[n];
      do {
        r.clock.Advance(static_cast<int64_t>(step_seconds[n] * jitter(random) * kSecond));
        ++r.info.step;
      } while (!*r.trigger->Due(r.info));
      r.info.last_sync_step = r.info.step;
      last = std::max(last, r.clock.Now());
    }
    for (Replica& r : replicas) {
      if (!met_after) {
        r.trigger->Met();
      }
      r.idle += last - r.clock.Now();
      r.clock.Advance(last - r.clock.Now());
      if (met_after) {
        r.trigger->Met();
      }
    }
  }
  double most = 0;
  for (const Replica& r : replicas) {
    most = std::max(most, static_cast<double>(r.idle) / static_cast<double>(r.clock.Now()));
  }
  return most;
}

TEST(TimeTrigger, IntervalsThatBeginBeforeTheWaitLeaveTheFastIdle) {
  EXPECT_LT(IdleShare({1, 3.3}, 600, 2000, true), 0.05);
  EXPECT_LT(IdleShare({1, 1, 1, 3.3}, 60, 2000, true), 0.05);
  // As published.
  EXPECT_GT(IdleShare({1, 1, 1, 3.3}, 60, 2000, false), 0.9);
}

}  // namespace
}  // namespace entrain
