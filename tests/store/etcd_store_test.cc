// The store of etcd where it differs from the others: lost answers, members that die, stop or are cut
// off, and what it leaves behind. store_contract_test and meeting_test have the rest.
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "lib/store/etcd_client.h"
#include "lib/store/store.h"
#include "tests/store/store_source.h"
#include "tests/support/etcd_server.h"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<Store> Open(const std::string& url) {
  auto store = OpenStore(url, "", Soon());
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

class EtcdStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoEtcd(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    static const EtcdServer one;
    etcd_ = &one;
    prefix_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  std::string url() const { return etcd_->url(prefix_); }
  // Returns the names of this test's keys, without the prefix.
  std::vector<std::string> Keys() const {
    std::vector<std::string> names;
    const EtcdClient client("", {*ParseHostPort(etcd_->url().substr(7))});
    const auto reply = client.Read(
        {EtcdStep::ReadRange(prefix_ + "/", prefix_ + "0", EtcdStep::Rows::kKeys)}, Soon());
    EXPECT_TRUE(reply.ok()) << reply.status();
    for (const EtcdRow& row : reply->reads[0].rows) {
      names.push_back(row.key.substr(prefix_.size() + 1));
    }
    return names;
  }

  const EtcdServer* etcd_ = nullptr;
  std::string prefix_;
};

// ---- Opening

TEST_F(EtcdStoreTest, UrlsAreChecked) {
  const auto error = [](const std::string& url) {
    const auto store = OpenStore(url, "", {Deadline::After(kSecond)});
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << url;
    return std::string(store.status().message());
  };
  EXPECT_THAT(error("etcd://"), HasSubstr("\"etcd://\""));
  EXPECT_THAT(error("etcd://host/prefix"), HasSubstr("\"etcd://host/prefix\""));
  EXPECT_THAT(error("etcd://host:1,/prefix"), HasSubstr("host:1,/prefix"));
  EXPECT_THAT(error("etcd://host:0"), HasSubstr("port 0"));
}

TEST_F(EtcdStoreTest, MembersThatDoNotAnswerAreNamedInTime) {
  const int64_t start = Clock::Real().Now();
  const auto store =
      OpenStore("etcd://127.0.0.1:1,127.0.0.1:2/x", "", {Deadline::After(500 * kMillisecond)});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kUnavailable) << store.status();
  EXPECT_THAT(std::string(store.status().message()),
              AllOf(HasSubstr("etcd://127.0.0.1:1,127.0.0.1:2/x"), HasSubstr("127.0.0.1:1: "),
                    HasSubstr("127.0.0.1:2: ")));
  const int64_t took = Clock::Real().Now() - start;
  EXPECT_GE(took, 500 * kMillisecond);
  EXPECT_LT(took, 2 * kSecond);
}

TEST_F(EtcdStoreTest, HostsMayBeNames) {
  const std::string port = etcd_->url().substr(etcd_->url().rfind(':') + 1);
  const auto store = Open("etcd://localhost:" + port + "/" + prefix_);
  EXPECT_EQ(store->host(), "localhost");
  EXPECT_EQ(*store->Add("n", 1, Soon()), 1);
}

TEST_F(EtcdStoreTest, PrefixesDoNotSeeEachOther) {
  const auto one = Open(url() + "/1"), two = Open(url() + "/2/");
  ASSERT_TRUE(one->Set("k", "1", Soon()).ok());
  EXPECT_TRUE(absl::IsNotFound(two->TryGet("k", Soon()).status()));
  ASSERT_TRUE(two->Set("k", "2", Soon()).ok());
  EXPECT_THAT(Keys(), AllOf(::testing::Contains("1/k/k"), ::testing::Contains("2/k/k")));
}

// ---- Lost answers

// Passes bytes between clients and etcd. Cuts a connection when etcd answers it, before the client
// gets the answer, if the number of the answer is a multiple of `every`.
class AnswerThief {
 public:
  AnswerThief(int port, int every) : port_(port), every_(every) {
    listener_ = *Listen(*Address::Parse("127.0.0.1:0"));
    thread_ = std::thread([this] { Serve(); });
  }
  ~AnswerThief() {
    stopping_ = true;
    thread_.join();
    for (std::thread& one : passing_) {
      one.join();
    }
  }
  std::string host() const { return LocalAddress(listener_.get())->ToString(); }
  int stolen() const { return stolen_; }

 private:
  void Serve() {
    while (!stopping_) {
      auto client = Accept(listener_.get());
      if (client.ok() && client->valid()) {
        passing_.emplace_back([this, fd = std::make_shared<Fd>(*std::move(client))] { Pass(*fd); });
      } else {
        poll(nullptr, 0, 1);
      }
    }
  }
  void Pass(const Fd& client) {
    const auto etcd =
        Connect(*Address::FromHost("127.0.0.1", static_cast<uint16_t>(port_)), Soon());
    std::string buffer(1 << 16, '\0');
    while (etcd.ok() && !stopping_) {
      pollfd both[] = {{client.get(), POLLIN, 0}, {etcd->get(), POLLIN, 0}};
      poll(both, 2, 10);
      for (const bool answers : {false, true}) {
        if (both[answers].revents == 0) {
          continue;
        }
        const int from = answers ? etcd->get() : client.get();
        const auto got = ReadSome(from, buffer.data(), buffer.size());
        if (!got.ok()) {
          return;
        }
        if (answers && *got > 0 && ++answers_ % every_ == 0) {
          ++stolen_;
          return;
        }
        if (!WriteFull(answers ? client.get() : etcd->get(), buffer.data(), *got, Soon()).ok()) {
          return;
        }
      }
    }
  }

  const int port_, every_;
  Fd listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> answers_{0}, stolen_{0};
  std::thread thread_;
  std::vector<std::thread> passing_;
};

TEST_F(EtcdStoreTest, AddsTakeEffectOnceAlthoughAnswersAreLost) {
  const AnswerThief thief(ParseHostPort(etcd_->url().substr(7))->port, 3);
  const std::string through = "etcd://" + thief.host() + "/" + prefix_;
  constexpr int kThreads = 3, kTimes = 60;
  std::vector<std::thread> threads;
  std::vector<std::vector<int64_t>> sums(kThreads);
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto store = Open(through);
      for (int i = 0; i < kTimes; ++i) {
        const auto sum = store->Add("n", 1, Soon());
        EXPECT_TRUE(sum.ok()) << sum.status();
        sums[t].push_back(sum.value_or(-1));
      }
    });
  }
  std::set<int64_t> all;
  for (size_t t = 0; t < kThreads; ++t) {
    threads[t].join();
    all.insert(sums[t].begin(), sums[t].end());
  }
  EXPECT_GT(thief.stolen(), kThreads * kTimes / 3);
  EXPECT_EQ(*Open(url())->Get("n", Soon()), std::to_string(kThreads * kTimes));
  EXPECT_EQ(all.size(), size_t{kThreads * kTimes}) << "each sum was returned once";
}

TEST_F(EtcdStoreTest, CompareAndSetSaysWhoWonAlthoughAnswersAreLost) {
  const AnswerThief thief(ParseHostPort(etcd_->url().substr(7))->port, 2);
  const auto through = Open("etcd://" + thief.host() + "/" + prefix_), other = Open(url());
  for (int i = 0; i < 40; ++i) {
    const std::string key = "k" + std::to_string(i);
    auto mine = std::async(std::launch::async,
                           [&] { return *through->CompareAndSet(key, "", "mine", Soon()); });
    const std::string theirs = *other->CompareAndSet(key, "", "theirs", Soon());
    EXPECT_EQ(mine.get(), theirs);
    EXPECT_EQ(*other->Get(key, Soon()), theirs);
    EXPECT_EQ(*through->CompareAndSet(key, theirs, "", Soon()), "");
    EXPECT_EQ(*through->CompareAndSet(key, "", "last", Soon()), "last");
  }
  EXPECT_GT(thief.stolen(), 40);
}

TEST_F(EtcdStoreTest, RanksMeetAlthoughAnswersAreLost) {
  const AnswerThief thief(ParseHostPort(etcd_->url().substr(7))->port, 3);
  constexpr int kRanks = 4;
  for (int round = 0; round < 5; ++round) {
    std::vector<std::future<size_t>> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank] {
        const auto store = Open("etcd://" + thief.host() + "/" + prefix_);
        const auto joined = store->Join("m", rank, kRanks, Parts{std::to_string(rank)}, Soon());
        EXPECT_TRUE(joined.ok()) << joined.status();
        const auto table = (*joined)->Wait(Soon());
        EXPECT_TRUE(table.ok()) << table.status();
        (*joined)->Finish();
        return table.ok() ? table->size() : 0;
      }));
    }
    for (auto& rank : ranks) {
      EXPECT_EQ(rank.get(), size_t{kRanks});
    }
  }
  EXPECT_GT(thief.stolen(), 10);
}

// ---- What is left behind

TEST_F(EtcdStoreTest, OnlyValuesStay) {
  auto store = Open(url());
  ASSERT_TRUE(store->Set("k", "v", Soon()).ok());
  ASSERT_TRUE(store->Add("n", 1, Soon()).ok());
  {
    const auto zero = *store->Join("m", 0, 2, Parts{"0"}, Soon());
    const auto one = *store->Join("m", 1, 2, Parts{"1"}, Soon());
    ASSERT_TRUE(zero->Wait(Soon()).ok());
    ASSERT_TRUE(one->Wait(Soon()).ok());
    EXPECT_GT(Keys().size(), 3u);
    one->Finish();
    zero->Finish();
    EXPECT_THAT(Keys(), ElementsAre("k/k", "k/n", HasSubstr("w/"))) << "the meeting is over";
  }
  store.reset();
  EXPECT_THAT(Keys(), ElementsAre("k/k", "k/n"));
}

TEST_F(EtcdStoreTest, PlaceOfAMeetingThatIsOverIsFree) {
  const auto store = Open(url());
  for (const int size : {2, 3, 2}) {
    std::vector<std::unique_ptr<StoreMeeting>> all;
    for (int rank = 0; rank < size; ++rank) {
      all.push_back(*store->Join("m", rank, size, Parts{}, Soon()));
    }
    for (const auto& one : all) {
      EXPECT_EQ(one->Wait(Soon())->size(), static_cast<size_t>(size));
      one->Finish();
    }
  }
}

TEST_F(EtcdStoreTest, FailureOfAnEarlierStartIsNoLongerTold) {
  const auto first = Open(url());
  const auto zero = *first->Join("m", 0, 2, Parts{}, Soon());
  zero->Fail(absl::AbortedError("the first start failed"));
  // A late process of the first start learns of the failure, even when the others have left.
  EXPECT_THAT(std::string((*first->Join("m", 1, 2, Parts{}, Soon()))->Check().message()),
              HasSubstr("the first start failed"));
  const auto second = Open(url());
  EXPECT_THAT(std::string((*second->Join("m", 1, 2, Parts{}, Soon()))->Check().message()),
              HasSubstr("the first start failed"))
      << "rank 0 has not left";
  const_cast<std::unique_ptr<StoreMeeting>&>(zero).reset();
  EXPECT_THAT(std::string((*first->Join("m", 1, 2, Parts{}, Soon()))->Check().message()),
              HasSubstr("the first start failed"));
  const auto again = *second->Join("m", 0, 2, Parts{}, Soon());
  EXPECT_TRUE(again->Check().ok()) << again->Check();
  const auto one = *second->Join("m", 1, 2, Parts{}, Soon());
  EXPECT_EQ(again->Wait(Soon())->size(), 2u);
}

class EtcdProcesses : public EtcdStoreTest {
 protected:
  // Forks a process that joins as `rank`, says so, and does nothing more. If `apart` is true, the
  // process has a process namespace of its own, as in a container.
  pid_t Child(int rank, int size, bool apart) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const bool is_apart = !apart || unshare(CLONE_NEWPID) == 0;
      if (const pid_t inner = apart ? fork() : 0; inner > 0) {
        (void)!write(ready[1], &inner, sizeof(inner));
        waitpid(inner, nullptr, 0);
        _exit(0);
      }
      const auto joined =
          OpenStore(url(), "", Soon()).value()->Join("m", rank, size, Parts{}, Soon());
      const pid_t self = joined.ok() && is_apart ? getpid() : -1;
      (void)!write(ready[1], &self, sizeof(self));
      while (true) {
        pause();
      }
    }
    close(ready[1]);
    pid_t told = -1, inner = child;
    if (apart) {
      EXPECT_EQ(read(ready[0], &inner, sizeof(inner)), static_cast<ssize_t>(sizeof(inner)));
    }
    EXPECT_EQ(read(ready[0], &told, sizeof(told)), static_cast<ssize_t>(sizeof(told)));
    EXPECT_GT(told, 0);
    close(ready[0]);
    outer_ = child;
    return inner;
  }
  void Kill(pid_t child) {
    kill(child, SIGKILL);
    waitpid(outer_, nullptr, 0);
  }
  pid_t outer_ = -1;
};

TEST_F(EtcdProcesses, ProcessTakesThePlaceOfOneThatHasEnded) {
  Kill(Child(0, 2, false));
  const auto store = Open(url());
  const auto zero = *store->Join("m", 0, 2, Parts{"new"}, Soon());
  const auto one = *store->Join("m", 1, 2, Parts{}, Soon());
  const auto table = one->Wait(Soon());
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT((*table)[0], ElementsAre("new"));
  EXPECT_TRUE(zero->Wait(Soon()).ok());
}

TEST_F(EtcdProcesses, KeysOfKilledProcessesEndWithTheirLeases) {
  const pid_t one = Child(1, 3, false);
  const pid_t outer_one = outer_;
  Kill(Child(0, 3, false));
  outer_ = outer_one;
  Kill(one);
  EXPECT_THAT(Keys(), ::testing::Contains(HasSubstr("/rank/")));
  EXPECT_TRUE(Becomes([&] { return Keys().empty(); }, std::chrono::seconds(20)));
}

// The view of ranks on other hosts: they cannot see the process, so they notice its end only by its
// lease.
TEST_F(EtcdProcesses, RankOfAnotherHostIsNoticedByItsLease) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "a process namespace needs root";
  }
  const pid_t child = Child(1, 3, true);
  const auto store = Open(url());
  const auto zero = *store->Join("m", 0, 3, Parts{}, Soon());
  Kill(child);
  const int64_t killed = Clock::Real().Now();
  const auto table = zero->Wait({Deadline::After(30 * kSecond)});
  const int64_t took = Clock::Real().Now() - killed;
  EXPECT_EQ(table.status().code(), absl::StatusCode::kUnavailable) << table.status();
  EXPECT_EQ(BlameOf(table.status()).rank, 1) << table.status();
  EXPECT_THAT(std::string(table.status().message()),
              HasSubstr("rank 1 has not been heard of for 8 s"));
  EXPECT_LT(took, 12 * kSecond);
  std::cout << "noticed after " << took / kMillisecond << " ms\n";
}

// ---- Limits

TEST_F(EtcdStoreTest, ManyRanksWithLongCardsMeet) {
  constexpr int kRanks = 80;  // more than one answer of etcd lists, and 4.8 MB
  const auto store = Open(url());
  std::vector<std::unique_ptr<StoreMeeting>> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Parts parts = {std::string(60000, 's'), std::to_string(rank)};
    auto joined = store->Join("m", rank, kRanks, parts, Soon());
    ASSERT_TRUE(joined.ok()) << joined.status();
    all.push_back(*std::move(joined));
  }
  for (const auto& one : all) {
    const auto table = one->Wait(Soon());
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(table->back()[1], std::to_string(kRanks - 1));
    one->Finish();
  }
  all.clear();
  EXPECT_THAT(Keys(), IsEmpty());
}

TEST_F(EtcdStoreTest, TableThatIsTooLongFailsTheMeeting) {
  constexpr int kRanks = 20;
  const auto store = Open(url());
  std::vector<std::unique_ptr<StoreMeeting>> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    all.push_back(*store->Join("m", rank, kRanks,
                               Parts{std::string(60000, static_cast<char>('a' + rank))}, Soon()));
  }
  for (const auto& one : all) {
    const auto table = one->Wait(Soon());
    EXPECT_TRUE(absl::IsResourceExhausted(table.status())) << table.status();
    EXPECT_THAT(std::string(table.status().message()),
                AllOf(HasSubstr("the table of 20 ranks"), HasSubstr("1048576")));
  }
}

TEST(StoppedEtcd, HoldsNobodyUp) {
  if (const std::string why = WhyNoEtcd(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const EtcdServer etcd;
  const auto store = Open(etcd.url());
  const int64_t deadline = Clock::Real().Now() + kSecond;
  {
    const Stop stop{Deadline{deadline}};
    const auto zero = *store->Join("m", 0, 2, Parts{}, stop);
    etcd.Signal(0, SIGSTOP);
    EXPECT_TRUE(absl::IsDeadlineExceeded(zero->Wait(stop).status()));
    EXPECT_FALSE(zero->Absent({Deadline{deadline + 200 * kMillisecond}}).ok());
    zero->Fail(absl::AbortedError("time is up"));
  }
  // Its last word ends 230 ms after the deadline; the rest is the machine's load.
  EXPECT_LT(Clock::Real().Now(), deadline + 230 * kMillisecond + kSecond);
}

// ---- Three members

class ThreeMembers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoEtcd(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    etcd_ = std::make_unique<EtcdServer>(3);
  }
  // Returns the number of the member that leads.
  size_t Leader() const {
    for (size_t i = 0; i < etcd_->size(); ++i) {
      const std::string status = Ask(i);
      if (!Number(status, "member_id").empty() &&
          Number(status, "member_id") == Number(status, "leader")) {
        return i;
      }
    }
    ADD_FAILURE() << "no member leads";
    return 0;
  }
  std::string Ask(size_t member) const {
    const auto post = *HttpPost::Open();
    post->Start(etcd_->http(member) + "/v3/maintenance/status", "", "{}");
    EXPECT_TRUE(Becomes([&] {
      post->Step(10);
      return post->done();
    }));
    return post->answer();
  }
  static std::string Number(const std::string& json, const std::string& name) {
    const size_t at = json.find("\"" + name + "\":\"");
    const size_t from = at + name.size() + 4;
    return at == std::string::npos ? "" : json.substr(from, json.find('"', from) - from);
  }

  std::unique_ptr<EtcdServer> etcd_;
};

TEST_F(ThreeMembers, AddsAndMeetingsGoOnWhenTheLeaderIsKilled) {
  const size_t leader = Leader();
  std::atomic<bool> stop{false};
  std::atomic<int> adds{0}, meetings{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const auto store = Open(etcd_->url("x", t));
      while (!stop) {
        const auto sum = store->Add("n", 1, Soon());
        EXPECT_TRUE(sum.ok()) << sum.status();
        ++adds;
      }
    });
  }
  auto waiting = std::async(std::launch::async, [&] {
    return Open(etcd_->url("x", leader))->Get("late", {Deadline::After(60 * kSecond)});
  });
  constexpr int kRanks = 4, kRounds = 40;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = Open(etcd_->url("x", static_cast<size_t>(rank)));
      for (int round = 0; round < kRounds; ++round) {
        const auto joined = store->Join(absl::StrCat("m", round), rank, kRanks, Parts{}, Soon());
        ASSERT_TRUE(joined.ok()) << joined.status();
        const auto table = (*joined)->Wait(Soon());
        ASSERT_TRUE(table.ok()) << table.status();
        (*joined)->Finish();
        meetings += rank == 0;
      }
    });
  }
  EXPECT_TRUE(Becomes([&] { return meetings >= 5 && adds >= 20; }));
  etcd_->Kill(leader);
  const int64_t killed = Clock::Real().Now();
  const int before = adds;
  EXPECT_TRUE(Becomes([&] { return adds > before + 3; }));
  std::cout << "adds went on " << (Clock::Real().Now() - killed) / kMillisecond
            << " ms after the leader's death\n";
  const auto store = Open(etcd_->url("x"));
  ASSERT_TRUE(store->Set("late", "came", Soon()).ok());
  EXPECT_EQ(waiting.get().value_or("nothing"), "came");
  EXPECT_TRUE(Becomes([&] { return meetings == kRounds; }, std::chrono::seconds(60)));
  stop = true;
  for (std::thread& one : threads) {
    one.join();
  }
  EXPECT_EQ(*store->Get("n", Soon()), std::to_string(adds));
}

TEST_F(ThreeMembers, MemberThatIsKilledOrStoppedIsLeftForTheNext) {
  const size_t other = (Leader() + 1) % 3, third = (Leader() + 2) % 3;
  const auto store = Open(etcd_->url("x", other)), witness = Open(etcd_->url("x", third));
  ASSERT_EQ(*store->Add("n", 1, Soon()), 1);
  auto waiting = std::async(std::launch::async, [&] { return store->Get("late", Soon()); });
  auto one = *store->Join("m", 1, 2, Parts{}, Soon());
  etcd_->Signal(other, SIGSTOP);
  const int64_t start = Clock::Real().Now();
  EXPECT_EQ(*store->Add("n", 1, Soon()), 2);
  EXPECT_LT(Clock::Real().Now() - start, 5 * kSecond);
  ASSERT_TRUE(witness->Set("late", "came", Soon()).ok());
  EXPECT_EQ(*waiting.get(), "came") << "the watch was at the member that has stopped";
  const auto zero = *witness->Join("m", 0, 2, Parts{}, Soon());
  EXPECT_EQ(one->Wait(Soon())->size(), 2u);
  etcd_->Signal(other, SIGCONT);
  etcd_->Kill(other);
  EXPECT_EQ(*store->Add("n", 1, Soon()), 3);
}

TEST_F(ThreeMembers, WithoutAMajorityRequestsEndByTheirDeadlines) {
  const auto store = Open(etcd_->url("x"));
  ASSERT_TRUE(store->Set("k", "v", Soon()).ok());
  const EtcdClient client("", {*ParseHostPort(etcd_->http(0).substr(7))});
  const int64_t lease = *client.Grant(60, Soon());
  EXPECT_TRUE(client.KeepAlive(lease, Soon()).ok());
  etcd_->Kill(1);
  etcd_->Kill(2);
  // An error within the stream of answers does not end the lease. A leader that is alone continues
  // to answer until it notices this.
  absl::Status kept;
  for (const Deadline until = Deadline::After(20 * kSecond);
       kept.ok() && !until.Passed(Clock::Real().Now());) {
    kept = client.KeepAlive(lease, {Deadline::After(8 * kSecond)});
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(kept)) << kept;
  for (const bool writes : {false, true}) {
    const int64_t start = Clock::Real().Now();
    const Stop brief{Deadline::After(700 * kMillisecond)};
    const absl::Status status =
        writes ? store->Add("n", 1, brief).status() : store->Get("k", brief).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(writes ? "add of key \"n\"" : "get of key \"k\""),
                      HasSubstr("127.0.0.1:")));
    EXPECT_LT(Clock::Real().Now() - start, (writes ? 2 : 1) * kSecond + 500 * kMillisecond);
  }
}

}  // namespace
}  // namespace entrain
