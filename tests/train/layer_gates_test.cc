// Gates over a worker of the host. Its turns only record that they ran.
#include "lib/train/edit/layer_gates.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

constexpr ExchangeRound::InFlight kTwo{.layers = 2};

using testing::ElementsAre;

// A round of the layers 0, 1 and 3 of four.
class Gates : public testing::Test {
 protected:
  void Begin(int prefetch) {
    gates_ = std::make_unique<LayerGates>(*worker_, error_, 4, prefetch);
    round_ = std::make_shared<ExchangeRound>(std::vector<int>{0, 1, 3}, Standing{}, false, kTwo);
    int next = 0;
    gates_->Begin(round_, [this, &next] {
      return worker_->Post([this, turn = next++] { return Run(turn); });
    });
  }
  absl::Status Run(int turn) {
    if (turn == fails_) {
      error_.Note(absl::InternalError("edit: exchange 1: broken"));
      return error_.status();
    }
    turns_.push_back(turn);
    return absl::OkStatus();
  }
  // Waits until the worker has taken all turns that it may take.
  void Settle() {
    while (gates_->FirstPending() >= 0 && gates_->FirstPending() != gates_->FirstHeldBack()) {
      std::this_thread::yield();
    }
  }

  FirstError error_;
  std::shared_ptr<ExchangeRound> round_;
  std::vector<int> turns_;
  int fails_ = -1;
  std::unique_ptr<LayerGates> gates_;
  std::unique_ptr<Worker> worker_ =
      std::make_unique<Worker>(60 * kSecond, [](const absl::Status&) {});
};

TEST_F(Gates, WithoutPrefetchALayerIsExchangedInItsOwnWait) {
  Begin(0);
  EXPECT_EQ(gates_->FirstHeldBack(), 0);
  EXPECT_EQ(gates_->FirstPending(), 0);
  EXPECT_EQ(gates_->WaitOpen(0), absl::OkStatus());
  Settle();
  EXPECT_THAT(turns_, ElementsAre(0));
  EXPECT_EQ(gates_->WaitOpen(2), absl::OkStatus());  // layer 2 has no turn; those before it have
  Settle();
  EXPECT_THAT(turns_, ElementsAre(0, 1));
  EXPECT_EQ(gates_->WaitOpen(3), absl::OkStatus());
  EXPECT_THAT(turns_, ElementsAre(0, 1, 2));
  EXPECT_EQ(gates_->FirstPending(), -1);
  EXPECT_EQ(gates_->FirstHeldBack(), -1);
  EXPECT_GT(gates_->waited_ns(), 0u);
}

TEST_F(Gates, AnExchangeThatIsOverIsNotYetWaitedFor) {
  Begin(3);
  Settle();
  EXPECT_EQ(gates_->FirstPending(), -1);
  EXPECT_EQ(gates_->FirstWithoutWait(), 0);
  EXPECT_EQ(gates_->WaitOpen(0), absl::OkStatus());
  EXPECT_EQ(gates_->FirstWithoutWait(), 1) << "layer 2 has no turn in this round";
  gates_->WhenOver(1, [](const absl::Status&) {});
  EXPECT_EQ(gates_->FirstWithoutWait(), 3);
  EXPECT_EQ(gates_->WaitOpen(3), absl::OkStatus());
  EXPECT_EQ(gates_->FirstWithoutWait(), -1);
  Begin(3);
  EXPECT_EQ(gates_->FirstWithoutWait(), 0) << "the next round asks anew";
}

TEST_F(Gates, TheWorkerComesPrefetchLayersFurther) {
  Begin(1);
  Settle();
  EXPECT_EQ(gates_->FirstPending(), 1);
  EXPECT_EQ(round_->allowed(), 0);
  EXPECT_EQ(gates_->WaitOpen(0), absl::OkStatus());
  Settle();
  EXPECT_EQ(gates_->FirstPending(), 3);
  EXPECT_EQ(gates_->FirstHeldBack(), 3);
  EXPECT_EQ(gates_->WaitOpen(1), absl::OkStatus());
  Settle();
  EXPECT_EQ(gates_->FirstPending(), -1);
}

TEST_F(Gates, AGatherIsCalledWhenTheExchangeIsOverAndLetsNothingBegin) {
  Begin(0);
  absl::Notification open;
  gates_->WhenOpen(1, [&](const absl::Status& status) {
    EXPECT_EQ(status, absl::OkStatus());
    open.Notify();
  });
  EXPECT_EQ(gates_->FirstHeldBack(), 0);
  EXPECT_FALSE(open.HasBeenNotified());
  EXPECT_EQ(gates_->WaitOpen(1), absl::OkStatus());
  open.WaitForNotification();
  // The turns are over, or never begin, before this returns.
  for (const int layer : {1, 2}) {
    bool told = false;
    gates_->WhenOpen(layer, [&](const absl::Status&) { told = true; });
    EXPECT_TRUE(told);
  }
  absl::Notification over;
  gates_->WhenOver(3, [&](const absl::Status&) { over.Notify(); });  // this lets it begin
  over.WaitForNotification();
  EXPECT_EQ(gates_->FirstPending(), -1);
}

TEST_F(Gates, AFailureInTheMiddleOpensAllGatesWithTheFirstError) {
  fails_ = 1;
  Begin(0);
  absl::Status held_back;
  absl::Notification told;
  gates_->WhenOpen(3, [&](const absl::Status& status) {
    held_back = status;
    told.Notify();
  });
  EXPECT_EQ(gates_->WaitOpen(0), absl::OkStatus());
  EXPECT_EQ(gates_->WaitOpen(1).message(), "edit: exchange 1: broken");
  told.WaitForNotification();
  EXPECT_EQ(held_back.message(), "edit: exchange 1: broken");
  EXPECT_EQ(gates_->WaitOpen(3).message(), "edit: exchange 1: broken");
  EXPECT_EQ(gates_->FirstPending(), -1);
  EXPECT_EQ(gates_->FirstHeldBack(), -1);
  EXPECT_THAT(turns_, ElementsAre(0));
}

TEST_F(Gates, AnotherRoundHasGatesOfItsOwn) {
  Begin(2);
  for (const int layer : {0, 1, 3}) {
    ASSERT_EQ(gates_->WaitOpen(layer), absl::OkStatus());
  }
  const uint64_t before = gates_->JobOf(1);
  round_ = std::make_shared<ExchangeRound>(std::vector<int>{1}, Standing{}, false, kTwo);
  gates_->Begin(round_, [this] { return worker_->Post([this] { return Run(9); }); });
  EXPECT_GT(gates_->JobOf(1), before);
  EXPECT_EQ(gates_->WaitOpen(1), absl::OkStatus());
  EXPECT_THAT(turns_, ElementsAre(0, 1, 2, 9));
  EXPECT_EQ(gates_->WaitOpen(2), absl::OkStatus());  // layer 2 had no turn
}

}  // namespace
}  // namespace entrain
