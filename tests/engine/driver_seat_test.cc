// Tests which thread drives, sleeps and is woken. The test plays the polled object of the seat.
// Naps are longer than the tests, unless a test is about naps, so a lost wake-up makes its test
// fail.

#include "lib/engine/driver_seat.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "lib/engine/backoff.h"

namespace entrain {
namespace {

// A sleeping thread is woken before such a nap ends, or the test fails.
constexpr int64_t kNoNap = 600 * kSecond;
constexpr int64_t kTimeLimitNs = 30 * kSecond;

// Yields until the condition holds. Returns false if it did not hold for a long time.
bool Soon(const std::function<bool()>& holds) {
  const Deadline until = Deadline::After(kTimeLimitNs);
  while (!holds()) {
    if (until.Passed(Clock::Real().Now())) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

// A polled object that the test plays. Hooks may be set only while no thread drives.
class Played final : public Polled {
 public:
  int Poll() override {
    EXPECT_FALSE(polling_.exchange(true)) << "two threads drive";
    poller.store(std::this_thread::get_id());
    polls.fetch_add(1);
    on_poll();
    polling_.store(false);
    return events.load();
  }
  bool Arm() override {
    arms.fetch_add(1);
    on_arm();
    return sleeps.load();
  }
  void CheckDeadlines() override { checks.fetch_add(1); }
  Deadline next_deadline() const override { return {due_ns.load()}; }

  std::function<void()> on_poll = [] {}, on_arm = [] {};
  std::atomic<int> polls{0}, arms{0}, checks{0};
  std::atomic<int> events{0};  // result of every poll
  std::atomic<bool> sleeps{true};
  std::atomic<int64_t> due_ns{Deadline::Never().at_ns};
  std::atomic<std::thread::id> poller{};

 private:
  std::atomic<bool> polling_{false};
};

// A work that the test finishes on the driver.
class HandWork final : public Work {
 public:
  HandWork() : Work(nullptr) {}
  void End(DriverSeat& seat) {
    Finish(absl::OkStatus());
    seat.WakeWaiters(this);
  }
};

class FunctionJob final : public Job {
 public:
  explicit FunctionJob(std::function<void()> run) : run_(std::move(run)) {}
  void Run() override {
    // The job may be destroyed when others learn that it has run.
    const auto run = std::move(run_);
    run();
  }

 private:
  std::function<void()> run_;
};

// A seat without a thread. Its sleepers must be woken.
class SeatTest : public testing::Test {
 protected:
  SeatTest() { EXPECT_TRUE(seat.status().ok()) << seat.status(); }
  // Starts a thread that waits for the work.
  std::thread Waits(HandWork& work, bool background = false) {
    return std::thread([this, &work, background] {
      EXPECT_TRUE(seat.Await(work, Deadline::Never(), background));
    });
  }
  void End(HandWork& work) {
    seat.RunInDriver([&] { work.End(seat); });
  }

  Played polled;
  DriverSeat seat{polled, {.own_thread = false, .longest_nap_ns = kNoNap}};
};

TEST_F(SeatTest, AWaiterTakesTheFreeSeatAndPollsInItsOwnThread) {
  HandWork work;
  polled.on_poll = [&] {
    EXPECT_TRUE(seat.Look().driven);
    if (polled.polls.load() == 3) {
      work.End(seat);
    }
  };
  EXPECT_TRUE(seat.Await(work, Deadline::Never(), false));
  EXPECT_EQ(polled.polls.load(), 3);
  EXPECT_EQ(polled.poller.load(), std::this_thread::get_id());
  EXPECT_FALSE(seat.Look().driven);
}

TEST_F(SeatTest, AWorkThatIsDoneNeedsNoDriver) {
  HandWork work;
  work.End(seat);
  EXPECT_TRUE(seat.Await(work, Deadline::Never(), false));
  EXPECT_EQ(polled.polls.load(), 0);
}

TEST_F(SeatTest, ASecondWaiterSleepsAndWakesWhenTheDriverEndsItsWork) {
  HandWork first, second;
  std::thread driver = Waits(first);
  ASSERT_TRUE(Soon([&] { return seat.Look().driven; }));
  std::thread waiter = Waits(second);
  ASSERT_TRUE(Soon([&] { return seat.Look().waiters == 1; }));
  FunctionJob end([&] { second.End(seat); });
  seat.Submit(&end);
  waiter.join();
  EXPECT_FALSE(first.done());
  EXPECT_TRUE(seat.Look().driven) << "the first waiter goes on";
  End(first);
  driver.join();
}

TEST_F(SeatTest, ADriverWhoseWorkIsDoneHandsOverToAWaiter) {
  HandWork first, second;
  std::thread driver = Waits(first);
  ASSERT_TRUE(Soon([&] { return seat.Look().driven; }));
  std::thread waiter = Waits(second);
  const std::thread::id waiter_id = waiter.get_id();
  ASSERT_TRUE(Soon([&] { return seat.Look().waiters == 1; }));
  FunctionJob end([&] { first.End(seat); });
  seat.Submit(&end);
  driver.join();
  EXPECT_TRUE(Soon([&] { return polled.poller.load() == waiter_id; }));
  End(second);
  waiter.join();
}

TEST_F(SeatTest, AWaiterWhoseWorkIsDoneDoesNotTakeOver) {
  HandWork first, second, third;
  std::thread driver = Waits(first);
  ASSERT_TRUE(Soon([&] { return seat.Look().driven; }));
  std::thread waiter = Waits(second), other = Waits(third);
  const std::thread::id other_id = other.get_id();
  ASSERT_TRUE(Soon([&] { return seat.Look().waiters == 2; }));
  FunctionJob end([&] {
    second.End(seat);
    first.End(seat);
  });
  seat.Submit(&end);
  driver.join();
  waiter.join();
  EXPECT_TRUE(Soon([&] { return polled.poller.load() == other_id; }));
  End(third);
  other.join();
}

TEST_F(SeatTest, SubmitWakesASleepingDriver) {
  HandWork work;
  std::thread driver = Waits(work);
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(Soon([&] { return seat.Look().driver_sleeps; }));
    std::atomic<bool> ran{false};
    FunctionJob job([&] { ran.store(true); });
    seat.Submit(&job);
    ASSERT_TRUE(Soon([&] { return ran.load(); })) << round;
  }
  End(work);
  driver.join();
}

TEST_F(SeatTest, AWatchedDescriptorWakesASleepingDriver) {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ASSERT_TRUE(seat.Watch(fd, "a descriptor").ok());
  HandWork work;
  std::thread driver = Waits(work, /*background=*/true);
  ASSERT_TRUE(Soon([&] { return seat.Look().driver_sleeps; }));
  const int before = polled.polls.load();
  const uint64_t one = 1;
  EXPECT_EQ(write(fd, &one, sizeof(one)), 8);
  EXPECT_TRUE(Soon([&] { return polled.polls.load() > before; }));
  End(work);
  driver.join();
  close(fd);
}

TEST_F(SeatTest, ADriverThatMayNotSleepGoesOn) {
  polled.sleeps = false;  // an event may have come already
  HandWork work;
  polled.on_arm = [&] {
    if (polled.arms.load() == 3) {
      work.End(seat);
    }
  };
  EXPECT_TRUE(seat.Await(work, Deadline::Never(), true));
  EXPECT_EQ(polled.arms.load(), 3);
}

TEST_F(SeatTest, ADriverSleepsNoLongerThanUntilTheNextDeadline) {
  HandWork work;
  polled.due_ns = Clock::Real().Now();
  polled.on_arm = [&] {
    if (polled.arms.load() == 3) {
      work.End(seat);
    }
  };
  EXPECT_TRUE(seat.Await(work, Deadline::Never(), true));
  EXPECT_GE(polled.checks.load(), 3) << "before every sleep";
}

TEST_F(SeatTest, KickRunsAJobThatNobodyDrives) {
  int ran = 0;
  FunctionJob job([&] { ++ran; });
  seat.Submit(&job);
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(seat.wanted());
  seat.Kick();
  EXPECT_EQ(ran, 1);
  EXPECT_FALSE(seat.wanted());
  seat.Kick();
  EXPECT_EQ(polled.polls.load(), 1) << "without a job it does nothing";
}

TEST_F(SeatTest, KickLeavesAJobToTheDriver) {
  ASSERT_TRUE(seat.TakeIfQuiet());
  int ran = 0;
  FunctionJob job([&] { ++ran; });
  std::thread other([&] {
    seat.Submit(&job);
    seat.Kick();
  });
  other.join();
  EXPECT_EQ(ran, 0);
  seat.Leave();
  EXPECT_EQ(ran, 1) << "without a thread the driver that leaves looks once more";
}

TEST_F(SeatTest, TakeIfQuietRefusesWhileAWorkIsOpenAJobWaitsOrAThreadDrives) {
  seat.CountOpenWork(1);
  EXPECT_FALSE(seat.TakeIfQuiet());
  seat.CountOpenWork(-1);
  FunctionJob job([] {});
  seat.Submit(&job);
  EXPECT_FALSE(seat.TakeIfQuiet());
  seat.Kick();
  EXPECT_TRUE(seat.TakeIfQuiet());
  EXPECT_FALSE(seat.TakeIfQuiet()) << "it is taken";
  seat.Leave();
  EXPECT_TRUE(seat.TakeIfQuiet());
  seat.Leave();
}

TEST_F(SeatTest, TakeIfQuietPollsOnlyWhatIsArmedAndFromTimeToTime) {
  const auto take = [&] {
    ASSERT_TRUE(seat.TakeIfQuiet());
    seat.Leave();
  };
  for (uint32_t i = 1; i < DriverSeat::kQuietTakesPerTurn; ++i) {
    take();
  }
  EXPECT_EQ(polled.polls.load(), 0);
  take();
  EXPECT_EQ(polled.polls.load(), 1);
  HandWork work;
  polled.on_arm = [&] { work.End(seat); };
  polled.sleeps = false;
  ASSERT_TRUE(seat.Await(work, Deadline::Never(), /*background=*/true));
  const int armed = polled.polls.load();
  take();
  EXPECT_EQ(polled.polls.load(), armed + 1) << "a turn disarms";
  take();
  EXPECT_EQ(polled.polls.load(), armed + 1);
}

TEST_F(SeatTest, StayGoesOnAsTheDriverUntilTheWorkIsDone) {
  HandWork work;
  ASSERT_TRUE(seat.TakeIfQuiet());
  polled.on_poll = [&] {
    if (polled.polls.load() == 5) {
      work.End(seat);
    }
  };
  seat.Stay(work);
  EXPECT_EQ(polled.polls.load(), 5);
  EXPECT_FALSE(seat.Look().driven);
}

TEST_F(SeatTest, ADriverThatMustFlushTakesOneMoreTurn) {
  ASSERT_TRUE(seat.TakeIfQuiet());
  seat.NeedFlush();
  seat.Leave();
  EXPECT_EQ(polled.polls.load(), 1);
  ASSERT_TRUE(seat.TakeIfQuiet());
  seat.Leave();
  EXPECT_EQ(polled.polls.load(), 1) << "once";
}

TEST_F(SeatTest, PollOnceTakesATurnUnlessAnotherThreadDrives) {
  seat.PollOnce();
  EXPECT_EQ(polled.polls.load(), 1);
  EXPECT_EQ(polled.checks.load(), 1) << "without a thread nobody else checks deadlines";
  ASSERT_TRUE(seat.TakeIfQuiet());
  seat.PollOnce();
  EXPECT_EQ(polled.polls.load(), 1);
  seat.Leave();
}

TEST_F(SeatTest, DeadlinesAreCheckedFromTimeToTimeThoughEventsKeepComing) {
  polled.events = 1;
  HandWork work;
  polled.on_poll = [&] {
    if (polled.polls.load() == 2 * static_cast<int>(DriverSeat::kTurnsPerDeadlineCheck)) {
      work.End(seat);
    }
  };
  EXPECT_TRUE(seat.Await(work, Deadline::Never(), false));
  EXPECT_EQ(polled.checks.load(), 2);
}

// Uses a clock that advances with every poll.
class SeatTimeTest : public testing::Test {
 protected:
  // Returns the number of turns before the first sleep.
  int TurnsUntilAsleep(bool background, bool crowded) {
    DriverSeat seat(polled, {.clock = &clock, .own_thread = false, .longest_nap_ns = kNoNap});
    seat.SetCrowded(crowded);
    HandWork work;
    int turns = 0;
    polled.on_poll = [&] { clock.Advance(Backoff::kYieldNs / 4); };
    polled.on_arm = [&] {
      turns = polled.polls.load();
      work.End(seat);
    };
    const int before = polled.polls.load();
    polled.sleeps = false;
    EXPECT_TRUE(seat.Await(work, Deadline::Never(), background));
    return turns - before;
  }
  FakeClock clock;
  Played polled;
};

TEST_F(SeatTimeTest, AWaiterInTheBackgroundSleepsAtOnce) {
  EXPECT_EQ(TurnsUntilAsleep(/*background=*/true, /*crowded=*/false), 1);
}

TEST_F(SeatTimeTest, AWaiterSpinsThenYieldsThenSleeps) {
  EXPECT_EQ(TurnsUntilAsleep(/*background=*/false, /*crowded=*/false), Backoff::kSpins + 5);
}

TEST_F(SeatTimeTest, AWaiterThatSharesItsCoreYieldsAtOnce) {
  EXPECT_EQ(TurnsUntilAsleep(/*background=*/false, /*crowded=*/true), 5);
}

TEST_F(SeatTimeTest, ADriverGivesUpAtItsInstantThoughEventsKeepComing) {
  DriverSeat seat(polled, {.clock = &clock, .own_thread = false, .longest_nap_ns = kNoNap});
  HandWork work;
  polled.events = 1;
  polled.on_poll = [&] { clock.Advance(kMillisecond); };
  const int64_t begin = clock.Now();
  EXPECT_FALSE(seat.Await(work, {begin + 100 * kMillisecond}, false));
  EXPECT_GE(clock.Now() - begin, 100 * kMillisecond);
  EXPECT_LE(clock.Now() - begin, 120 * kMillisecond);
  EXPECT_FALSE(seat.Look().driven);
}

TEST_F(SeatTimeTest, AWaiterThatSleepsGivesUpAtItsInstant) {
  DriverSeat seat(polled, {.own_thread = false, .longest_nap_ns = kNoNap});
  HandWork work;
  ASSERT_TRUE(seat.TakeIfQuiet());
  const int64_t begin = Clock::Real().Now();
  bool done = true;
  std::thread waiter([&] { done = seat.Await(work, Deadline::After(20 * kMillisecond), false); });
  waiter.join();
  EXPECT_FALSE(done);
  EXPECT_GE(Clock::Real().Now() - begin, 20 * kMillisecond);
  seat.Leave();
}

// A seat with a thread.
class SeatThreadTest : public testing::Test {
 protected:
  void Start(int64_t longest_nap_ns = kNoNap) {
    seat = std::make_unique<DriverSeat>(polled, SeatOptions{.longest_nap_ns = longest_nap_ns});
    ASSERT_TRUE(seat->status().ok()) << seat->status();
    seat->Start();
  }
  void TearDown() override {
    if (!closed) {
      seat->Close();
    }
  }
  Played polled;
  std::unique_ptr<DriverSeat> seat;
  bool closed = false;
};

TEST_F(SeatThreadTest, TheThreadStepsInWhereNobodyDrives) {
  Start();
  ASSERT_TRUE(Soon([&] { return seat->Look().thread_sleeps; }));
  EXPECT_NE(polled.poller.load(), std::this_thread::get_id());
  EXPECT_FALSE(seat->Look().driven) << "it does not sleep with the seat";
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> ran{false};
    FunctionJob job([&] { ran.store(true); });
    seat->Submit(&job);  // no Kick
    ASSERT_TRUE(Soon([&] { return ran.load(); })) << round;
  }
}

TEST_F(SeatThreadTest, TheThreadIsWokenForWhatACallerLeavesOpen) {
  Start();
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(Soon([&] { return seat->TakeIfQuiet(); }));
    const int before = polled.polls.load();
    seat->CountOpenWork(1);
    seat->Leave();
    ASSERT_TRUE(Soon([&] { return polled.polls.load() > before; })) << round;
    seat->CountOpenWork(-1);
  }
}

TEST_F(SeatThreadTest, TheThreadGivesTheSeatToAWaiter) {
  polled.sleeps = false;  // the thread drives all the time
  Start();
  HandWork work;
  std::thread waiter(
      [&] { EXPECT_TRUE(seat->Await(work, Deadline::Never(), /*background=*/false)); });
  const std::thread::id id = waiter.get_id();
  EXPECT_TRUE(Soon([&] { return polled.poller.load() == id; }));
  seat->RunInDriver([&] { work.End(*seat); });
  waiter.join();
}

TEST_F(SeatThreadTest, TheThreadNapsNoLongerThanItMay) {
  constexpr int64_t kNapNs = 40 * kMillisecond;
  std::vector<int64_t> slept_ns;
  std::atomic<bool> enough{false};
  int64_t asleep_ns = 0;
  polled.on_poll = [&] {
    if (const int64_t since = std::exchange(asleep_ns, 0); since > 0) {
      slept_ns.push_back(Clock::Real().Now() - since);
      enough.store(slept_ns.size() >= 8);
    }
  };
  polled.on_arm = [&] { asleep_ns = Clock::Real().Now(); };
  Start(kNapNs);
  EXPECT_TRUE(Soon([&] { return enough.load(); }));
  seat->Close();
  closed = true;
  // Checks the shortest sleep, because the machine may be busy.
  const int64_t shortest = *std::min_element(slept_ns.begin(), slept_ns.end());
  EXPECT_GE(shortest, kNapNs);
  EXPECT_LT(shortest, 2 * kNapNs);
}

TEST_F(SeatThreadTest, CloseEndsTheThreadAndKeepsTheSeat) {
  Start();
  ASSERT_TRUE(Soon([&] { return seat->Look().thread_sleeps; }));
  seat->Close();
  closed = true;
  EXPECT_TRUE(seat->Look().driven);
  EXPECT_FALSE(seat->TakeIfQuiet());
  const int before = polled.polls.load();
  seat->PollOnce();
  EXPECT_EQ(polled.polls.load(), before);
  seat->Turn();
  EXPECT_EQ(polled.polls.load(), before + 1) << "the caller of Close drives";
}

TEST_F(SeatThreadTest, WaitersWakeThoughTheSeatCloses) {
  for (int round = 0; round < 50; ++round) {
    DriverSeat one(polled, SeatOptions{.longest_nap_ns = kNoNap});
    one.Start();
    HandWork works[3];
    std::vector<std::thread> waiters;
    for (HandWork& work : works) {
      waiters.emplace_back([&] { EXPECT_TRUE(one.Await(work, Deadline::Never(), false)); });
    }
    FunctionJob end([&] {
      for (HandWork& work : works) {
        work.End(one);
      }
    });
    one.Submit(&end);
    one.Close();
    one.Turn();  // runs the job, if no thread has run it
    for (std::thread& waiter : waiters) {
      waiter.join();
    }
  }
  closed = true;
}

// Threads wait, submit, kick, poll and take the seat in every order. Naps do not end within the
// test, so one lost wake-up stops it.
class SeatHammer : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Progress, SeatHammer, testing::Bool(),
                         [](const auto& param) { return param.param ? "own_thread" : "callers"; });

TEST_P(SeatHammer, NoWakeUpIsLost) {
  constexpr int kThreads = 4, kRounds = 5000;
  Played polled;
  DriverSeat seat(polled, {.own_thread = GetParam(), .longest_nap_ns = kNoNap});
  seat.Start();
  std::atomic<int> left{kThreads};
  int unguarded = 0;  // used by jobs only
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<uint32_t>(t + 1));
      for (int k = 0; k < kRounds; ++k) {
        HandWork work;
        FunctionJob end([&] {
          ++unguarded;
          seat.CountOpenWork(-1);
          work.End(seat);
        });
        seat.CountOpenWork(1);
        seat.Submit(&end);
        switch (random() % 4) {
          case 0:
            seat.Kick();
            break;
          case 1:
            seat.PollOnce();
            break;
          case 2:
            if (seat.TakeIfQuiet()) {
              seat.Leave();
            }
            break;
          default:
            break;
        }
        if (!seat.Await(work, Deadline::After(kTimeLimitNs), random() % 2 == 0)) {
          ADD_FAILURE() << "a wait did not end";
          // The job would use objects that end with this frame.
          std::abort();
        }
      }
      left.fetch_sub(1);
    });
  }
  EXPECT_TRUE(Soon([&] { return left.load() == 0; }));
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(unguarded, kThreads * kRounds);
  seat.Close();
}

}  // namespace
}  // namespace entrain
