// Communicators grow by newcomers. Ranks and newcomers are threads with a runtime each; those that
// die are processes, in growth_death_test.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/create/applications.h"
#include "tests/comm/newcomers.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs `body` on the ranks of a new communicator.
void RunMembers(const StoreOfKind& stores, int size, const HowToRun& how,
                const std::function<void(const Comm&, const std::shared_ptr<Store>&)>& body) {
  std::barrier created(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = stores.Open();
      const MaybeComm comm = CreateMember(store, rank, size, how);
      created.arrive_and_wait();
      ASSERT_TRUE(comm.ok()) << comm.status();
      body(*comm, store);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

std::future<MaybeComm> Joining(const StoreOfKind& stores, const HowToRun& how) {
  return std::async(std::launch::async,
                    [&stores, how] { return JoinAsNewcomer(stores.Open(), how); });
}

// Grows, which must succeed.
Comm MustGrow(const Comm& comm, const std::shared_ptr<Store>& store, int newcomers,
              GrowOptions options = {}) {
  options.min_newcomers = newcomers;
  options.wait_ns = kLong;
  const int64_t begin = Clock::Real().Now();
  const MaybeComm grown = Grow(comm, store, options);
  EXPECT_TRUE(grown.ok()) << grown.status();
  if (!grown.ok() || *grown == nullptr) {
    ADD_FAILURE() << "rank " << comm->rank() << " has not grown";
    return nullptr;
  }
  if (comm->rank() == 0) {
    std::cout << "taken in within " << (Clock::Real().Now() - begin) / kMicrosecond << " us\n";
  }
  EXPECT_EQ((*grown)->size(), comm->size() + newcomers);
  EXPECT_EQ((*grown)->rank(), comm->rank());
  EXPECT_EQ((*grown)->name(), comm->name());
  EXPECT_EQ((*grown)->generation(), comm->generation() + 1);
  return *grown;
}

class Growing : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  HowToRun How() const { return {.transports = std::get<0>(GetParam())}; }
  const StoreOfKind stores_{std::get<1>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Over, Growing,
                         testing::Values(std::tuple("inproc", "mem"), std::tuple("shm", "file"),
                                         std::tuple("shm", "local"), std::tuple("tcp", "tcp"),
                                         std::tuple("tcp", "functions")),
                         [](const auto& over) {
                           return absl::StrCat(std::get<0>(over.param), "_",
                                               std::get<1>(over.param));
                         });

TEST_P(Growing, ThreeTakeInOne) {
  auto newcomer = std::async(std::launch::async, [this] {
    const MaybeComm joined = JoinAsNewcomer(stores_.Open(), How());
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ((*joined)->rank(), 3);
    EXPECT_EQ((*joined)->size(), 4);
    EXPECT_EQ((*joined)->generation(), 1u);
    EXPECT_EQ((*joined)->name(), "world");
    ExpectWorks(*joined);
  });
  RunMembers(stores_, 3, How(), [](const Comm& comm, const std::shared_ptr<Store>& store) {
    const Comm grown = MustGrow(comm, store, 1);
    ASSERT_NE(grown, nullptr);
    ExpectWorks(grown);
    ExpectWorks(comm);
  });
}

TEST_P(Growing, TwoTakeInTwoAtOnceAndGrowAgain) {
  std::vector<std::future<void>> newcomers;
  std::barrier together(5);
  for (int i = 0; i < 2; ++i) {
    newcomers.push_back(std::async(std::launch::async, [&] {
      const auto store = stores_.Open();
      const MaybeComm joined = JoinAsNewcomer(store, How());
      ASSERT_TRUE(joined.ok()) << joined.status();
      ExpectWorks(*joined);
      const Comm larger = MustGrow(*joined, store, 1);
      ASSERT_NE(larger, nullptr);
      ExpectWorks(larger);
      together.arrive_and_wait();
    }));
  }
  std::future<void> last = std::async(std::launch::async, [&] {
    const auto store = stores_.Open();
    AwaitApplications(*store, 2);
    // The third newcomer may come while the others are taken in. Then the next call takes it in.
    const MaybeComm joined = JoinAsNewcomer(store, How());
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ((*joined)->generation(), 2u);
    EXPECT_EQ((*joined)->rank(), 4);
    ExpectWorks(*joined);
    together.arrive_and_wait();
  });
  RunMembers(stores_, 2, How(), [&](const Comm& comm, const std::shared_ptr<Store>& store) {
    const Comm grown = MustGrow(comm, store, 2, {.max_newcomers = 2});
    ASSERT_NE(grown, nullptr);
    ExpectWorks(grown);
    const Comm larger = MustGrow(grown, store, 1);
    ASSERT_NE(larger, nullptr);
    ExpectWorks(larger);
    together.arrive_and_wait();
  });
}

TEST_P(Growing, MembersGoOnWhileANewcomerWaits) {
  auto newcomer = Joining(stores_, How());
  RunMembers(stores_, 2, How(), [](const Comm& comm, const std::shared_ptr<Store>& store) {
    AwaitApplications(*store, 1);
    for (int i = 0; i < 200; ++i) {
      ExpectWorks(comm);
    }
    const Comm grown = MustGrow(comm, store, 1);
    ASSERT_NE(grown, nullptr);
  });
  EXPECT_TRUE(newcomer.get().ok());
}

TEST_P(Growing, NobodyAppliesIsNoError) {
  RunMembers(stores_, 2, How(), [](const Comm& comm, const std::shared_ptr<Store>& store) {
    int64_t best = kLong;
    for (int i = 0; i < 20; ++i) {
      const int64_t begin = Clock::Real().Now();
      const MaybeComm none = Grow(comm, store, {});
      best = std::min(best, Clock::Real().Now() - begin);
      ASSERT_TRUE(none.ok()) << none.status();
      EXPECT_EQ(*none, nullptr);
    }
    if (comm->rank() == 0) {
      std::cout << "nobody applied: " << best / kMicrosecond << " us\n";
    }
    const int64_t begin = Clock::Real().Now();
    const MaybeComm none = Grow(comm, store, {.min_newcomers = 1, .wait_ns = 50 * kMillisecond});
    EXPECT_TRUE(none.ok() && *none == nullptr) << none.status();
    EXPECT_GE(Clock::Real().Now() - begin, 40 * kMillisecond);  // a late rank waits for less
    ExpectWorks(comm);
  });
}

// ---- Tests that do not depend on store and transport

TEST(Growth, OneOfTwoIsTakenInIfOneIsTheMost) {
  const StoreOfKind stores("mem");
  std::vector<std::future<MaybeComm>> newcomers;
  newcomers.push_back(Joining(stores, {}));
  AwaitApplications(*stores.Open(), 1);
  newcomers.push_back(Joining(stores, {}));
  AwaitApplications(*stores.Open(), 2);
  RunMembers(stores, 2, {}, [&](const Comm& comm, const std::shared_ptr<Store>& store) {
    const MaybeComm grown = Grow(comm, store, {.max_newcomers = 1});
    ASSERT_TRUE(grown.ok() && *grown != nullptr) << grown.status();
    EXPECT_EQ((*grown)->size(), 3);
    // From the same parent: the other one.
    const MaybeComm other = Grow(comm, store, {});
    ASSERT_TRUE(other.ok() && *other != nullptr) << other.status();
    EXPECT_EQ((*other)->size(), 3);
    EXPECT_EQ((*other)->generation(), 1u);
  });
  const MaybeComm first = newcomers[0].get(), second = newcomers[1].get();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ((*first)->rank(), 2);
  EXPECT_EQ((*second)->rank(), 2);
}

TEST(Growth, TooFewAreNotTakenInAndGoOnWaiting) {
  const StoreOfKind stores("mem");
  auto newcomer = Joining(stores, {});
  AwaitApplications(*stores.Open(), 1);
  RunMembers(stores, 2, {}, [&](const Comm& comm, const std::shared_ptr<Store>& store) {
    const MaybeComm none = Grow(comm, store, {.min_newcomers = 2});
    EXPECT_TRUE(none.ok() && *none == nullptr) << none.status();
    EXPECT_NE(MustGrow(comm, store, 1), nullptr);
  });
  EXPECT_TRUE(newcomer.get().ok());
}

TEST(Growth, OfOneRank) {
  const StoreOfKind stores("mem");
  auto newcomer = Joining(stores, {});
  RunMembers(stores, 1, {}, [](const Comm& comm, const std::shared_ptr<Store>& store) {
    EXPECT_NE(MustGrow(comm, store, 1), nullptr);
  });
  EXPECT_TRUE(newcomer.get().ok());
}

TEST(Growth, OfAPartUnderItsName) {
  const StoreOfKind stores("mem");
  std::thread newcomer([&] {
    const MaybeComm joined = JoinAsNewcomer(stores.Open(), {.name = "world/1"});
    ASSERT_TRUE(joined.ok()) << joined.status();
    ExpectWorks(*joined);
  });
  RunMembers(stores, 3, {}, [](const Comm& comm, const std::shared_ptr<Store>& store) {
    const MaybeComm part = comm->Split(comm->rank() == 0 ? 0 : 1, 0);
    ASSERT_TRUE(part.ok()) << part.status();
    if (comm->rank() > 0) {
      const Comm grown = MustGrow(*part, store, 1);
      ASSERT_NE(grown, nullptr);
      ExpectWorks(grown);
    }
  });
  newcomer.join();
}

TEST(Growth, SettingsThatDifferAreAMismatchOnAllRanksAndTheCommunicatorGoesOn) {
  const StoreOfKind stores("mem");
  RunMembers(stores, 3, {}, [](const Comm& comm, const std::shared_ptr<Store>& store) {
    for (const bool most : {false, true}) {
      GrowOptions options;
      (most ? options.max_newcomers : options.min_newcomers) = comm->rank() == 2 ? 2 : 1;
      const MaybeComm grown = Grow(comm, store, options);
      EXPECT_EQ(grown.status().code(), absl::StatusCode::kDataLoss) << grown.status();
      EXPECT_THAT(
          std::string(grown.status().message()),
          HasSubstr(absl::StrCat(most ? "max" : "min", "_newcomers: 1 on rank 0, 2 on rank 2")));
    }
    ExpectWorks(comm);
  });
}

TEST(Growth, WrongOptionsAreNamed) {
  const StoreOfKind stores("mem");
  RunMembers(stores, 1, {}, [](const Comm& comm, const std::shared_ptr<Store>& store) {
    const std::pair<GrowOptions, const char*> cases[] = {
        {{.min_newcomers = -1}, "min_newcomers: -1 is negative"},
        {{.max_newcomers = -2}, "max_newcomers: -2 is negative"},
        {{.min_newcomers = 2, .max_newcomers = 1},
         "max_newcomers: 1 is less than min_newcomers: 2"},
        {{.wait_ns = -1}, "wait_ns: -1 is negative"},
        {{.timeout_ns = -1}, "timeout_ns: -1 is negative"}};
    for (const auto& [options, says] : cases) {
      const MaybeComm grown = Grow(comm, store, options);
      EXPECT_EQ(grown.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(grown.status().message()), HasSubstr(says));
    }
  });
}

TEST(Growth, AStoreThatHasEndedIsAnErrorOnAllRanksAndTheCommunicatorGoesOn) {
  StoreOfKind stores("tcp");
  RunMembers(stores, 2, {}, [&](const Comm& comm, const std::shared_ptr<Store>& store) {
    ExpectWorks(comm);
    if (comm->rank() == 1) {
      stores.Close();
    }
    ExpectWorks(comm);
    const MaybeComm grown = Grow(comm, store, {});
    EXPECT_EQ(grown.status().code(), absl::StatusCode::kUnavailable) << grown.status();
    EXPECT_THAT(std::string(grown.status().message()), HasSubstr("grow: rank 0: store tcp://"));
    ExpectWorks(comm);
  });
}

TEST(Growth, ARankThatDoesNotComeIsNamed) {
  const StoreOfKind stores("mem");
  RunMembers(stores, 2, {}, [](const Comm& comm, const std::shared_ptr<Store>& store) {
    if (comm->rank() == 1) {
      EXPECT_TRUE(Becomes([&] { return !comm->status().ok(); }));
      return;
    }
    const MaybeComm grown = Grow(comm, store, {.timeout_ns = 200 * kMillisecond});
    EXPECT_EQ(grown.status().code(), absl::StatusCode::kDeadlineExceeded) << grown.status();
    EXPECT_EQ(BlameOf(grown.status()).rank, 1);
    EXPECT_EQ(BlameOf(grown.status()).operation, "grow");
  });
}

TEST(Growth, ProbedLinksAreProbedAgain) {
  const StoreOfKind stores("mem");
  const HowToRun how{.tuning = "probe"};
  auto newcomer = Joining(stores, how);
  RunMembers(stores, 2, how, [](const Comm& comm, const std::shared_ptr<Store>& store) {
    const Comm grown = MustGrow(comm, store, 1);
    ASSERT_NE(grown, nullptr);
    EXPECT_THAT(*grown->Explain(CallKind::kAllReduce, 1 << 20, DType::kF32),
                HasSubstr("from probing"));
  });
  EXPECT_TRUE(newcomer.get().ok());
}

// ---- Newcomers that are refused, or not taken in

TEST(Newcomer, WithoutMembersSaysWhatWasMissing) {
  for (const char* kind : {"mem", "file", "tcp", "local", "functions"}) {
    const StoreOfKind stores(kind);
    const int64_t begin = Clock::Real().Now();
    const MaybeComm joined =
        JoinAsNewcomer(stores.Open(), {.name = "wrold", .wait_ns = 300 * kMillisecond});
    EXPECT_LT(Clock::Real().Now() - begin, 2 * kSecond);
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded) << joined.status();
    EXPECT_THAT(std::string(joined.status().message()),
                AllOf(HasSubstr("joining wrold: not taken in within 300 ms"),
                      HasSubstr("no communicator of this name has called entrain_comm_grow")));
  }
}

TEST(Newcomer, ThatIsTooLateLearnsIt) {
  const StoreOfKind stores("mem");
  RunMembers(stores, 2, {}, [](const Comm& comm, const std::shared_ptr<Store>& store) {
    EXPECT_TRUE(Grow(comm, store, {}).ok());
  });
  const MaybeComm joined = JoinAsNewcomer(stores.Open(), {.wait_ns = 100 * kMillisecond});
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(joined.status().message()),
              HasSubstr("its ranks have called entrain_comm_grow 1 times"));
}

// A member that dies between taking the ticket and coming to the meeting leaves the newcomer waiting.
TEST(Newcomer, AppliesAgainIfNobodyComesAlthoughItsTicketWasTaken) {
  const StoreOfKind stores("mem");
  const auto store = stores.Open();
  ASSERT_TRUE(store->Add(GrowKeys("world").Seen(), 1, {Deadline::After(kSecond)}).ok());
  auto joining = Joining(stores, {.wait_ns = kLong});
  RunMembers(stores, 2, {},
             [](const Comm& comm, const std::shared_ptr<Store>& own) { MustGrow(comm, own, 1); });
  EXPECT_TRUE(joining.get().ok());
}

// Runs two members that look for newcomers until `newcomer` has returned, and expects that they
// take in none. Returns the newcomer's error.
absl::Status Refused(const StoreOfKind& stores, const HowToRun& members,
                     const std::function<MaybeComm()>& newcomer) {
  std::atomic<bool> over{false};
  absl::Status refusal;
  std::thread asking([&] {
    refusal = newcomer().status();
    over = true;
  });
  RunMembers(stores, 2, members, [&](const Comm& comm, const std::shared_ptr<Store>& store) {
    for (int64_t goes_on = 1; goes_on != 0;) {
      const MaybeComm none = Grow(comm, store, {});
      ASSERT_TRUE(none.ok()) << none.status();
      ASSERT_EQ(*none, nullptr);
      const int64_t mine = over ? 0 : 1;
      ASSERT_TRUE(comm->AllReduce(&mine, &goes_on, 1, DType::kI64, ReduceOp::kMin).ok());
    }
    ExpectWorks(comm);
  });
  asking.join();
  return refusal;
}

TEST(Newcomer, WithOtherSettingsIsRefusedWithBothValues) {
  const StoreOfKind stores("mem");
  const absl::Status refusal = Refused(
      stores, {}, [&] { return JoinAsNewcomer(stores.Open(), {.algorithms = "all_reduce:ring"}); });
  EXPECT_EQ(refusal.code(), absl::StatusCode::kDataLoss) << refusal;
  EXPECT_THAT(std::string(refusal.message()),
              AllOf(HasSubstr("settings differ"), HasSubstr("algorithms=;"),
                    HasSubstr("algorithms=all_reduce:ring;")));
}

TEST(Newcomer, ThatIsAMemberAlreadyIsRefused) {
  const StoreOfKind stores("mem");
  const std::shared_ptr<Runtime> shared = NewRuntime({});
  std::atomic<bool> over{false};
  auto newcomer = std::async(std::launch::async, [&] {
    const absl::Status refusal = JoinAsNewcomer(stores.Open(), {.runtime = shared}).status();
    over = true;
    return refusal;
  });
  RunMembers(stores, 1, {.runtime = shared},
             [&](const Comm& comm, const std::shared_ptr<Store>& store) {
               while (!over) {
                 ASSERT_TRUE(Grow(comm, store, {}).ok());
               }
             });
  const absl::Status refusal = newcomer.get();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("this runtime is rank 0 of world already"));
}

TEST(Newcomer, ThatAppliesTwiceIsRefusedOnce) {
  const StoreOfKind stores("mem");
  const std::shared_ptr<Runtime> shared = NewRuntime({});
  auto first = Joining(stores, {.runtime = shared}), second = Joining(stores, {.runtime = shared});
  AwaitApplications(*stores.Open(), 2);
  RunMembers(stores, 2, {}, [&](const Comm& comm, const std::shared_ptr<Store>& store) {
    const MaybeComm grown = Grow(comm, store, {});
    ASSERT_TRUE(grown.ok() && *grown != nullptr) << grown.status();
    EXPECT_EQ((*grown)->size(), 3);
  });
  const MaybeComm one = first.get(), other = second.get();
  EXPECT_NE(one.ok(), other.ok());
  const absl::Status refusal = one.ok() ? other.status() : one.status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition) << refusal;
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("twice at the same time"));
}

TEST(Newcomer, WithAnotherKeyIsRefusedAndCostsTheMembersOneAttempt) {
  std::string directory = (std::filesystem::temp_directory_path() / "entrain_XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  std::vector<std::string> keys;
  for (const char* name : {"right", "wrong"}) {
    keys.push_back(absl::StrCat(directory, "/", name));
    std::FILE* const file = std::fopen(keys.back().c_str(), "w");
    std::fprintf(file, "the %s key of sixteen bytes and more", name);
    std::fclose(file);
    std::filesystem::permissions(keys.back(), std::filesystem::perms::owner_read);
  }
  const StoreOfKind stores("mem");
  const absl::Status refusal = Refused(stores, {.transports = "tcp", .key_file = keys[0]}, [&] {
    return JoinAsNewcomer(stores.Open(), {.transports = "tcp", .key_file = keys[1]});
  });
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition) << refusal;
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("key"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace entrain
