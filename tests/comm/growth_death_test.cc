// Processes die, or are stopped, while a communicator takes newcomers in. The members lose at most
// one attempt, and keep their communicator.
#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/wait.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "tests/comm/newcomers.h"
#include "tests/support/passing_store.h"
#include "tests/support/processes.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

// The steps of a newcomer after which a process may end.
enum class Step {
  kNone,
  kApplied,    // it waits for an invitation
  kInvited,    // it must still answer
  kAnswered,   // it is on the roster, and must still come to the meeting
  kComing,     // it is about to join the meeting
  kJoined,     // it has joined the meeting
  kMet,        // it has the cards of all, and has not connected
  kConnected,  // it has connected, and its communicator is not in use yet
};
constexpr const char* kStepNames[] = {"none",   "applied", "invited", "answered",
                                      "coming", "joined",  "met",     "connected"};

struct Death {
  Step step;
  int signal = SIGKILL;
  void At(Step now) const {
    static bool happened = false;  // a stopped process goes on later
    if (now == step && !std::exchange(happened, true)) {
      raise(signal);
    }
  }
};

// A meeting at which its process ends.
class LastMeeting final : public PassingMeeting {
 public:
  LastMeeting(std::unique_ptr<StoreMeeting> base, const Death& death, bool application)
      : PassingMeeting(std::move(base)), death_(death), application_(application) {}
  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    auto table = PassingMeeting::Wait(stop);
    if (table.ok()) {
      death_.At(application_ ? Step::kInvited : Step::kMet);
    }
    return table;
  }
  void Finish() override {
    if (!application_) {
      death_.At(Step::kConnected);
    }
    PassingMeeting::Finish();
  }

 private:
  const Death death_;
  const bool application_;
};

class LastStore final : public PassingStore {
 public:
  LastStore(std::shared_ptr<Store> base, const Death& death)
      : PassingStore(std::move(base)), death_(death) {}
  absl::Status Set(absl::string_view key, absl::string_view value, const Stop& stop) override {
    const absl::Status set = PassingStore::Set(key, value, stop);
    if (absl::StrContains(key, "/here/")) {
      death_.At(Step::kAnswered);
    }
    return set;
  }
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank, int size,
                                                     const absl::StatusOr<Parts>& mine,
                                                     const Stop& stop) override {
    const bool application = absl::StrContains(key, "/apply/");
    const bool creation = !absl::StrContains(key, "#grow/");
    if (!application && !creation) {
      death_.At(Step::kComing);
    }
    auto joined = PassingStore::Join(key, rank, size, mine, stop);
    if (!joined.ok() || creation) {
      return joined;
    }
    death_.At(application ? Step::kApplied : Step::kJoined);
    return std::unique_ptr<StoreMeeting>(
        std::make_unique<LastMeeting>(*std::move(joined), death_, application));
  }

 private:
  const Death death_;
};

// A meeting that shows the cards late to its process, after the others have begun to connect.
class LateMeeting final : public PassingMeeting {
 public:
  using PassingMeeting::PassingMeeting;
  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    auto table = PassingMeeting::Wait(stop);
    if (table.ok()) {
      // The others begin to connect meanwhile.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    return table;
  }
};

class LateStore final : public PassingStore {
 public:
  using PassingStore::PassingStore;
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank, int size,
                                                     const absl::StatusOr<Parts>& mine,
                                                     const Stop& stop) override {
    auto joined = PassingStore::Join(key, rank, size, mine, stop);
    if (!joined.ok()) {
      return joined;
    }
    return std::unique_ptr<StoreMeeting>(std::make_unique<LateMeeting>(*std::move(joined)));
  }
};

class Dying : public testing::TestWithParam<std::tuple<const char*, const char*, Step>> {
 protected:
  HowToRun How() const { return {.transports = std::get<0>(GetParam())}; }
  Step step() const { return std::get<2>(GetParam()); }
  std::shared_ptr<Store> Open(const Death& death = {Step::kNone}) const {
    return std::make_shared<LastStore>(stores_.Open(), death);
  }
  pid_t Newcomer(const Death& death = {Step::kNone}) const {
    return StartProcess([&] {
      const int64_t begin = Clock::Real().Now();
      const MaybeComm joined = JoinAsNewcomer(Open(death), How());
      ASSERT_TRUE(joined.ok()) << joined.status();
      ExpectWorks(*joined);
      std::cout << "newcomer rank " << (*joined)->rank() << ": first all_reduce "
                << (Clock::Real().Now() - begin) / kMicrosecond << " us after its start\n";
    });
  }
  // A newcomer dies at step(). Another newcomer and the two members live.
  void ExpectOnlyTheVictimIsLeftOut(bool members_are_late) const;
  const StoreOfKind stores_{std::get<1>(GetParam()), /*apart=*/true};
};
const auto kDyingName = [](const auto& info) {
  return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param), "_",
                      kStepNames[static_cast<int>(std::get<2>(info.param))]);
};
INSTANTIATE_TEST_SUITE_P(At, Dying,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values("tcp", "file", "functions"),
                                          testing::Values(Step::kApplied, Step::kInvited,
                                                          Step::kAnswered, Step::kComing,
                                                          Step::kJoined, Step::kMet)),
                         kDyingName);

void Dying::ExpectOnlyTheVictimIsLeftOut(bool members_are_late) const {
  const pid_t victim = Newcomer({step()});
  AwaitApplications(*stores_.Open(), 1);
  if (step() == Step::kApplied) {
    EXPECT_TRUE(WIFSIGNALED(EndOf(victim)));  // before the members look
  }
  const pid_t other = Newcomer();
  AwaitApplications(*stores_.Open(), 2);
  std::vector<pid_t> members;
  for (int rank = 0; rank < 2; ++rank) {
    members.push_back(StartProcess([&] {
      std::shared_ptr<Store> store = Open();
      const MaybeComm comm = CreateMember(store, rank, 2, How());
      ASSERT_TRUE(comm.ok()) << comm.status();
      if (members_are_late) {
        store = std::make_shared<LateStore>(store);
      }
      const int64_t begin = Clock::Real().Now();
      const MaybeComm grown = Grow(*comm, store, {.min_newcomers = 1});
      const int64_t took = Clock::Real().Now() - begin;
      ASSERT_TRUE(grown.ok()) << grown.status();
      ASSERT_NE(*grown, nullptr);
      EXPECT_EQ((*grown)->size(), 3);
      EXPECT_LT(took, 5 * kSecond);
      if (rank == 0) {
        std::cout << "members: " << took / kMicrosecond << " us with a newcomer that died\n";
      }
      ExpectWorks(*grown);
      ExpectWorks(*comm);
    }));
  }
  for (const pid_t member : members) {
    EXPECT_EQ(EndOf(member), 0);
  }
  EXPECT_EQ(EndOf(other), 0);
  if (step() != Step::kApplied) {
    const int status = EndOf(victim);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }
}

TEST_P(Dying, NewcomerThatIsKilledIsLeftOut) {
  ExpectOnlyTheVictimIsLeftOut(false);
}

// The other newcomer is the first to find that the victim cannot be reached.
class DyingBeforeItConnects : public Dying {};
INSTANTIATE_TEST_SUITE_P(At, DyingBeforeItConnects,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values("tcp", "file", "functions"),
                                          testing::Values(Step::kJoined, Step::kMet)),
                         kDyingName);

TEST_P(DyingBeforeItConnects, CostsOnlyItselfThoughAnotherNewcomerFindsIt) {
  ExpectOnlyTheVictimIsLeftOut(true);
}

// Once all ranks have connected, a newcomer that dies is a lost rank like any other, unless the
// members have not decided yet. Their old communicator goes on in both cases.
class DyingLate : public Dying {};
INSTANTIATE_TEST_SUITE_P(At, DyingLate,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values("tcp", "file"),
                                          testing::Values(Step::kConnected)),
                         kDyingName);

TEST_P(DyingLate, NewcomerIsALostRankOfTheNewCommunicator) {
  const pid_t victim = Newcomer({step()});
  AwaitApplications(*stores_.Open(), 1);
  std::vector<pid_t> members;
  for (int rank = 0; rank < 2; ++rank) {
    members.push_back(StartProcess([&] {
      const auto store = Open();
      const MaybeComm comm = CreateMember(store, rank, 2, How());
      ASSERT_TRUE(comm.ok()) << comm.status();
      const MaybeComm grown = Grow(*comm, store, {.min_newcomers = 1});
      ASSERT_TRUE(grown.ok()) << grown.status();
      if (*grown != nullptr) {
        const absl::Status lost = (*grown)->Barrier();
        EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
        EXPECT_EQ(BlameOf(lost).rank, 2) << lost;
      }
      ExpectWorks(*comm);
    }));
  }
  for (const pid_t member : members) {
    EXPECT_EQ(EndOf(member), 0);
  }
  EXPECT_TRUE(WIFSIGNALED(EndOf(victim)));
}

class DyingMember : public Dying {};
INSTANTIATE_TEST_SUITE_P(At, DyingMember,
                         testing::Combine(testing::Values("shm", "tcp"), testing::Values("tcp"),
                                          testing::Values(Step::kComing, Step::kJoined, Step::kMet,
                                                          Step::kConnected)),
                         kDyingName);

// Three members, one of which dies, and a newcomer.
class DyingMemberJob {
 public:
  DyingMemberJob(const char* store, const HowToRun& how, Step step, int guilty)
      : stores_(store, /*apart=*/true), how_(how), step_(step), guilty_(guilty) {}

  void Start() {
    HowToRun waiting = how_;
    waiting.wait_ns = 4 * kSecond;
    newcomer_ = StartProcess([&] {
      const MaybeComm joined = JoinAsNewcomer(stores_.Open(), waiting);
      EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded) << joined.status();
      EXPECT_THAT(std::string(joined.status().message()), HasSubstr("the last attempt failed: "));
    });
    AwaitApplications(*stores_.Open(), 1);
    for (int rank = 0; rank < 3; ++rank) {
      members_.push_back(StartProcess([&] { Grows(rank); }));
    }
  }
  void ExpectEnds() const {
    for (int rank = 0; rank < 3; ++rank) {
      const int status = EndOf(members_[static_cast<size_t>(rank)]);
      if (rank == guilty_) {
        EXPECT_TRUE(WIFSIGNALED(status)) << status;
      } else {
        EXPECT_EQ(status, 0);
      }
    }
    EXPECT_EQ(EndOf(newcomer_), 0);
  }

 private:
  void Grows(int rank) const {
    const Death death = {rank == guilty_ ? step_ : Step::kNone};
    const auto store = std::make_shared<LastStore>(stores_.Open(), death);
    const MaybeComm comm = CreateMember(store, rank, 3, how_);
    ASSERT_TRUE(comm.ok()) << comm.status();
    const int64_t begin = Clock::Real().Now();
    const MaybeComm grown = Grow(*comm, store, {.min_newcomers = 1});
    EXPECT_EQ(grown.status().code(), absl::StatusCode::kUnavailable) << grown.status();
    EXPECT_EQ(BlameOf(grown.status()).rank, guilty_) << grown.status();
    EXPECT_LT(Clock::Real().Now() - begin, 2 * kSecond) << grown.status();
  }

  const StoreOfKind stores_;
  const HowToRun how_;
  const Step step_;
  const int guilty_;
  pid_t newcomer_ = -1;
  std::vector<pid_t> members_;
};

// The leader dies in one job, another member in the other. Their newcomers wait at the same time.
TEST_P(DyingMember, IsNamedToTheOthersAndTheNewcomerGoesOnWaiting) {
  DyingMemberJob jobs[] = {{std::get<1>(GetParam()), How(), step(), 0},
                           {std::get<1>(GetParam()), How(), step(), 1}};
  for (DyingMemberJob& job : jobs) {
    job.Start();
  }
  for (const DyingMemberJob& job : jobs) {
    job.ExpectEnds();
  }
}

// Processes of 3 + 1 ranks, as jobs have them, and the time until the newcomer takes part.
class Healthy : public Dying {};
INSTANTIATE_TEST_SUITE_P(Over, Healthy,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values("tcp", "file", "local"),
                                          testing::Values(Step::kNone)),
                         kDyingName);

TEST_P(Healthy, ThreeProcessesTakeInOneWhileTheyAreBusy) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.push_back(StartProcess([&] {
      const auto store = Open();
      const MaybeComm comm = CreateMember(store, rank, 3, How());
      ASSERT_TRUE(comm.ok()) << comm.status();
      MaybeComm grown = nullptr;
      int rounds = 0;
      for (; rounds < 100000 && grown.ok() && *grown == nullptr; ++rounds) {
        ExpectWorks(*comm);
        if (rounds % 10 == 0) {
          grown = Grow(*comm, store, {});
        }
      }
      ASSERT_TRUE(grown.ok() && *grown != nullptr) << grown.status();
      ExpectWorks(*grown);
      ExpectWorks(*comm);
    }));
  }
  const auto store = Open();
  EXPECT_TRUE(Becomes([&] {  // they look for newcomers already
    return store->Add(GrowKeys("world").Calls(), 0, Soon()).value_or(0) > 0;
  }));
  processes.push_back(Newcomer());
  for (const pid_t process : processes) {
    EXPECT_EQ(EndOf(process), 0);
  }
}

// A newcomer that is stopped does not answer: it costs the time of an answer. When it goes on, it
// applies again.
TEST_P(Healthy, AStoppedNewcomerIsLeftOutAndTakenInLater) {
  const pid_t stopped = Newcomer({Step::kInvited, SIGSTOP});
  AwaitApplications(*stores_.Open(), 1);
  std::vector<pid_t> members;
  for (int rank = 0; rank < 2; ++rank) {
    members.push_back(StartProcess([&] {
      const auto store = Open();
      const MaybeComm comm = CreateMember(store, rank, 2, How());
      ASSERT_TRUE(comm.ok()) << comm.status();
      const int64_t begin = Clock::Real().Now();
      const MaybeComm none = Grow(*comm, store, {});
      ASSERT_TRUE(none.ok() && *none == nullptr) << none.status();
      EXPECT_LT(Clock::Real().Now() - begin, kAnswerInvitationNs + kSecond);
      if (rank == 0) {
        kill(stopped, SIGCONT);
      }
      const MaybeComm grown = Grow(*comm, store, {.min_newcomers = 1, .wait_ns = kLong});
      ASSERT_TRUE(grown.ok() && *grown != nullptr) << grown.status();
      ExpectWorks(*grown);
    }));
  }
  for (const pid_t member : members) {
    EXPECT_EQ(EndOf(member), 0);
  }
  EXPECT_EQ(EndOf(stopped), 0);
}

}  // namespace
}  // namespace entrain
