#include "lib/base/mpsc_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "lib/base/clock.h"

namespace entrain {
namespace {

struct Item : MpscNode {
  int pusher = 0, number = 0;
};

TEST(MpscQueue, EmptyGivesNull) {
  MpscQueue queue;
  EXPECT_TRUE(queue.Empty());
  EXPECT_EQ(queue.Pop(), nullptr);
  EXPECT_TRUE(queue.Empty());
}

TEST(MpscQueue, FirstInIsFirstOut) {
  MpscQueue queue;
  Item items[5];
  for (Item& item : items) {
    queue.Push(&item);
    EXPECT_FALSE(queue.Empty());
  }
  for (Item& item : items) {
    EXPECT_FALSE(queue.Empty());
    EXPECT_EQ(queue.Pop(), &item);
  }
  EXPECT_TRUE(queue.Empty());
  EXPECT_EQ(queue.Pop(), nullptr);
}

TEST(MpscQueue, ANodeCanBePushedAgain) {
  MpscQueue queue;
  Item item;
  for (int i = 0; i < 10; ++i) {
    queue.Push(&item);
    EXPECT_EQ(queue.Pop(), &item);
    EXPECT_TRUE(queue.Empty());
  }
}

// Two threads push and this one pops. Nothing is lost, and the items of each thread come in its
// order.
TEST(MpscQueue, KeepsEachPushersOrder) {
  constexpr int kPushers = 2, kItems = 20000;
  MpscQueue queue;
  std::vector<std::unique_ptr<Item[]>> items;
  for (int p = 0; p < kPushers; ++p) {
    items.push_back(std::make_unique<Item[]>(kItems));
  }
  std::vector<std::thread> threads;
  for (int p = 0; p < kPushers; ++p) {
    threads.emplace_back([&queue, mine = items[static_cast<size_t>(p)].get(), p] {
      for (int i = 0; i < kItems; ++i) {
        mine[i].pusher = p;  // published by Push
        mine[i].number = i;
        queue.Push(&mine[i]);
      }
    });
  }
  int next[kPushers] = {};
  const Deadline deadline = Deadline::After(30 * kSecond);
  while (next[0] + next[1] < kPushers * kItems && !deadline.Passed(Clock::Real().Now())) {
    if (const MpscNode* const node = queue.Pop()) {
      const Item& item = *static_cast<const Item*>(node);
      EXPECT_EQ(item.number, next[item.pusher]++);
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(next[0] + next[1], kPushers * kItems);
  EXPECT_TRUE(queue.Empty());
}

// After a push has returned, the queue is not empty until its node has been popped, whatever other
// threads do: a popper that sees an empty queue may sleep. The pusher waits until each of its nodes
// is taken, so that the queue is often at its last node, where the stub is appended.
TEST(MpscQueue, IsNotEmptyWhileANodeWaits) {
  constexpr int kPushers = 2, kRounds = 2000;
  MpscQueue queue;
  std::atomic<int> taken[kPushers] = {}, pushed[kPushers] = {}, running{kPushers};
  std::vector<std::thread> threads;
  Item items[kPushers];
  const Deadline deadline = Deadline::After(30 * kSecond);
  for (int p = 0; p < kPushers; ++p) {
    items[p].pusher = p;
    threads.emplace_back([&, p] {
      for (int i = 1; i <= kRounds; ++i) {
        queue.Push(&items[p]);
        pushed[p] = i;
        while (taken[p] < i) {
          if (deadline.Passed(Clock::Real().Now())) {
            --running;
            return;  // a node in the queue must not be pushed
          }
          std::this_thread::yield();
        }
      }
      --running;
    });
  }
  int lies = 0;
  while (running > 0) {
    if (MpscNode* const node = queue.Pop()) {
      ++taken[static_cast<Item*>(node)->pusher];
      continue;
    }
    const bool waiting = pushed[0] > taken[0] || pushed[1] > taken[1];
    lies += waiting && queue.Empty() ? 1 : 0;
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(lies, 0);
  EXPECT_EQ(taken[0] + taken[1], kPushers * kRounds);
}

}  // namespace
}  // namespace entrain
