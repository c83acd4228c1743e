// A store made of the caller's functions.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"
#include "tests/support/wait.h"

namespace entrain_test {
namespace {

using ::testing::HasSubstr;

// Shared by the functions: a map, and settings of their behaviour.
struct Map {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::map<std::string, int64_t> counters;
  std::set<std::thread::id> callers;
  int released = 0, sets = 0;
  int32_t set_fails_with = 0;
  int64_t overruns_ns = 0;  // time by which `get` exceeds its limit
  bool finds_nothing = false;
};

Map& MapOf(void* user) {
  return *static_cast<Map*>(user);
}

int32_t Set(void* user, const char* key, const void* value, size_t bytes) {
  Map& map = MapOf(user);
  std::lock_guard<std::mutex> lock(map.mutex);
  map.callers.insert(std::this_thread::get_id());
  ++map.sets;
  if (map.set_fails_with != 0) {
    return map.set_fails_with;
  }
  map.values[key].assign(static_cast<const char*>(value), bytes);
  map.changed.notify_all();
  return 0;
}

int32_t Get(void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes) {
  Map& map = MapOf(user);
  std::unique_lock<std::mutex> lock(map.mutex);
  map.callers.insert(std::this_thread::get_id());
  const auto there = [&] { return !map.finds_nothing && map.values.count(key) > 0; };
  if (!map.changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns + map.overruns_ns), there)) {
    return ENTRAIN_TIMED_OUT;
  }
  const std::string& found = map.values[key];
  std::memcpy(value, found.data(), std::min(*bytes, found.size()));
  *bytes = found.size();
  return 0;
}

int32_t Add(void* user, const char* key, int64_t delta, int64_t* sum) {
  Map& map = MapOf(user);
  std::lock_guard<std::mutex> lock(map.mutex);
  map.callers.insert(std::this_thread::get_id());
  *sum = map.counters[key] += delta;
  return 0;
}

int32_t Remove(void* user, const char* key) {
  Map& map = MapOf(user);
  std::lock_guard<std::mutex> lock(map.mutex);
  map.values.erase(key);
  map.counters.erase(key);
  return 0;
}

void Release(void* user) {
  Map& map = MapOf(user);
  std::lock_guard<std::mutex> lock(map.mutex);
  ++map.released;
}

entrain_store_functions_t FunctionsOf(Map* map) {
  entrain_store_functions_t functions;
  entrain_store_functions_init(&functions);
  functions.user = map;
  functions.set = Set;
  functions.get = Get;
  functions.add = Add;
  functions.remove = Remove;
  functions.release = Release;
  return functions;
}

struct Created {
  entrain_status_t code = ENTRAIN_OK;
  std::string error;
  entrain_comm_t* comm = nullptr;
};

Created Create(entrain_store_t* store, int rank, int size, const char* transports,
               int64_t timeout_ns) {
  entrain_runtime_config_t runtime_config;
  entrain_runtime_config_init(&runtime_config);
  runtime_config.transports = transports;
  entrain_runtime_t* runtime = nullptr;
  EXPECT_OK(entrain_runtime_create(&runtime_config, &runtime));
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime;
  config.store = store;
  config.rank = rank;
  config.world_size = size;
  config.timeout_ns = timeout_ns;
  Created created;
  created.code = entrain_comm_create(&config, &created.comm);
  created.error = created.code == ENTRAIN_OK ? "" : LastError();
  entrain_runtime_destroy(runtime);
  return created;
}

constexpr int64_t kLong = 20'000'000'000;

// The tests with processes come first, because a process that has used the library cannot fork
// usable children. Functions over a file store: processes meet, and the error names a rank that is
// killed before the last one comes.
int32_t SetInStore(void* user, const char* key, const void* value, size_t bytes) {
  return entrain_store_set(static_cast<entrain_store_t*>(user), key, value, bytes);
}
int32_t GetFromStore(void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes) {
  return entrain_store_get(static_cast<entrain_store_t*>(user), key, timeout_ns, value, bytes);
}
int32_t AddInStore(void* user, const char* key, int64_t delta, int64_t* sum) {
  return entrain_store_add(static_cast<entrain_store_t*>(user), key, delta, sum);
}

class StoreOfProcesses : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "entrain-functions-XXXXXX";
    url_ = std::string("file:") + mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(url_.substr(5)); }
  pid_t Rank(int rank, int size) {
    const pid_t child = fork();
    if (child != 0) {
      return child;
    }
    entrain_store_t* base = nullptr;
    EXPECT_OK(entrain_store_open(url_.c_str(), 0, &base));
    entrain_store_functions_t functions;
    entrain_store_functions_init(&functions);
    functions.user = base;
    functions.set = SetInStore;
    functions.get = GetFromStore;
    functions.add = AddInStore;
    entrain_store_t* store = nullptr;
    EXPECT_OK(entrain_store_create(&functions, &store));
    const Created created = Create(store, rank, size, "shm,tcp", kLong);
    int64_t sum = 1;
    const bool right = created.code == ENTRAIN_OK
                           ? entrain_all_reduce(created.comm, &sum, &sum, 1, ENTRAIN_I64,
                                                ENTRAIN_SUM, nullptr, nullptr) == ENTRAIN_OK &&
                                 sum == size
                           : created.code == ENTRAIN_PEER_LOST &&
                                 created.error.find("rank 1 has ended") != std::string::npos;
    if (!right) {
      fprintf(stderr, "rank %d: %s\n", rank, created.error.c_str());
    }
    entrain_comm_destroy(created.comm);
    _exit(!right ? 1 : created.code == ENTRAIN_OK ? 0 : 2);
  }
  static int Ended(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool HasCome(const std::string& name) const {
    for (const auto& file : std::filesystem::directory_iterator(url_.substr(5))) {
      if (file.path().filename().string().find(name) != std::string::npos) {
        return true;
      }
    }
    return false;
  }
  std::string url_;
};

TEST_F(StoreOfProcesses, Meet) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(Rank(rank, 3));
  }
  for (const pid_t child : children) {
    EXPECT_EQ(Ended(child), 0);
  }
}

TEST_F(StoreOfProcesses, KilledRankIsNamedWhileOthersWait) {
  const pid_t zero = Rank(0, 3), one = Rank(1, 3);
  ASSERT_TRUE(entrain::Becomes([&] { return HasCome("entry%2f1"); }));
  kill(one, SIGKILL);
  EXPECT_EQ(Ended(one), -1);
  EXPECT_EQ(Ended(zero), 2);
}

TEST(StoreFunctions, RanksMeetThroughAMapAndLeaveNothing) {
  Map map;
  constexpr int kRanks = 4;
  std::vector<std::thread> threads;
  std::vector<Created> created(kRanks);
  std::set<std::thread::id> creators;
  std::mutex mutex;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      {
        std::lock_guard<std::mutex> lock(mutex);
        creators.insert(std::this_thread::get_id());
      }
      const entrain_store_functions_t functions = FunctionsOf(&map);
      entrain_store_t* store = nullptr;
      ASSERT_OK(entrain_store_create(&functions, &store));
      EXPECT_THAT(entrain_store_url(store), HasSubstr("functions:"));
      for (int again = 0; again < 2; ++again) {  // the same name twice
        Created one = Create(store, rank, kRanks, "inproc", kLong);
        ASSERT_EQ(one.code, ENTRAIN_OK) << one.error;
        float sum = 1;
        EXPECT_OK(entrain_all_reduce(one.comm, &sum, &sum, 1, ENTRAIN_F32, ENTRAIN_SUM, nullptr,
                                     nullptr));
        EXPECT_EQ(sum, kRanks);
        EXPECT_OK(entrain_barrier(one.comm, nullptr, nullptr));
        entrain_comm_destroy(one.comm);
      }
      entrain_store_destroy(store);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(map.released, kRanks);
  EXPECT_TRUE(map.values.empty()) << map.values.begin()->first;
  EXPECT_TRUE(map.counters.empty()) << map.counters.begin()->first;
  EXPECT_EQ(map.callers, creators);
}

TEST(StoreFunctions, KeysArePassedAsTheyAre) {
  Map map;
  const entrain_store_functions_t functions = FunctionsOf(&map);
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_create(&functions, &store));
  const std::string text(10'000, 'x');
  ASSERT_OK(entrain_store_set(store, "mine", text.data(), text.size()));
  EXPECT_EQ(map.values.at("mine"), text);
  std::string back(20'000, '\0');
  size_t bytes = back.size();
  ASSERT_OK(entrain_store_get(store, "mine", 0, back.data(), &bytes));
  EXPECT_EQ(back.substr(0, bytes), text);
  int64_t sum = 0;
  ASSERT_OK(entrain_store_add(store, "n", 3, &sum));
  ASSERT_OK(entrain_store_add(store, "n", -1, &sum));
  EXPECT_EQ(sum, 2);
  EXPECT_FAILS(entrain_store_get(store, "absent", 20'000'000, back.data(), &bytes),
               ENTRAIN_TIMED_OUT, "absent");
  entrain_store_destroy(store);
}

TEST(StoreFunctions, WhatAFunctionReturnsIsTheError) {
  Map map;
  const entrain_store_functions_t functions = FunctionsOf(&map);
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_create(&functions, &store));
  map.set_fails_with = ENTRAIN_RESOURCE_EXHAUSTED;
  EXPECT_FAILS(entrain_store_set(store, "k", "v", 1), ENTRAIN_RESOURCE_EXHAUSTED,
               "the function set failed for key \"k\"");
  map.set_fails_with = 7;
  EXPECT_FAILS(entrain_store_set(store, "k", "v", 1), ENTRAIN_PEER_LOST, "it returned 7");
  const Created created = Create(store, 0, 1, "inproc", kLong);
  EXPECT_EQ(created.code, ENTRAIN_PEER_LOST);
  EXPECT_THAT(created.error, HasSubstr("it returned 7"));
  entrain_store_destroy(store);
  EXPECT_EQ(map.released, 1);
}

TEST(StoreFunctions, MayNotUseACommunicator) {
  entrain_store_t* base = nullptr;
  ASSERT_OK(entrain_store_open(NewStoreUrl().c_str(), 0, &base));
  static entrain_comm_t* comm = nullptr;
  comm = Create(base, 0, 1, "inproc", kLong).comm;
  entrain_store_destroy(base);
  Map map;
  entrain_store_functions_t functions = FunctionsOf(&map);
  functions.set = [](void* user, const char* key, const void* value, size_t bytes) {
    EXPECT_FAILS(
        entrain_barrier(comm, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
        "entrain_barrier: called from the store function set, which must not use the engine");
    return Set(user, key, value, bytes);
  };
  functions.get = [](void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes) {
    EXPECT_FAILS(entrain_comm_abort(comm, "no"), ENTRAIN_FAILED_PRECONDITION,
                 "called from the store function get, which must not use the engine");
    return Get(user, key, timeout_ns, value, bytes);
  };
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_create(&functions, &store));
  EXPECT_OK(entrain_store_set(store, "key", "value", 5));
  char value[5];
  size_t bytes = sizeof(value);
  EXPECT_OK(entrain_store_get(store, "key", kLong, value, &bytes));
  entrain_store_destroy(store);
  EXPECT_OK(entrain_barrier(comm, nullptr, nullptr));
  entrain_comm_destroy(comm);
}

TEST(StoreFunctions, AGetThatOverrunsEndsCreationWhenItReturns) {
  Map map;
  map.finds_nothing = true;
  map.overruns_ns = 300'000'000;
  const entrain_store_functions_t functions = FunctionsOf(&map);
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_create(&functions, &store));
  const auto began = std::chrono::steady_clock::now();
  const Created created = Create(store, 0, 2, "inproc", 100'000'000);
  EXPECT_EQ(created.code, ENTRAIN_TIMED_OUT);
  EXPECT_THAT(created.error, HasSubstr("these ranks did not come: 1"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  entrain_store_destroy(store);
}

TEST(StoreFunctions, RanksThatDidNotComeAreNamed) {
  Map map;
  const entrain_store_functions_t functions = FunctionsOf(&map);
  entrain_store_t* store = nullptr;
  ASSERT_OK(entrain_store_create(&functions, &store));
  const Created created = Create(store, 1, 4, "inproc", 200'000'000);
  EXPECT_EQ(created.code, ENTRAIN_TIMED_OUT);
  EXPECT_THAT(created.error, HasSubstr("these ranks did not come: 0, 2, 3"));
  entrain_store_destroy(store);
}

TEST(StoreFunctions, MissingFunctionsAreNamed) {
  entrain_store_t* store = nullptr;
  EXPECT_FAILS(entrain_store_create(nullptr, &store), ENTRAIN_INVALID_ARGUMENT,
               "functions is NULL");
  Map map;
  entrain_store_functions_t functions = FunctionsOf(&map);
  EXPECT_FAILS(entrain_store_create(&functions, nullptr), ENTRAIN_INVALID_ARGUMENT,
               "store is NULL");
  functions.set = nullptr;
  EXPECT_FAILS(entrain_store_create(&functions, &store), ENTRAIN_INVALID_ARGUMENT,
               "functions.set is NULL");
  functions = FunctionsOf(&map);
  functions.get = nullptr;
  EXPECT_FAILS(entrain_store_create(&functions, &store), ENTRAIN_INVALID_ARGUMENT,
               "functions.get is NULL");
  functions = FunctionsOf(&map);
  functions.add = nullptr;
  EXPECT_FAILS(entrain_store_create(&functions, &store), ENTRAIN_INVALID_ARGUMENT,
               "functions.add is NULL");
  EXPECT_EQ(map.released, 0);
}

}  // namespace
}  // namespace entrain_test
