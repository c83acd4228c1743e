// The contract of stores, tested with every store.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/store/file_access.h"
#include "lib/store/prefix_store.h"
#include "lib/store/store.h"
#include "tests/store/store_source.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

class StoreContract : public ::testing::TestWithParam<const char*> {
 protected:
  StoreSource source_{GetParam()};
  std::shared_ptr<Store> a_ = source_.Open(), b_ = source_.Open();
};

TEST_P(StoreContract, OneHandleSeesWhatAnotherSet) {
  ASSERT_TRUE(a_->Set("key", "value", Soon()).ok());
  EXPECT_EQ(*b_->Get("key", Soon()), "value");
  EXPECT_EQ(*b_->TryGet("key", Soon()), "value");
  ASSERT_TRUE(b_->Set("key", "other", Soon()).ok());
  EXPECT_EQ(*a_->Get("key", Soon()), "other");
}

TEST_P(StoreContract, AnyBytesAreKeysAndValues) {
  std::string key("a/b\0c%.\xff\n ..", 13);
  const std::string value("\0\x01\xff", 3);
  if (GetParam() == std::string("functions")) {
    EXPECT_EQ(a_->Set(key, value, Soon()).code(), absl::StatusCode::kInvalidArgument);
    std::replace(key.begin(), key.end(), '\0', '0');  // keys of functions are C strings
  }
  ASSERT_TRUE(a_->Set(key, value, Soon()).ok());
  EXPECT_EQ(*b_->Get(key, Soon()), value);
  ASSERT_TRUE(a_->Set("empty", "", Soon()).ok());
  EXPECT_EQ(*b_->Get("empty", Soon()), "");
  // Keys that differ only in characters that a file name cannot hold are different keys.
  EXPECT_EQ(a_->TryGet("a/b", Soon()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(a_->TryGet("..", Soon()).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreContract, LongestKeysAndValuesFit) {
  const size_t room = kMaxStoreKey - (GetParam() == std::string("prefix") ? 5 : 0);
  const std::string one(room, '/'), two = one.substr(1) + "x", value(kMaxStoreValue, 'v');
  ASSERT_TRUE(a_->Set(one, value, Soon()).ok());
  ASSERT_TRUE(a_->Set(two, "short", Soon()).ok());
  EXPECT_EQ(*b_->Get(one, Soon()), value);
  EXPECT_EQ(*b_->Get(two, Soon()), "short");
}

TEST_P(StoreContract, WhatIsTooLongIsRefused) {
  EXPECT_EQ(a_->Set(std::string(kMaxStoreKey + 1, 'k'), "", Soon()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->Set("k", std::string(kMaxStoreValue + 1, 'v'), Soon()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      a_->CompareAndSet("k", std::string(kMaxStoreValue + 1, 'v'), "", Soon()).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->TryGet("k", Soon()).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreContract, GetWaitsForTheKey) {
  auto waiting = std::async(std::launch::async, [&] { return a_->Get("later", Soon()); });
  ASSERT_TRUE(b_->Set("earlier", "x", Soon()).ok());
  ASSERT_TRUE(b_->Set("later", "came", Soon()).ok());
  EXPECT_EQ(*waiting.get(), "came");
}

TEST_P(StoreContract, WaitingGetsOfOneHandleDoNotHoldEachOtherUp) {
  std::vector<std::future<absl::StatusOr<std::string>>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(std::async(std::launch::async,
                                 [&, i] { return a_->Get("k" + std::to_string(i), Soon()); }));
  }
  for (int i = 7; i >= 0; --i) {
    ASSERT_TRUE(a_->Set("k" + std::to_string(i), std::to_string(i), Soon()).ok());
    EXPECT_EQ(*waiting[static_cast<size_t>(i)].get(), std::to_string(i));
  }
}

TEST_P(StoreContract, GetEndsByItsDeadlineNamingTheKey) {
  const auto value = a_->Get("never", {Deadline::After(60 * kMillisecond), nullptr});
  EXPECT_EQ(value.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr("never"));
  ASSERT_TRUE(a_->Set("never", "still usable", Soon()).ok());
  EXPECT_EQ(*a_->Get("never", Soon()), "still usable");
}

TEST_P(StoreContract, GetEndsByItsFlag) {
  std::atomic<bool> cancelled{false};
  auto waiting = std::async(std::launch::async, [&] {
    const auto value = a_->Get("never", {Deadline::Never(), &cancelled});
    return std::make_pair(value.status(), Clock::Real().Now());
  });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  const int64_t start = Clock::Real().Now();
  cancelled = true;
  const auto [status, end] = waiting.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_LT(end - start, kSecond);  // 20 ms, and the machine's load
}

TEST_P(StoreContract, TryGetDoesNotWait) {
  const auto value = a_->TryGet("absent", Soon());
  EXPECT_EQ(value.status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreContract, AddCountsFromZero) {
  EXPECT_EQ(*a_->Add("n", 3, Soon()), 3);
  EXPECT_EQ(*b_->Add("n", -5, Soon()), -2);
  EXPECT_EQ(*a_->Get("n", Soon()), "-2");
}

TEST_P(StoreContract, AddRefusesTextAndOverflow) {
  ASSERT_TRUE(a_->Set("t", "text", Soon()).ok());
  EXPECT_EQ(a_->Add("t", 1, Soon()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*a_->Get("t", Soon()), "text");
  ASSERT_TRUE(a_->Set("m", "9223372036854775807", Soon()).ok());
  EXPECT_EQ(a_->Add("m", 1, Soon()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreContract, AddIsAtomic) {
  constexpr int kThreads = 4, kTimes = 50;
  std::vector<std::thread> threads;
  std::vector<std::vector<int64_t>> sums(kThreads);
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, store = t % 2 == 0 ? a_ : b_] {
      for (int i = 0; i < kTimes; ++i) {
        sums[t].push_back(store->Add("n", 1, Soon()).value_or(-1));
      }
    });
  }
  std::set<int64_t> all;
  for (size_t t = 0; t < kThreads; ++t) {
    threads[t].join();
    all.insert(sums[t].begin(), sums[t].end());
  }
  EXPECT_EQ(all.size(), size_t{kThreads * kTimes});
  EXPECT_EQ(*all.begin(), 1);
  EXPECT_EQ(*all.rbegin(), kThreads * kTimes);
}

// Every store except stores of functions.
class CompareAndSetContract : public StoreContract {};

TEST_P(CompareAndSetContract, CompareAndSetTakesEffectOnlyOnAMatch) {
  EXPECT_EQ(*a_->CompareAndSet("k", "x", "y", Soon()), "");
  EXPECT_EQ(a_->TryGet("k", Soon()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*a_->CompareAndSet("k", "", "first", Soon()), "first");
  EXPECT_EQ(*b_->CompareAndSet("k", "", "second", Soon()), "first");
  EXPECT_EQ(*b_->CompareAndSet("k", "first", "second", Soon()), "second");
  EXPECT_EQ(*a_->Get("k", Soon()), "second");
  EXPECT_EQ(*a_->CompareAndSet("absent", "x", "", Soon()), "");
  EXPECT_EQ(a_->TryGet("absent", Soon()).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(CompareAndSetContract, CompareAndSetHasOneWinner) {
  std::vector<std::future<std::string>> tries;
  for (int i = 0; i < 4; ++i) {
    tries.push_back(std::async(std::launch::async, [&, i, store = i % 2 == 0 ? a_ : b_] {
      return *store->CompareAndSet("leader", "", std::to_string(i), Soon());
    }));
  }
  std::set<std::string> leaders;
  for (auto& one : tries) {
    leaders.insert(one.get());
  }
  EXPECT_EQ(leaders.size(), 1u);
  EXPECT_EQ(*a_->Get("leader", Soon()), *leaders.begin());
}

TEST_P(CompareAndSetContract, CompareAndSetWakesWhoWaits) {
  auto waiting = std::async(std::launch::async, [&] { return a_->Get("k", Soon()); });
  ASSERT_TRUE(b_->CompareAndSet("k", "", "v", Soon()).ok());
  EXPECT_EQ(*waiting.get(), "v");
}

TEST_P(StoreContract, WhatIsDeletedIsAbsentForEveryHandle) {
  if (GetParam() == std::string("functions")) {
    const auto base = *OpenStore(source_.url(), "", Soon());
    EXPECT_EQ(a_->Delete("key", Soon()).code(), absl::StatusCode::kUnimplemented);
    a_ = MakeFunctionStore(FunctionsOver(base, true), "");
    b_ = MakeFunctionStore(FunctionsOver(base, true), "");
  }
  ASSERT_TRUE(a_->Set("key", "value", Soon()).ok());
  ASSERT_TRUE(a_->Set("other", "stays", Soon()).ok());
  ASSERT_EQ(*b_->Add("count", 5, Soon()), 5);
  EXPECT_EQ(b_->Delete("key", Soon()), absl::OkStatus());
  EXPECT_EQ(b_->Delete("count", Soon()), absl::OkStatus());
  EXPECT_EQ(a_->TryGet("key", Soon()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*a_->TryGet("other", Soon()), "stays");
  EXPECT_EQ(*a_->Add("count", 1, Soon()), 1);
  EXPECT_EQ(a_->Delete("key", Soon()), absl::OkStatus()) << "there is none";
  EXPECT_EQ(a_->Delete("", Soon()).code(), absl::StatusCode::kInvalidArgument);
  // Setting the key again wakes the waiting threads.
  auto waiting = std::async(std::launch::async, [&] { return a_->Get("key", Soon()); });
  ASSERT_TRUE(b_->Set("key", "again", Soon()).ok());
  EXPECT_EQ(*waiting.get(), "again");
}

TEST(FunctionStore, WithoutRemoveNothingIsDeleted) {
  const StoreSource source("mem");
  const auto store = MakeFunctionStore(FunctionsOver(source.Open()), "");
  ASSERT_TRUE(store->Set("key", "value", Soon()).ok());
  const absl::Status deleted = store->Delete("key", Soon());
  EXPECT_EQ(deleted.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(deleted.message()),
              HasSubstr("delete of key \"key\": it has no function remove"));
  EXPECT_EQ(*store->TryGet("key", Soon()), "value");
}

TEST_P(StoreContract, EmptyKeyIsRefused) {
  EXPECT_EQ(a_->Set("", "x", Soon()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(CompareAndSetContract, LongestKeysAndValuesFit) {
  const std::string key(kMaxStoreKey / 2, '/'), value(kMaxStoreValue, 'v');
  ASSERT_TRUE(a_->Set(key, value, Soon()).ok());
  EXPECT_EQ(*b_->CompareAndSet(key, value, value, Soon()), value);
}

INSTANTIATE_TEST_SUITE_P(Every, CompareAndSetContract,
                         ::testing::ValuesIn(KindsHere({"mem", "file", "local", "tcp", "tcp_tls",
                                                        "prefix"})),
                         [](const auto& kind) { return std::string(kind.param); });

INSTANTIATE_TEST_SUITE_P(Every, StoreContract,
                         ::testing::ValuesIn(KindsHere({"mem", "file", "local", "tcp", "tcp_tls",
                                                        "prefix", "functions"})),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(EtcdTests, RunHere) {
  if (const std::string why = WhyNoEtcd(); !why.empty()) {
    GTEST_SKIP() << why;
  }
}

TEST(PrefixStore, PartsDoNotSeeEachOther) {
  const auto base = *OpenStore("mem:parts", "", Soon());
  const auto one = WithPrefix(base, "one/"), two = WithPrefix(base, "two/");
  ASSERT_TRUE(one->Set("k", "1", Soon()).ok());
  EXPECT_EQ(two->TryGet("k", Soon()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*base->Get("one/k", Soon()), "1");
  const auto mine = *one->Join("meeting", 0, 2, Parts{"a"}, Soon());
  const auto other = *two->Join("meeting", 1, 2, Parts{"b"}, Soon());
  EXPECT_EQ(*mine->Absent(Soon()), std::vector<int>{1});
  EXPECT_EQ(*other->Absent(Soon()), std::vector<int>{0});
}

TEST(MemStore, LivesAsLongAsSomebodyHoldsIt) {
  auto store = *OpenStore("mem:brief", "", Soon());
  ASSERT_TRUE(store->Set("k", "v", Soon()).ok());
  EXPECT_TRUE((*OpenStore("mem:brief", "", Soon()))->TryGet("k", Soon()).ok());
  store.reset();
  EXPECT_FALSE((*OpenStore("mem:brief", "", Soon()))->TryGet("k", Soon()).ok());
}

TEST(FileStore, CreatesItsDirectory) {
  std::string pattern = ::testing::TempDir() + "entrain-store-XXXXXX";
  const std::string root = mkdtemp(pattern.data());
  const auto store = OpenStore("file:" + root + "/a/b", "", Soon());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Set("k", "v", Soon()).ok());
  std::filesystem::remove_all(root);
}

TEST(FileStore, UnusableDirectoryIsNamed) {
  const auto store = OpenStore("file:/dev/null/x", "", Soon());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("/dev/null"));
}

// A child that another thread forked holds copies of open descriptors, and may live long.
TEST(FileStore, LocksAreTheProcessesThatTookThem) {
  std::string pattern = ::testing::TempDir() + "entrain-store-XXXXXX";
  const std::string root = mkdtemp(pattern.data());
  Fd turn = LockDirectory(root, Soon(), "test").value();
  Fd seat;
  ASSERT_TRUE(ReplaceFile(root, root + "/seat", "bytes", &seat).ok());
  int born[2], until[2];
  ASSERT_EQ(pipe(born), 0);
  ASSERT_EQ(pipe(until), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(born[1]);
    close(until[1]);
    char byte;
    _exit(read(until[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(born[1]);
  char byte;
  EXPECT_EQ(read(born[0], &byte, 1), 0);  // the child runs, and has closed its descriptors
  const Fd other(open((root + "/seat").c_str(), O_RDONLY | O_CLOEXEC));
  const auto take_turn = [&](int64_t ns) {
    return LockDirectory(root, {Deadline::After(ns), nullptr}, "test").status();
  };
  EXPECT_EQ(take_turn(10 * kMillisecond).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(flock(other.get(), LOCK_SH | LOCK_NB), 0);
  turn.Reset();
  seat.Reset();
  EXPECT_TRUE(take_turn(10 * kMillisecond).ok());
  EXPECT_EQ(flock(other.get(), LOCK_SH | LOCK_NB), 0);
  close(until[1]);
  waitpid(child, nullptr, 0);
  close(born[0]);
  close(until[0]);
  std::filesystem::remove_all(root);
}

TEST(OpenStore, MalformedUrlsAreRefusedByName) {
  for (const char* url : {"", "x", "http://h:1", "mem:", "file:", "tcp://", "tcp://h", "tcp://h:0",
                          "tcp://h:1,", "tcp://:1", "tcp:h:1"}) {
    const auto store = OpenStore(url, "", Soon());
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << url;
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(url));
  }
}

}  // namespace
}  // namespace entrain
