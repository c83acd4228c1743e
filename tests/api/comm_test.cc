// Communicators through the C ABI: splitting them, ending them in every way, and their error
// records.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

entrain_error_t RecordOf(const entrain_comm_t* comm) {
  entrain_error_t error;
  entrain_error_init(&error);
  entrain_comm_error(comm, &error);
  return error;
}

TEST(Comm, RankSizeAndTransportAreAsAsked) {
  RunWorld(3, [](const Rank& self) {
    int32_t rank = -1, size = -1;
    EXPECT_OK(entrain_comm_rank(self.comm, &rank));
    EXPECT_OK(entrain_comm_size(self.comm, &size));
    EXPECT_EQ(rank, self.rank);
    EXPECT_EQ(size, 3);
    for (int peer = 0; peer < 3; ++peer) {
      const char* name = nullptr;
      ASSERT_OK(entrain_comm_transport(self.comm, peer, &name));
      EXPECT_STREQ(name, peer == self.rank ? "self" : "inproc");
    }
    EXPECT_OK(entrain_comm_error(self.comm, nullptr));
  });
}

TEST(Comm, AnAlgorithmAskedForByNameIsTaken) {
  for (const char* asked : {"ring", "halving_doubling"}) {
    const std::string text = std::string("all_reduce:") + asked;
    RunWorld(4,
             [&](const Rank& self) {
               const char* name = nullptr;
               ASSERT_OK(entrain_comm_algorithm(self.comm, "all_reduce", 1000, ENTRAIN_F32, &name));
               EXPECT_STREQ(name, asked);
               float data = 1;
               EXPECT_OK(entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM,
                                            nullptr, nullptr));
               EXPECT_EQ(data, 4.0f);
             },
             {.algorithms = text.c_str()});
  }
}

TEST(Comm, ItsDeterminismPassesOverAnAlgorithmAskedFor) {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.world_size = 1;
  entrain_runtime_config_t runtime_config;
  entrain_runtime_config_init(&runtime_config);
  runtime_config.transports = "inproc";
  ASSERT_OK(entrain_runtime_create(&runtime_config, &config.runtime));
  ASSERT_OK(entrain_store_open(NewStoreUrl().c_str(), 0, &config.store));
  entrain_comm_t* comm = nullptr;
  config.determinism = 9;
  EXPECT_FAILS(entrain_comm_create(&config, &comm), ENTRAIN_INVALID_ARGUMENT, "determinism 9");
  config.determinism = ENTRAIN_DETERMINISM_RANK_ORDER;
  config.reserved = -1;
  EXPECT_FAILS(entrain_comm_create(&config, &comm), ENTRAIN_INVALID_ARGUMENT, "reserved -1");
  config.reserved = 0;
  config.algorithms = "all_reduce:ring";
  const auto algorithm = [&] {
    const char* name = nullptr;
    EXPECT_OK(entrain_comm_create(&config, &comm));
    EXPECT_OK(entrain_comm_algorithm(comm, "all_reduce", 1000, ENTRAIN_F32, &name));
    entrain_comm_destroy(comm);
    return std::string(name == nullptr ? "" : name);
  };
  EXPECT_NE(algorithm(), "ring");
  config.name = "other";
  config.determinism = ENTRAIN_DETERMINISM_DEFAULT;
  EXPECT_EQ(algorithm(), "ring");
  config.name = "third";
  setenv("ENTRAIN_DETERMINISM", "rank_order", 1);
  EXPECT_NE(algorithm(), "ring");
  config.name = "fourth";
  config.determinism = ENTRAIN_DETERMINISM_ALGORITHM;
  EXPECT_EQ(algorithm(), "ring");
  config.determinism = ENTRAIN_DETERMINISM_DEFAULT;
  setenv("ENTRAIN_DETERMINISM", "sometimes", 1);
  EXPECT_FAILS(entrain_comm_create(&config, &comm), ENTRAIN_INVALID_ARGUMENT,
               "ENTRAIN_DETERMINISM: \"sometimes\"");
  unsetenv("ENTRAIN_DETERMINISM");
  entrain_store_destroy(config.store);
  entrain_runtime_destroy(config.runtime);
}

TEST(Comm, ExplainsWhatItChooses) {
  RunWorld(2, [](const Rank& self) {
    char text[2000];
    ASSERT_OK(entrain_comm_explain(self.comm, "all_reduce", 1000, ENTRAIN_F32, text, sizeof(text)));
    const std::string whole = text;
    EXPECT_THAT(whole, testing::AllOf(testing::HasSubstr("estimates in us: "),
                                      testing::HasSubstr("\nfor inproc ranks 2 ")));
    ASSERT_OK(entrain_comm_explain(self.comm, "all_reduce", 1000, ENTRAIN_F32, text, 10));
    EXPECT_EQ(text, whole.substr(0, 9));
    EXPECT_FAILS(entrain_comm_explain(self.comm, "all_reduce", 1, ENTRAIN_F32, text, 0),
                 ENTRAIN_INVALID_ARGUMENT, "bytes 0");
    EXPECT_FAILS(entrain_comm_explain(self.comm, "nothing", 1, ENTRAIN_F32, text, 10),
                 ENTRAIN_INVALID_ARGUMENT, "nothing");
    EXPECT_FAILS(entrain_comm_explain(self.comm, "all_reduce", 1, ENTRAIN_F32, nullptr, 10),
                 ENTRAIN_INVALID_ARGUMENT, "text is NULL");
  });
}

TEST(Comm, StatsCountCallsAndBytes) {
  RunWorld(2, [](const Rank& self) {
    std::vector<uint8_t> data(1000);
    entrain_comm_stats_t before, after;
    entrain_comm_stats_init(&before);
    entrain_comm_stats_init(&after);
    ASSERT_OK(entrain_comm_stats(self.comm, &before));
    ASSERT_OK(
        self.rank == 0
            ? entrain_send(self.comm, data.data(), data.size(), ENTRAIN_U8, 1, nullptr, nullptr)
            : entrain_recv(self.comm, data.data(), data.size(), ENTRAIN_U8, 0, nullptr, nullptr));
    ASSERT_OK(entrain_comm_stats(self.comm, &after));
    EXPECT_EQ(after.calls - before.calls, 1u);
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, self.rank == 0 ? 1000u : 0u);
    EXPECT_EQ(after.bytes_received - before.bytes_received, self.rank == 0 ? 0u : 1000u);
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(Comm, SplitGroupsByColorAndOrdersByKey) {
  RunWorld(5, [](const Rank& self) {
    entrain_comm_t* part = nullptr;
    const int color = self.rank % 2;
    ASSERT_OK(entrain_comm_split(self.comm, color, -self.rank, &part, nullptr));
    int32_t rank = -1, size = -1;
    EXPECT_OK(entrain_comm_rank(part, &rank));
    EXPECT_OK(entrain_comm_size(part, &size));
    EXPECT_EQ(size, color == 0 ? 3 : 2);
    EXPECT_EQ(rank, color == 0 ? (4 - self.rank) / 2 : (3 - self.rank) / 2);
    int32_t sum = self.rank;
    EXPECT_OK(entrain_all_reduce(part, &sum, &sum, 1, ENTRAIN_I32, ENTRAIN_SUM, nullptr, nullptr));
    EXPECT_EQ(sum, color == 0 ? 6 : 4);
    entrain_comm_destroy(part);
  });
}

TEST(Comm, ColorMinusOneIsInNoPart) {
  RunWorld(3, [](const Rank& self) {
    entrain_comm_t* part = reinterpret_cast<entrain_comm_t*>(1);
    ASSERT_OK(entrain_comm_split(self.comm, self.rank == 1 ? -1 : 0, 0, &part, nullptr));
    EXPECT_EQ(part == nullptr, self.rank == 1);
    entrain_comm_destroy(part);
    EXPECT_FAILS(entrain_comm_split(self.comm, -2, 0, &part, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "color -2");
  });
}

TEST(Comm, AFailedPartLeavesItsParentAlone) {
  RunWorld(3, [](const Rank& self) {
    entrain_comm_t* part = nullptr;
    ASSERT_OK(entrain_comm_split(self.comm, 0, self.rank, &part, nullptr));
    if (self.rank == 0) {
      EXPECT_OK(entrain_comm_abort(part, "enough of this part"));
    }
    EXPECT_FAILS(entrain_barrier(part, nullptr, nullptr), ENTRAIN_ABORTED, "enough of this part");
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    entrain_comm_destroy(part);
  });
}

TEST(Comm, APartOutlivesItsParent) {
  const std::string url = NewStoreUrl();
  RunWorld(2, [](const Rank& self) {
    entrain_comm_t *part = nullptr, *grandchild = nullptr;
    ASSERT_OK(entrain_comm_split(self.comm, 0, self.rank, &part, nullptr));
    ASSERT_OK(entrain_comm_split(part, 0, self.rank, &grandchild, nullptr));
    entrain_comm_destroy(part);
    float data = 1;
    EXPECT_OK(entrain_all_reduce(grandchild, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM, nullptr,
                                 nullptr));
    EXPECT_EQ(data, 2.0f);
    entrain_comm_destroy(grandchild);
  });
}

TEST(Comm, AbortByOneRankEndsTheCallsOfAll) {
  RunWorld(3, [](const Rank& self) {
    const auto aborted = steady_clock::now();
    if (self.rank == 1) {
      // Ranks 0 and 2 wait for rank 1, which ends the communicator.
      EXPECT_OK(entrain_comm_abort(self.comm, "the operator said so"));
      EXPECT_OK(entrain_comm_abort(self.comm, "a second time"));
    }
    std::vector<float> data(100'000);
    EXPECT_EQ(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                 ENTRAIN_SUM, nullptr, nullptr),
              ENTRAIN_ABORTED);
    EXPECT_LT(steady_clock::now() - aborted, milliseconds(250));
    const entrain_error_t error = RecordOf(self.comm);
    EXPECT_EQ(error.code, ENTRAIN_ABORTED);
    EXPECT_EQ(error.scope, ENTRAIN_SCOPE_COMM);
    EXPECT_THAT(error.text, testing::HasSubstr("the operator said so"));
    EXPECT_FAILS(entrain_barrier(self.comm, nullptr, nullptr), ENTRAIN_ABORTED,
                 "the operator said so");
  });
}

TEST(Comm, TextsOfOtherRanksAreCleaned) {
  RunWorld(2, [](const Rank& self) {
    if (self.rank == 1) {
      EXPECT_OK(entrain_comm_abort(self.comm, "evil \x1b[2J\n[0] all well \xff"));
      return;
    }
    EXPECT_FAILS(entrain_barrier(self.comm, nullptr, nullptr), ENTRAIN_ABORTED,
                 "evil ?[2J [0] all well ?");
    for (const std::string& text :
         {std::string(entrain_last_error()), std::string(RecordOf(self.comm).text)}) {
      EXPECT_EQ(text.find_first_of("\x1b\n\xff"), std::string::npos) << text;
    }
  });
}

TEST(Comm, AbortWakesABlockedCallerWithin250Milliseconds) {
  RunWorld(2, [](const Rank& self) {
    if (self.rank == 1) {
      // Never makes the call. Leaves only when rank 0 was released.
      float unused = 0;
      EXPECT_EQ(entrain_recv(self.comm, &unused, 1, ENTRAIN_F32, 0, nullptr, nullptr),
                ENTRAIN_ABORTED);
      return;
    }
    std::atomic<bool> entered{false};
    std::atomic<int64_t> returned_ns{0};
    std::thread blocked([&] {
      float data = 0;
      entered = true;
      EXPECT_EQ(entrain_recv(self.comm, &data, 1, ENTRAIN_F32, 1, nullptr, nullptr),
                ENTRAIN_ABORTED);
      returned_ns = steady_clock::now().time_since_epoch().count();
    });
    entrain_comm_stats_t stats;
    entrain_comm_stats_init(&stats);
    while (!entered || stats.calls == 0) {
      ASSERT_OK(entrain_comm_stats(self.comm, &stats));
      std::this_thread::yield();
    }
    const int64_t aborted_ns = steady_clock::now().time_since_epoch().count();
    EXPECT_OK(entrain_comm_abort(self.comm, "time to go"));
    blocked.join();
    EXPECT_LT(returned_ns - aborted_ns, 250'000'000);
  });
}

TEST(Comm, DifferentCallsFailOnAllRanksNamingBoth) {
  RunWorld(2, [](const Rank& self) {
    std::vector<float> data(64);
    const entrain_status_t code =
        self.rank == 0 ? entrain_all_reduce(self.comm, data.data(), data.data(), 64, ENTRAIN_F32,
                                            ENTRAIN_SUM, nullptr, nullptr)
                       : entrain_all_reduce(self.comm, data.data(), data.data(), 32, ENTRAIN_F32,
                                            ENTRAIN_SUM, nullptr, nullptr);
    EXPECT_EQ(code, ENTRAIN_MISMATCH);
    const entrain_error_t error = RecordOf(self.comm);
    EXPECT_EQ(error.code, ENTRAIN_MISMATCH);
    EXPECT_EQ(error.scope, ENTRAIN_SCOPE_COMM);
    EXPECT_THAT(error.text, testing::HasSubstr("64"));
    EXPECT_THAT(error.text, testing::HasSubstr("32"));
  });
}

TEST(Comm, ADeadlineNamesTheRankThatDidNotCome) {
  RunWorld(3, [](const Rank& self) {
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.timeout_ns = 200'000'000;
    options.tag = 5;
    if (self.rank == 2) {
      // Makes no calls, but lives, until the others have given up waiting for it.
      while (entrain_comm_error(self.comm, nullptr) == ENTRAIN_OK) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return;
    }
    float data = 1;
    const auto started = steady_clock::now();
    EXPECT_EQ(
        entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM, &options, nullptr),
        ENTRAIN_TIMED_OUT);
    const auto took = steady_clock::now() - started;
    // The other waiting rank may have begun earlier, and its deadline ends this call too.
    EXPECT_GE(took, milliseconds(100));
    EXPECT_LT(took, milliseconds(450));
    const entrain_error_t error = RecordOf(self.comm);
    EXPECT_EQ(error.code, ENTRAIN_TIMED_OUT);
    EXPECT_EQ(error.guilty_rank, 2);
    EXPECT_STREQ(error.operation, "all_reduce");
    EXPECT_EQ(error.tag, 5);
    EXPECT_GE(error.sequence, 1u);
    EXPECT_EQ(error.deadline_ns, 200'000'000);
    EXPECT_GE(error.elapsed_ns, 200'000'000);
    EXPECT_THAT(error.text, testing::HasSubstr("rank 2"));
  });
}

TEST(Comm, ARankThatEndsBecauseItsCallWasRefusedGivesTheReason) {
  for (const bool handled : {false, true}) {
    std::atomic<int> over = 0;
    RunWorld(3, [&](const Rank& self) {
      float data = 1;
      const auto sum = [&](entrain_dtype_t dtype) {
        return entrain_all_reduce(self.comm, &data, &data, 1, dtype, ENTRAIN_SUM, nullptr, nullptr);
      };
      if (self.rank == 2) {
        EXPECT_EQ(sum(99), ENTRAIN_INVALID_ARGUMENT);
        if (handled) {
          EXPECT_OK(sum(ENTRAIN_F32));
        }
        return;  // destroys its communicator
      }
      if (handled) {
        EXPECT_OK(sum(ENTRAIN_F32));
        // The next call of one rank ends the communicator. So both must have left this one before.
        for (++over; over < 2;) {
          std::this_thread::yield();
        }
      }
      EXPECT_EQ(sum(ENTRAIN_F32), ENTRAIN_PEER_LOST);
      const entrain_error_t error = RecordOf(self.comm);
      EXPECT_EQ(error.guilty_rank, 2) << error.text;
      EXPECT_EQ(error.guilty_world_rank, 2) << error.text;
      const auto reason = testing::HasSubstr("its call failed: all_reduce: dtype");
      if (handled) {
        EXPECT_THAT(error.text, testing::Not(reason));
      } else {
        EXPECT_THAT(error.text, reason);
      }
    });
  }
}

TEST(Comm, RanksThatDoNotComeAreNamedWhenCreationTimesOut) {
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_open(NewStoreUrl().c_str(), 0, &store));
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.store = store;
  config.world_size = 3;
  config.timeout_ns = 200'000'000;
  entrain_comm_t* comm = nullptr;
  const auto started = steady_clock::now();
  EXPECT_EQ(entrain_comm_create(&config, &comm), ENTRAIN_TIMED_OUT);
  EXPECT_LT(steady_clock::now() - started, milliseconds(1000));
  EXPECT_THAT(LastError(), testing::HasSubstr("1"));
  EXPECT_THAT(LastError(), testing::HasSubstr("2"));
  EXPECT_EQ(comm, nullptr);
  entrain_store_destroy(store);
}

TEST(Comm, TwoProcessesWithOneRankAreRefused) {
  const std::string url = NewStoreUrl();
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      entrain_runtime_config_t runtime_config;
      entrain_runtime_config_init(&runtime_config);
      entrain_runtime_t* runtime = nullptr;
      ASSERT_OK(entrain_runtime_create(&runtime_config, &runtime));
      entrain_store_t* store = nullptr;
      ASSERT_OK(entrain_store_open(url.c_str(), 0, &store));
      entrain_comm_config_t config;
      entrain_comm_config_init(&config);
      config.runtime = runtime;
      config.store = store;
      config.rank = 1;
      config.world_size = 2;
      config.timeout_ns = 5'000'000'000;
      entrain_comm_t* comm = nullptr;
      EXPECT_FAILS(entrain_comm_create(&config, &comm), ENTRAIN_FAILED_PRECONDITION, "rank 1");
      entrain_store_destroy(store);
      entrain_runtime_destroy(runtime);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Comm, DestroyAbortsWhatIsUnfinished) {
  // A barrier outside the library: a receive that is started later would be refused.
  std::barrier both_receive(2);
  RunWorld(2, [&](const Rank& self) {
    entrain_comm_t* part = nullptr;
    ASSERT_OK(entrain_comm_split(self.comm, 0, self.rank, &part, nullptr));
    float data = 0;
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_recv(part, &data, 1, ENTRAIN_F32, 1 - self.rank, nullptr, &work));
    both_receive.arrive_and_wait();
    if (self.rank == 0) {
      entrain_comm_destroy(part);
      part = nullptr;
    }
    EXPECT_EQ(entrain_work_wait(work, 10'000'000'000), ENTRAIN_ABORTED);
    entrain_error_t error;
    entrain_error_init(&error);
    EXPECT_OK(entrain_work_error(work, &error));
    EXPECT_EQ(error.code, ENTRAIN_ABORTED);
    entrain_work_free(work);
    entrain_comm_destroy(part);
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(Comm, MembersAgreeAndShrink) {
  RunWorld(3, [](const Rank& self) {
    EXPECT_EQ(GenerationOf(self.comm), 0u);
    uint32_t flag = 7u & ~(1u << self.rank);
    EXPECT_OK(entrain_comm_agree(self.comm, &flag));
    EXPECT_EQ(flag, 0u);
    entrain_shrink_config_t config;
    entrain_shrink_config_init(&config);
    const int32_t exclude = 1;
    config.exclude = &exclude;
    config.exclude_count = self.rank == 0 ? 1 : 0;
    config.name = "rest";
    entrain_comm_t* next = nullptr;
    if (self.rank == 1) {
      EXPECT_FAILS(entrain_comm_shrink(self.comm, nullptr, &next), ENTRAIN_STALE_GENERATION,
                   "excludes it");
      entrain_error_t error;
      entrain_error_init(&error);
      EXPECT_EQ(entrain_comm_error(self.comm, &error), ENTRAIN_STALE_GENERATION);
      EXPECT_EQ(error.scope, ENTRAIN_SCOPE_COMM);
      EXPECT_STREQ(error.operation, "shrink");
      return;
    }
    ASSERT_OK(entrain_comm_shrink(self.comm, &config, &next));
    EXPECT_EQ(GenerationOf(next), 1u);
    int32_t count = 0;
    EXPECT_OK(entrain_comm_members(next, nullptr, &count));
    EXPECT_EQ(count, 2);
    entrain_member_t members[3];
    for (entrain_member_t& member : members) {
      entrain_member_init(&member);
    }
    count = 3;
    EXPECT_OK(entrain_comm_members(next, members, &count));
    EXPECT_EQ(count, 2);
    EXPECT_EQ(members[1].rank, 1);
    EXPECT_EQ(members[1].parent_rank, 2);
    EXPECT_EQ(members[1].code, ENTRAIN_OK);
    EXPECT_EQ(members[2].parent_rank, -1) << "not written";
    EXPECT_OK(entrain_barrier(next, nullptr, nullptr));
    entrain_comm_destroy(next);
  });
}

TEST(Comm, ASilenceInWhichABusyRankMayNotAnswerIsRefused) {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  entrain_comm_t* comm = nullptr;
  for (const int64_t silence : {int64_t{-1}, int64_t{99'999'999}}) {
    config.silence_ns = silence;
    EXPECT_FAILS(entrain_comm_create_from_env(&config, &comm), ENTRAIN_INVALID_ARGUMENT,
                 "silence_ns " + std::to_string(silence));
  }
}

TEST(Comm, WrongArgumentsOfAShrinkAreNamed) {
  RunWorld(1, [](const Rank& self) {
    entrain_shrink_config_t config;
    entrain_comm_t* next = nullptr;
    const auto fails = [&](const char* part) {
      EXPECT_FAILS(entrain_comm_shrink(self.comm, &config, &next), ENTRAIN_INVALID_ARGUMENT, part);
      entrain_shrink_config_init(&config);
    };
    entrain_shrink_config_init(&config);
    config.timeout_ns = -1;
    fails("timeout_ns");
    config.exclude_count = -2;
    fails("exclude_count -2");
    config.exclude_count = 1;
    fails("exclude is NULL");
    const int32_t exclude = 4;
    config.exclude = &exclude;
    config.exclude_count = 1;
    fails("exclude: 4");
    config.partition = 2;
    fails("partition 2");
    config.name = "";
    fails("name has 0 bytes");
    EXPECT_FAILS(entrain_comm_shrink(self.comm, &config, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "next");
    EXPECT_FAILS(entrain_comm_agree(self.comm, nullptr), ENTRAIN_INVALID_ARGUMENT, "flag");
    EXPECT_FAILS(entrain_comm_members(self.comm, nullptr, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "count");
    int32_t count = 1;
    EXPECT_FAILS(entrain_comm_members(self.comm, nullptr, &count), ENTRAIN_INVALID_ARGUMENT,
                 "members");
    EXPECT_OK(entrain_comm_shrink(self.comm, &config, &next));
    entrain_comm_destroy(next);
  });
}

TEST(Comm, DrainWaitsForWhatWasStarted) {
  RunWorld(2, [](const Rank& self) {
    float in = static_cast<float>(self.rank), out = 0;
    entrain_work_t *sent = nullptr, *received = nullptr;
    ASSERT_OK(entrain_recv(self.comm, &out, 1, ENTRAIN_F32, 1 - self.rank, nullptr, &received));
    ASSERT_OK(entrain_send(self.comm, &in, 1, ENTRAIN_F32, 1 - self.rank, nullptr, &sent));
    ASSERT_OK(entrain_comm_drain(self.comm, 10'000'000'000));
    EXPECT_EQ(out, 1.0f - in);
    int32_t done = 0;
    EXPECT_OK(entrain_work_test(received, &done));
    EXPECT_EQ(done, 1);
    entrain_work_free(sent);
    entrain_work_free(received);
    EXPECT_FAILS(entrain_comm_drain(self.comm, -1), ENTRAIN_INVALID_ARGUMENT, "timeout_ns -1");
  });
}

TEST(Comm, PeersHaveDifferentIdentities) {
  std::set<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    entrain_runtime_t* runtime = nullptr;
    ASSERT_OK(entrain_runtime_create(nullptr, &runtime));
    entrain_peer_id_t id;
    ASSERT_OK(entrain_runtime_peer_id(runtime, &id));
    ids.emplace(reinterpret_cast<const char*>(id.bytes), sizeof(id.bytes));
    entrain_runtime_destroy(runtime);
  }
  EXPECT_EQ(ids.size(), 3u);
}

TEST(Comm, AnUnreachableStoreIsALostPeerThatIsNamed) {
  entrain_store_t* served = nullptr;
  ASSERT_OK(entrain_store_serve("tcp://127.0.0.1:0", &served));
  const std::string url = entrain_store_url(served);
  entrain_store_t* second = nullptr;
  EXPECT_FAILS(entrain_store_serve(url.c_str(), &second), ENTRAIN_FAILED_PRECONDITION,
               url.substr(6));
  entrain_store_destroy(served);
  EXPECT_FAILS(entrain_store_open(url.c_str(), 300'000'000, &second), ENTRAIN_PEER_LOST,
               url.substr(6));
  EXPECT_EQ(second, nullptr);
  entrain_error_t error;
  entrain_error_init(&error);
  ASSERT_OK(entrain_last_error_record(&error));
  EXPECT_EQ(error.scope, ENTRAIN_SCOPE_CALL);
}

// Another process holds the lock of the directory.
TEST(Comm, CallsOfAStoreEndAtItsTimeout) {
  const std::string directory = testing::TempDir() + "entrain-store-timeout";
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_open(("file:" + directory).c_str(), 0, &store));
  EXPECT_FAILS(entrain_store_set_timeout(store, 0), ENTRAIN_INVALID_ARGUMENT, "is not positive");
  EXPECT_FAILS(entrain_store_set_timeout(nullptr, 1), ENTRAIN_INVALID_ARGUMENT, "store is NULL");
  ASSERT_OK(entrain_store_set_timeout(store, 100'000'000));
  ASSERT_OK(entrain_store_set(store, "key", "a", 1));
  const int lock = open((directory + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(lock, 0);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  int64_t sum = 0;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FAILS(entrain_store_set(store, "key", "b", 1), ENTRAIN_TIMED_OUT, "lock");
  EXPECT_FAILS(entrain_store_add(store, "sum", 1, &sum), ENTRAIN_TIMED_OUT, "lock");
  EXPECT_FAILS(entrain_store_delete(store, "key"), ENTRAIN_TIMED_OUT, "lock");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  close(lock);
  EXPECT_OK(entrain_store_add(store, "sum", 1, &sum));
  entrain_store_destroy(store);
  std::filesystem::remove_all(directory);
}

TEST(Comm, StoresShareKeysAndCounters) {
  entrain_store_t* store = nullptr;
  entrain_store_t* other = nullptr;
  ASSERT_OK(entrain_store_serve("tcp://127.0.0.1:0", &store));
  ASSERT_OK(entrain_store_open(entrain_store_url(store), 0, &other));
  ASSERT_OK(entrain_store_set(store, "name", "value", 5));
  char text[8] = {};
  size_t bytes = 3;  // fewer than the value has
  ASSERT_OK(entrain_store_get(other, "name", 1'000'000'000, text, &bytes));
  EXPECT_EQ(bytes, 5u);
  EXPECT_STREQ(text, "val");
  bytes = sizeof(text) - 1;
  ASSERT_OK(entrain_store_get(other, "name", 0, text, &bytes)) << "does not wait, but asks";
  EXPECT_STREQ(text, "value");
  EXPECT_FAILS(entrain_store_get(other, "never", 0, text, &bytes), ENTRAIN_TIMED_OUT, "never");
  int64_t sum = 0;
  ASSERT_OK(entrain_store_add(store, "count", 2, &sum));
  ASSERT_OK(entrain_store_add(other, "count", 40, &sum));
  EXPECT_EQ(sum, 42);
  ASSERT_OK(entrain_store_delete(other, "count"));
  ASSERT_OK(entrain_store_delete(other, "count"));  // the key does not exist any more
  ASSERT_OK(entrain_store_add(store, "count", 1, &sum));
  EXPECT_EQ(sum, 1);
  ASSERT_OK(entrain_store_delete(store, "name"));
  bytes = sizeof(text);
  EXPECT_FAILS(entrain_store_get(other, "name", 20'000'000, text, &bytes), ENTRAIN_TIMED_OUT,
               "name");
  EXPECT_FAILS(entrain_store_delete(store, ""), ENTRAIN_INVALID_ARGUMENT, "key has 0 bytes");
  EXPECT_FAILS(entrain_store_get(other, "never", 20'000'000, text, &bytes), ENTRAIN_TIMED_OUT,
               "never");
  const std::string long_key(513, 'k');
  EXPECT_FAILS(entrain_store_set(store, long_key.c_str(), "", 0), ENTRAIN_INVALID_ARGUMENT,
               "513 bytes");
  entrain_store_destroy(other);
  entrain_store_destroy(store);
}

TEST(Comm, ShortagesAreResourceExhausted) {
  rlimit saved;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &saved), 0);
  const int next = dup(0);  // the first free descriptor
  ASSERT_GE(next, 0);
  close(next);
  rlimit tight = saved;
  tight.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  entrain_store_t* store = nullptr;
  const entrain_status_t code = entrain_store_serve("tcp://127.0.0.1:0", &store);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &saved), 0);
  EXPECT_EQ(code, ENTRAIN_RESOURCE_EXHAUSTED) << LastError();
  entrain_store_destroy(store);
}

// Sanitizers map much memory themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// While this object lives, the process may map little further memory.
class LittleMemory {
 public:
  LittleMemory() {
    getrlimit(RLIMIT_AS, &saved_);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit tight = saved_;
    tight.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (4 << 20));
    EXPECT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &saved_); }

 private:
  rlimit saved_{};
};

// The rank has not taken part, so it may repeat the call while the others wait in theirs.
TEST(Comm, ACallThatFoundNoMemoryMayBeMadeAgain) {
  constexpr size_t kMany = 16 << 20;
  std::barrier other_has_started(2);
  RunWorld(2, [&](const Rank& self) {
    std::vector<float> data(kMany, static_cast<float>(self.rank + 1));
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    EXPECT_OK(entrain_reduction_premultiplied_sum(2, &options.reduction));  // this scales a copy
    entrain_work_t* work = nullptr;
    const auto start = [&] {
      return entrain_all_reduce(self.comm, data.data(), data.data(), kMany, ENTRAIN_F32,
                                ENTRAIN_REDUCTION, &options, &work);
    };
    if (self.rank == 0) {
      EXPECT_OK(start());
    }
    other_has_started.arrive_and_wait();
    if (self.rank == 1) {
      {
        const LittleMemory little;
        EXPECT_FAILS(start(), ENTRAIN_RESOURCE_EXHAUSTED, "could not be had");
      }
      EXPECT_OK(start());
    }
    EXPECT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
    EXPECT_EQ(data, std::vector<float>(kMany, 6));
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr)) << "the next call is the next";
    entrain_reduction_destroy(options.reduction);
  });
}
#endif

TEST(Comm, AForkedChildIsRefused) {
  RunWorld(1, [](const Rank& self) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int32_t rank = 0;
      const entrain_status_t code = entrain_comm_rank(self.comm, &rank);
      entrain_comm_destroy(self.comm);  // must neither wait nor crash
      _exit(code == ENTRAIN_FAILED_PRECONDITION ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    int32_t rank = -1;
    EXPECT_OK(entrain_comm_rank(self.comm, &rank));
  });
}

TEST(Comm, EachThreadHasItsOwnLastError) {
  EXPECT_EQ(entrain_comm_abort(nullptr, ""), ENTRAIN_INVALID_ARGUMENT);
  const std::string mine = LastError();
  std::thread([] {
    EXPECT_STREQ(entrain_last_error(), "");
    EXPECT_EQ(entrain_work_wait(nullptr, 0), ENTRAIN_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(LastError(), mine);
}

}  // namespace
}  // namespace entrain_test
