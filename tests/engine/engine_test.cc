// Tests which thread drives, sleeps and is woken, with many threads on one engine and works that
// the test finishes.

#include "lib/engine/engine.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace entrain {
namespace {

class HandWork final : public Work {
 public:
  explicit HandWork(Engine* engine) : Work(engine) {}
  using Work::Finish;
};

class EngineUnder : public testing::TestWithParam<bool> {
 protected:
  EngineUnder() : engine_(std::make_shared<Engine>(SeatOptions{.own_thread = GetParam()})) {
    EXPECT_TRUE(engine_->status().ok()) << engine_->status();
    engine_->Start();
  }
  ~EngineUnder() override { engine_->Shutdown(); }
  std::shared_ptr<Engine> engine_;
};
INSTANTIATE_TEST_SUITE_P(Progress, EngineUnder, testing::Bool(),
                         [](const auto& param) { return param.param ? "own_thread" : "callers"; });

TEST_P(EngineUnder, JobsOfManyThreadsRunOneAtATime) {
  int unguarded = 0;  // used by jobs only
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) {
        engine_->seat().RunInDriver([&] { ++unguarded; });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(unguarded, 2000);
}

TEST_P(EngineUnder, WaitGivesUpAtItsInstantAndNotBefore) {
  auto work = RefPtr<HandWork>::Adopt(new HandWork(engine_.get()));
  const int64_t begin = Clock::Real().Now();
  EXPECT_FALSE(work->Wait(Deadline::After(30 * kMillisecond)));
  const int64_t took = Clock::Real().Now() - begin;
  EXPECT_GE(took, 30 * kMillisecond);
  EXPECT_LT(took, 2 * kSecond);
  engine_->seat().RunInDriver([&] { work->Finish(absl::OkStatus()); });
  EXPECT_TRUE(work->Wait(Deadline::After(0)));
}

TEST_P(EngineUnder, EveryWaiterWakesWhoeverDrives) {
  constexpr int kWaiters = 6;
  for (int round = 0; round < 50; ++round) {
    std::vector<RefPtr<HandWork>> works;
    std::vector<std::thread> threads;
    std::atomic<int> woken{0};
    for (int w = 0; w < kWaiters; ++w) {
      works.push_back(RefPtr<HandWork>::Adopt(new HandWork(engine_.get())));
    }
    for (int w = 0; w < kWaiters; ++w) {
      threads.emplace_back([&, w] {
        EXPECT_TRUE(works[static_cast<size_t>(w)]->Wait(Deadline::After(20 * kSecond), w % 2 == 0));
        woken.fetch_add(1);
      });
    }
    // In this order the driver leaves while others wait.
    for (int w = kWaiters - 1; w >= 0; --w) {
      engine_->seat().RunInDriver([&] { works[static_cast<size_t>(w)]->Finish(absl::OkStatus()); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(woken.load(), kWaiters);
  }
}

TEST_P(EngineUnder, FirstStatusOfAWorkCounts) {
  auto work = RefPtr<HandWork>::Adopt(new HandWork(engine_.get()));
  engine_->seat().RunInDriver([&] {
    work->Finish(absl::AbortedError("first"));
    work->Finish(absl::OkStatus());
  });
  EXPECT_EQ(work->status().message(), "first");
}

TEST_P(EngineUnder, ContextsAreHandedOutOnceAndAcceptedUntilClosed) {
  const Context a = engine_->ReserveContext(), b = engine_->ReserveContext();
  EXPECT_NE(a, b);
  EXPECT_NE(a, 0);
  EXPECT_TRUE(engine_->Accepts(a));
  EXPECT_FALSE(engine_->Accepts(static_cast<Context>(b + 1)));
  engine_->ReleaseContext(a);
  EXPECT_FALSE(engine_->Accepts(a));
}

TEST(EngineEnd, WaitersOutliveTheShutdown) {
  for (int round = 0; round < 100; ++round) {
    auto engine = std::make_shared<Engine>(SeatOptions{});
    engine->Start();
    auto work = RefPtr<HandWork>::Adopt(new HandWork(engine.get()));
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back(
          [&work, engine] { EXPECT_TRUE(work->Wait(Deadline::After(20 * kSecond))); });
    }
    engine->seat().RunInDriver([&] { work->Finish(absl::OkStatus()); });
    engine->Shutdown();
    engine.reset();  // the waiters' copies are the last
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

}  // namespace
}  // namespace entrain
