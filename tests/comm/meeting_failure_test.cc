// Ranks end, or give up, while other ranks create a communicator with them. All other ranks get an
// error within two seconds, which names the rank. Ranks are threads with a runtime each; ranks that
// die are processes.
#include <csignal>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/store.h"
#include "tests/store/store_source.h"
#include "tests/support/passing_store.h"
#include "tests/support/processes.h"
#include "tests/support/slow_way.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLong = 60 * kSecond;

struct How {
  std::string transports = "tcp";
  int64_t timeout_ns = kLong;
  std::string tuning = {};
};

absl::Status Create(const std::shared_ptr<Store>& store, int rank, int size, const How& how = {}) {
  RuntimeOptions runtime_options;
  runtime_options.transports = how.transports;
  auto runtime = Runtime::Create(runtime_options);
  if (!runtime.ok()) {
    return runtime.status();
  }
  CommOptions options;
  options.runtime = *runtime;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.timeout_ns = how.timeout_ns;
  options.tuning = how.tuning;
  return Communicator::Create(options).status();
}

struct Outcome {
  absl::Status status;
  int64_t at_ns = 0;
};

std::future<Outcome> Creating(std::shared_ptr<Store> store, int rank, int size, How how = {}) {
  return std::async(std::launch::async, [store = std::move(store), rank, size, how] {
    Outcome outcome;
    outcome.status = Create(store, rank, size, how);
    outcome.at_ns = Clock::Real().Now();
    return outcome;
  });
}

// A meeting that writes a byte when its rank has joined, and another byte when all ranks have
// joined. If `stays`, the rank then does nothing more.
class TellingMeeting final : public PassingMeeting {
 public:
  TellingMeeting(std::unique_ptr<StoreMeeting> base, int told, bool stays)
      : PassingMeeting(std::move(base)), told_(told), stays_(stays) {
    (void)!write(told_, "y", 1);
  }
  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    auto table = PassingMeeting::Wait(stop);
    (void)!write(told_, table.ok() ? "y" : "n", 1);
    while (stays_) {
      pause();
    }
    return table;
  }

 private:
  const int told_;
  const bool stays_;
};

class TellingStore final : public PassingStore {
 public:
  TellingStore(std::shared_ptr<Store> base, int told, bool stays)
      : PassingStore(std::move(base)), told_(told), stays_(stays) {}
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank, int size,
                                                     const absl::StatusOr<Parts>& mine,
                                                     const Stop& stop) override {
    auto joined = PassingStore::Join(key, rank, size, mine, stop);
    if (!joined.ok()) {
      return joined.status();
    }
    return std::unique_ptr<StoreMeeting>(
        std::make_unique<TellingMeeting>(*std::move(joined), told_, stays_));
  }

 private:
  const int told_;
  const bool stays_;
};

// Creates over a store of each kind that processes can share.
class CreationOver : public ::testing::TestWithParam<const char*> {
 protected:
  CreationOver() {
    const std::string kind = GetParam();
    if (kind == "file") {
      url_ = "file:" + directory_.path();
    } else if (kind == "etcd") {
      static const EtcdServer etcd;
      url_ = etcd.url(::testing::UnitTest::GetInstance()->current_test_info()->name());
    } else {
      served_ = *ServeStore(
          kind == "tcp" ? "tcp://127.0.0.1:0" : absl::StrCat("local:creation", getpid()), "");
      url_ = served_->url();
    }
  }
  std::shared_ptr<Store> Open() const { return *OpenStore(url_, "", Soon()); }

  // Forks a process that creates a communicator as `rank`, and reports when it has joined and when
  // all ranks have joined. `stays`: the process then does nothing more.
  pid_t Child(int rank, int size, bool stays) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = StartProcess([&] {
      Create(std::make_shared<TellingStore>(Open(), ready[1], stays), rank, size).IgnoreError();
    });
    close(ready[1]);
    from_child_ = ready[0];
    return child;
  }
  void AwaitWord() const {
    char said = 'n';
    EXPECT_EQ(read(from_child_, &said, 1), 1);
    EXPECT_EQ(said, 'y');
  }
  void Kill(pid_t child) {
    killed_ns_ = Clock::Real().Now();
    kill(child, SIGKILL);
    EndOf(child);
    close(from_child_);
  }
  void ExpectToldOf(int rank, std::vector<std::future<Outcome>>& ranks) const {
    for (std::future<Outcome>& one : ranks) {
      const Outcome outcome = one.get();
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable) << outcome.status;
      EXPECT_EQ(BlameOf(outcome.status).rank, rank) << outcome.status;
      EXPECT_THAT(std::string(outcome.status.message()), HasSubstr(absl::StrCat("rank ", rank)));
      EXPECT_LT(outcome.at_ns - killed_ns_, 2 * kSecond) << outcome.status;
    }
  }

  const TempDirectory directory_;
  std::string url_;
  std::shared_ptr<Store> served_;
  int from_child_ = -1;
  int64_t killed_ns_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Over, CreationOver, testing::ValuesIn(KindsHere({"file", "local", "tcp"})),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(CreationOver, RankThatIsKilledWhileOthersWaitIsNamed) {
  const pid_t child = Child(1, 4, false);
  AwaitWord();
  std::vector<std::future<Outcome>> ranks;
  ranks.push_back(Creating(Open(), 0, 4));
  ranks.push_back(Creating(Open(), 2, 4));
  for (auto& one : ranks) {  // rank 3 never comes
    EXPECT_EQ(one.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  }
  Kill(child);
  ExpectToldOf(1, ranks);
}

TEST_P(CreationOver, RankThatIsKilledBeforeItConnectsIsNamed) {
  // The child answers a peer that connects, but connects to no peer.
  const pid_t child = Child(1, 3, true);
  std::vector<std::future<Outcome>> ranks;
  ranks.push_back(Creating(Open(), 0, 3));
  ranks.push_back(Creating(Open(), 2, 3));
  AwaitWord();
  AwaitWord();
  for (auto& one : ranks) {
    EXPECT_EQ(one.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  }
  Kill(child);
  ExpectToldOf(1, ranks);
}

// ---- Threads

std::shared_ptr<Store> NewStore(const char* name) {
  return *OpenStore(absl::StrCat("mem:", name), "", Soon());
}

TEST(GivingUp, RankThatCannotTakePartTellsTheOthers) {
  const auto store = NewStore("unable");
  auto one = Creating(store, 1, 3, {.transports = "inproc"});
  EXPECT_EQ(one.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  const absl::Status own =
      Create(store, 0, 3, {.transports = "inproc", .tuning = "/no/such/tuning"});
  const Outcome outcome = one.get();
  EXPECT_THAT(std::string(own.message()), HasSubstr("/no/such/tuning"));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kAborted) << outcome.status;
  EXPECT_EQ(BlameOf(outcome.status).rank, 0);
  EXPECT_THAT(std::string(outcome.status.message()),
              AllOf(HasSubstr("rank 0 gave up"), HasSubstr("/no/such/tuning")));
}

// A meeting of which the rank does not hear that it has failed. Notes that the rank waits for the
// others.
class DeafMeeting final : public PassingMeeting {
 public:
  DeafMeeting(std::unique_ptr<StoreMeeting> base, absl::Notification& waits)
      : PassingMeeting(std::move(base)), waits_(waits) {}
  absl::Status Check() override {
    if (!waits_.HasBeenNotified()) {
      waits_.Notify();
    }
    return absl::OkStatus();
  }

 private:
  absl::Notification& waits_;
};

// A meeting after which the rank cannot go on. It fails when the deaf rank waits.
class UselessMeeting final : public PassingMeeting {
 public:
  UselessMeeting(std::unique_ptr<StoreMeeting> base, absl::Status why, absl::Notification& waits)
      : PassingMeeting(std::move(base)), why_(std::move(why)), waits_(waits) {}
  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    const bool met = PassingMeeting::Wait(stop).ok();
    waits_.WaitForNotificationWithTimeout(absl::Seconds(10));
    return met ? why_ : absl::InternalError("no table");
  }

 private:
  const absl::Status why_;
  absl::Notification& waits_;
};

// Gives its rank a UselessMeeting if `why` is an error, otherwise a DeafMeeting.
class StoreForOne final : public PassingStore {
 public:
  StoreForOne(std::shared_ptr<Store> base, absl::Status why, absl::Notification& waits)
      : PassingStore(std::move(base)), why_(std::move(why)), waits_(waits) {}
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank, int size,
                                                     const absl::StatusOr<Parts>& mine,
                                                     const Stop& stop) override {
    auto joined = PassingStore::Join(key, rank, size, mine, stop);
    if (!joined.ok()) {
      return joined.status();
    }
    if (why_.ok()) {
      return std::unique_ptr<StoreMeeting>(
          std::make_unique<DeafMeeting>(*std::move(joined), waits_));
    }
    return std::unique_ptr<StoreMeeting>(
        std::make_unique<UselessMeeting>(*std::move(joined), why_, waits_));
  }

 private:
  const absl::Status why_;
  absl::Notification& waits_;
};

// Rank 0 hears from the store that rank 2 has failed, and rank 1 hears it only from rank 0.
TEST(GivingUp, RankThatFailsIsNamedAlsoByThoseWhoHearItFromAnotherRank) {
  for (const absl::Status& why :
       {absl::ResourceExhaustedError("too many open files"),
        absl::FailedPreconditionError("not now"), absl::UnavailableError("no route")}) {
    const std::string text(why.message());
    const auto store = NewStore(text.c_str());
    Blame blame;
    blame.rank = 2;
    absl::Notification waits;
    auto zero = Creating(store, 0, 3, {.transports = "inproc"});
    auto one = Creating(std::make_shared<StoreForOne>(store, absl::OkStatus(), waits), 1, 3,
                        {.transports = "inproc"});
    const absl::Status own =
        Create(std::make_shared<StoreForOne>(store, WithBlame(why, blame), waits), 2, 3,
               {.transports = "inproc"});
    EXPECT_THAT(std::string(own.message()), HasSubstr(text));
    for (const Outcome& outcome : {zero.get(), one.get()}) {
      EXPECT_THAT(std::string(outcome.status.message()), HasSubstr(text));
      EXPECT_EQ(BlameOf(outcome.status).rank, 2) << outcome.status;
    }
  }
}

TEST(GivingUp, RankWhoseTimeIsUpTellsTheOthersWhoWasAbsent) {
  const auto store = NewStore("impatient");
  auto patient = Creating(store, 1, 3, {.transports = "inproc"});
  const absl::Status own =
      Create(store, 0, 3, {.transports = "inproc", .timeout_ns = 100 * kMillisecond});
  for (const absl::Status& status : {own, patient.get().status}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(BlameOf(status).rank, 2);
    EXPECT_THAT(std::string(status.message()), HasSubstr("did not come: 2"));
  }
}

// ---- A store that does not answer

constexpr int64_t kBrief = kSecond;

// "No wait outlasts the deadline of its operation by more than 250 ms" (docs/waits.md), with slack for the machine.
void ExpectInTime(const absl::Status& status, int64_t start_ns) {
  const int64_t took = Clock::Real().Now() - start_ns;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_GE(took, kBrief);
  EXPECT_LT(took, kBrief + 250 * kMillisecond + 500 * kMillisecond) << status;
  std::cout << "took " << took / kMillisecond << " ms\n";
}

TEST(StoppedStore, CreationEndsInTime) {
  for (const bool local : {false, true}) {
    SCOPED_TRACE(local);
    const std::string url =
        local ? absl::StrCat("local:stopped", getpid()) : std::string("tcp://127.0.0.1:0");
    int url_pipe[2];
    ASSERT_EQ(pipe(url_pipe), 0);
    const pid_t child = StartProcess([&] {
      const auto served = *ServeStore(url, "");
      const std::string served_url = served->url();
      (void)!write(url_pipe[1], served_url.data(), served_url.size());
      while (true) {
        pause();
      }
    });
    char served_url[128] = {};
    ASSERT_GT(read(url_pipe[0], served_url, sizeof(served_url) - 1), 0);
    const auto store = *OpenStore(served_url, "", Soon());
    ASSERT_TRUE(store->Set("there", "yes", Soon()).ok());
    kill(child, SIGSTOP);
    waitpid(child, nullptr, WUNTRACED);
    const int64_t start = Clock::Real().Now();
    ExpectInTime(Create(store, 0, 2, {.transports = "inproc", .timeout_ns = kBrief}), start);
    kill(child, SIGKILL);
    EndOf(child);
    close(url_pipe[0]);
    close(url_pipe[1]);
  }
}

// Another process holds the lock under which the directory is written.
TEST(StoppedStore, CreationEndsInTimeOverALockedDirectory) {
  const TempDirectory directory;
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const auto store = *OpenStore("file:" + directory.path(), "", Soon());
  const int64_t start = Clock::Real().Now();
  auto creating = Creating(std::make_shared<TellingStore>(store, told[1], false), 0, 2,
                           {.transports = "inproc", .timeout_ns = kBrief});
  char said = 'n';
  ASSERT_EQ(read(told[0], &said, 1), 1);  // it has joined
  const int lock = open((directory.path() + "/.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  ExpectInTime(creating.get().status, start);
  close(lock);
  close(told[0]);
  close(told[1]);
}

// ---- A slow path to the store

TEST(LongWay, RanksMeetOverASlowStore) {
  constexpr int64_t kRoundTrip = 300 * kMillisecond;
  const auto served = *ServeStore("tcp://127.0.0.1:0", "");
  const SlowWay way(*Address::Parse(served->url().substr(6)), kRoundTrip / 2);
  const int64_t start = Clock::Real().Now();
  auto here = Creating(served, 0, 2, {.transports = "inproc", .timeout_ns = 10 * kSecond});
  const auto there = OpenStore(absl::StrCat("tcp://", way.address().ToString()), "", Soon());
  ASSERT_TRUE(there.ok()) << there.status();
  const absl::Status status =
      Create(*there, 1, 2, {.transports = "inproc", .timeout_ns = 10 * kSecond});
  const int64_t took = Clock::Real().Now() - start;
  EXPECT_TRUE(status.ok()) << status;
  const Outcome other = here.get();
  EXPECT_TRUE(other.status.ok()) << other.status;
  // The server's hello, the proof with the request, and the answer take half a round trip each.
  // Connecting is fast here.
  EXPECT_GE(took, 3 * (kRoundTrip / 2));
  EXPECT_LT(took, 3 * kRoundTrip + kSecond);
  RecordProperty("took_ms", std::to_string(took / kMillisecond));
}

}  // namespace
}  // namespace entrain
