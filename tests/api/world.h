// Ranks as threads, each with a runtime of its own. Uses only the C ABI.
#pragma once

#include <atomic>
#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <entrain/entrain.h>
#include <entrain/optim.h>

#include "gtest/gtest.h"

namespace entrain_test {

// Returns the error text of a failed call.
inline std::string LastError() {
  return entrain_last_error();
}

// Expects the code ENTRAIN_OK. Prints the last error's text otherwise.
#define EXPECT_OK(expr) EXPECT_EQ((expr), ENTRAIN_OK) << ::entrain_test::LastError()
#define ASSERT_OK(expr) ASSERT_EQ((expr), ENTRAIN_OK) << ::entrain_test::LastError()
// Expects the code, and all given parts in the error text.
#define EXPECT_FAILS(expr, code, part)                                    \
  do {                                                                    \
    EXPECT_EQ((expr), (code));                                            \
    EXPECT_THAT(::entrain_test::LastError(), ::testing::HasSubstr(part)); \
  } while (false)

inline uint64_t GenerationOf(const entrain_comm_t* comm) {
  entrain_comm_stats_t stats;
  entrain_comm_stats_init(&stats);
  EXPECT_EQ(entrain_comm_stats(comm, &stats), ENTRAIN_OK) << LastError();
  return stats.generation;
}

struct WorldOptions {
  const char* transports = "inproc";
  const char* algorithms = nullptr;
  int32_t progress = ENTRAIN_PROGRESS_THREAD;
  int64_t timeout_ns = 20'000'000'000;
};

// One rank's part of the world.
struct Rank {
  entrain_comm_t* comm = nullptr;
  int rank = 0, size = 1;
};

// Returns a store name that no other test uses.
inline std::string NewStoreUrl() {
  static std::atomic<int> count{0};
  return "mem:api-test-" + std::to_string(count.fetch_add(1));
}

// Creates one rank's runtime and communicator. Returns null on failure, which fails the test.
inline void CreateRank(const std::string& url, int rank, int size, const WorldOptions& options,
                       entrain_comm_t** comm) {
  entrain_runtime_config_t runtime_config;
  entrain_runtime_config_init(&runtime_config);
  runtime_config.transports = options.transports;
  runtime_config.progress = options.progress;
  entrain_runtime_t* runtime = nullptr;
  ASSERT_OK(entrain_runtime_create(&runtime_config, &runtime));
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_open(url.c_str(), 0, &store));
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime;
  config.store = store;
  config.rank = rank;
  config.world_size = size;
  config.algorithms = options.algorithms;
  config.timeout_ns = options.timeout_ns;
  EXPECT_OK(entrain_comm_create(&config, comm));
  entrain_store_destroy(store);
  entrain_runtime_destroy(runtime);
}

// Runs `body` as `size` ranks and waits for all. No body begins before every rank has its
// communicator, because what one body does to the communicator must not disturb another rank's
// creation.
inline void RunWorld(int size, const std::function<void(const Rank&)>& body,
                     const WorldOptions& options = {}) {
  const std::string url = NewStoreUrl();
  std::barrier all_stand(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank self{.comm = nullptr, .rank = rank, .size = size};
      CreateRank(url, rank, size, options, &self.comm);
      all_stand.arrive_and_wait();
      if (self.comm != nullptr) {
        body(self);
        entrain_comm_destroy(self.comm);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace entrain_test
