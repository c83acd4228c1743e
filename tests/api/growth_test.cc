// Growing and joining through the C ABI: the store of the environment, the scope of errors, handles.
#include <barrier>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr int64_t kLong = 20'000'000'000;

entrain_runtime_t* NewRuntime() {
  entrain_runtime_config_t config;
  entrain_runtime_config_init(&config);
  config.transports = "inproc";
  entrain_runtime_t* runtime = nullptr;
  EXPECT_OK(entrain_runtime_create(&config, &runtime));
  return runtime;
}

// Joins, and checks the communicator. Takes the store from the environment.
void JoinAndUse(int32_t rank, int32_t size) {
  entrain_runtime_t* const runtime = NewRuntime();
  entrain_join_config_t config;
  entrain_join_config_init(&config);
  config.runtime = runtime;
  config.timeout_ns = kLong;
  entrain_comm_t* comm = nullptr;
  ASSERT_OK(entrain_comm_join(&config, &comm));
  int32_t value = -1;
  EXPECT_OK(entrain_comm_rank(comm, &value));
  EXPECT_EQ(value, rank);
  EXPECT_OK(entrain_comm_size(comm, &value));
  EXPECT_EQ(value, size);
  EXPECT_EQ(GenerationOf(comm), 1u);
  EXPECT_OK(entrain_barrier(comm, nullptr, nullptr));
  entrain_comm_destroy(comm);
  entrain_runtime_destroy(runtime);
}

// A store that the environment names, which each thread opens for itself.
class Growth : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(entrain_store_serve("tcp://127.0.0.1:0", &served_));
    setenv("ENTRAIN_STORE", entrain_store_url(served_), 1);
  }
  void TearDown() override {
    unsetenv("ENTRAIN_STORE");
    entrain_store_destroy(served_);
  }
  // Runs `body` on the ranks of a communicator that meet in the store.
  void RunMembers(int size, const std::function<void(const Rank&)>& body) const {
    std::barrier created(size);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        entrain_comm_config_t config;
        entrain_comm_config_init(&config);
        entrain_runtime_t* const runtime = NewRuntime();
        config.runtime = runtime;
        config.store = served_;
        config.rank = rank;
        config.world_size = size;
        config.timeout_ns = kLong;
        Rank member{nullptr, rank, size};
        EXPECT_OK(entrain_comm_create(&config, &member.comm));
        created.arrive_and_wait();
        if (member.comm != nullptr) {
          body(member);
        }
        entrain_comm_destroy(member.comm);
        entrain_runtime_destroy(runtime);
      });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
  }
  entrain_store_t* served_ = nullptr;
};

TEST_F(Growth, TakesTheStoreOfTheEnvironmentAndKeepsIt) {
  std::thread newcomer([] { JoinAndUse(2, 3); });
  RunMembers(2, [](const Rank& member) {
    entrain_comm_t* grown = nullptr;
    while (grown == nullptr) {  // opens the store in the first call only
      ASSERT_OK(entrain_comm_grow(member.comm, nullptr, &grown));
    }
    EXPECT_EQ(GenerationOf(grown), 1u);
    EXPECT_OK(entrain_barrier(grown, nullptr, nullptr));
    EXPECT_EQ(GenerationOf(member.comm), 0u);
    entrain_comm_destroy(grown);
  });
  newcomer.join();
}

TEST_F(Growth, AMismatchEndsOnlyTheCall) {
  RunMembers(2, [this](const Rank& member) {
    entrain_grow_config_t config;
    entrain_grow_config_init(&config);
    config.store = served_;
    config.max_newcomers = 1 + member.rank;
    entrain_comm_t* grown = nullptr;
    EXPECT_FAILS(entrain_comm_grow(member.comm, &config, &grown), ENTRAIN_MISMATCH,
                 "max_newcomers: 1 on rank 0, 2 on rank 1");
    entrain_error_t error;
    entrain_error_init(&error);
    EXPECT_OK(entrain_last_error_record(&error));
    EXPECT_EQ(error.scope, ENTRAIN_SCOPE_CALL);
    EXPECT_EQ(grown, nullptr);
    EXPECT_OK(entrain_comm_error(member.comm, nullptr));
    EXPECT_OK(entrain_barrier(member.comm, nullptr, nullptr));
  });
}

TEST_F(Growth, OfAnEndedCommunicatorHasTheScopeOfTheCommunicator) {
  RunMembers(1, [](const Rank& member) {
    EXPECT_OK(entrain_comm_abort(member.comm, "enough"));
    entrain_comm_t* grown = nullptr;
    EXPECT_FAILS(entrain_comm_grow(member.comm, nullptr, &grown), ENTRAIN_ABORTED, "enough");
    entrain_error_t error;
    entrain_error_init(&error);
    EXPECT_OK(entrain_last_error_record(&error));
    EXPECT_EQ(error.scope, ENTRAIN_SCOPE_COMM);
  });
}

TEST_F(Growth, WrongArgumentsAreNamed) {
  entrain_comm_t* comm = nullptr;
  EXPECT_FAILS(entrain_comm_grow(nullptr, nullptr, &comm), ENTRAIN_INVALID_ARGUMENT,
               "comm is NULL");
  EXPECT_FAILS(entrain_comm_join(nullptr, nullptr), ENTRAIN_INVALID_ARGUMENT, "comm is NULL");
  entrain_join_config_t config;
  entrain_join_config_init(&config);
  config.wait_ns = -1;
  EXPECT_FAILS(entrain_comm_join(&config, &comm), ENTRAIN_INVALID_ARGUMENT, "wait_ns");
  entrain_join_config_init(&config);
  config.name = "";
  EXPECT_FAILS(entrain_comm_join(&config, &comm), ENTRAIN_INVALID_ARGUMENT, "name has 0 bytes");
  RunMembers(1, [&](const Rank& member) {
    EXPECT_FAILS(entrain_comm_grow(member.comm, nullptr, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "grown is NULL");
  });
}

TEST_F(Growth, WithoutAStoreTheErrorSaysHowToGiveOne) {
  unsetenv("ENTRAIN_STORE");
  entrain_comm_t* comm = nullptr;
  EXPECT_FAILS(entrain_comm_join(nullptr, &comm), ENTRAIN_FAILED_PRECONDITION, "ENTRAIN_STORE");
}

}  // namespace
}  // namespace entrain_test
