// Ranks that grow a communicator, and newcomers that join it. Each has a runtime of its own, so they
// may be threads of one process.
#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <sys/prctl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/comm/communicator.h"
#include "lib/comm/create/applications.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/function_store.h"
#include "lib/store/store.h"
#include "tests/support/processes.h"
#include "tests/support/wait.h"

namespace entrain {

using Comm = std::shared_ptr<Communicator>;
using MaybeComm = absl::StatusOr<Comm>;

constexpr int64_t kLong = 30 * kSecond;

inline Stop Soon() {
  return {Deadline::After(kLong), nullptr};
}

struct HowToRun {
  std::string transports = "inproc", key_file = {}, algorithms = {}, tuning = {};
  std::string name = "world";
  int64_t timeout_ns = kLong;
  int64_t wait_ns = kLong;             // for which a newcomer waits
  std::shared_ptr<Runtime> runtime{};  // null: a new one
};

inline std::shared_ptr<Runtime> NewRuntime(const HowToRun& how) {
  RuntimeOptions options;
  options.transports = how.transports;
  options.security.key_file = how.key_file;
  return *Runtime::Create(options);
}

inline CommOptions ToOptions(const std::shared_ptr<Store>& store, const HowToRun& how) {
  CommOptions options;
  options.runtime = how.runtime != nullptr ? how.runtime : NewRuntime(how);
  options.store = store;
  options.name = how.name;
  options.algorithms = how.algorithms;
  options.tuning = how.tuning;
  options.timeout_ns = how.timeout_ns;
  return options;
}

inline MaybeComm CreateMember(const std::shared_ptr<Store>& store, int rank, int size,
                              const HowToRun& how) {
  CommOptions options = ToOptions(store, how);
  options.rank = rank;
  options.size = size;
  return Communicator::Create(options);
}

inline MaybeComm JoinAsNewcomer(const std::shared_ptr<Store>& store, const HowToRun& how) {
  return Communicator::Join({.comm = ToOptions(store, how), .wait_ns = how.wait_ns});
}

// Makes the call on one rank, with `store` added to `options`.
inline MaybeComm Grow(const Comm& comm, const std::shared_ptr<Store>& store, GrowOptions options) {
  options.store = [store](const Stop&) { return store; };
  return comm->Grow(options);
}

// Checks that every rank of the communicator reaches every other rank.
inline void ExpectWorks(const Comm& comm) {
  const int64_t mine = comm->rank() + 1, size = comm->size();
  int64_t sum = 0;
  const absl::Status status = comm->AllReduce(&mine, &sum, 1, DType::kI64, ReduceOp::kSum);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sum, size * (size + 1) / 2);
}

inline void AwaitApplications(Store& store, int64_t count, const std::string& name = "world") {
  EXPECT_TRUE(Becomes(
      [&] { return store.Add(GrowKeys(name).Tickets(), 0, Soon()).value_or(-1) >= count; }));
}

// A store of functions over another store.
inline std::shared_ptr<Store> MakeStoreOfFunctions(std::shared_ptr<Store> base) {
  StoreFunctions functions;
  functions.user = new std::shared_ptr<Store>(std::move(base));
  functions.set = [](void* user, const char* key, const void* value, size_t bytes) -> int32_t {
    Store& store = **static_cast<std::shared_ptr<Store>*>(user);
    return store.Set(key, {static_cast<const char*>(value), bytes}, Soon()).raw_code();
  };
  functions.get = [](void* user, const char* key, int64_t, void* value, size_t* bytes) -> int32_t {
    Store& store = **static_cast<std::shared_ptr<Store>*>(user);
    const auto got = store.TryGet(key, Soon());
    if (!got.ok()) {
      return absl::IsNotFound(got.status()) ? ENTRAIN_TIMED_OUT : got.status().raw_code();
    }
    got->copy(static_cast<char*>(value), *bytes);
    *bytes = got->size();
    return 0;
  };
  functions.add = [](void* user, const char* key, int64_t delta, int64_t* sum) -> int32_t {
    Store& store = **static_cast<std::shared_ptr<Store>*>(user);
    const auto added = store.Add(key, delta, Soon());
    *sum = added.value_or(0);
    return added.status().raw_code();
  };
  functions.remove = [](void* user, const char* key) -> int32_t {
    Store& store = **static_cast<std::shared_ptr<Store>*>(user);
    return store.Delete(key, Soon()).raw_code();
  };
  functions.release = [](void* user) { delete static_cast<std::shared_ptr<Store>*>(user); };
  return MakeFunctionStore(functions, "");
}

// A store of one kind, and handles of it for ranks. Apart: a process that the constructor forks serves a
// store that needs a server, so that this process has no other threads, and can fork.
class StoreOfKind {
 public:
  explicit StoreOfKind(const std::string& kind, bool apart = false)
      : functions_(kind == "functions") {
    static int count = 0;
    const std::string name = absl::StrCat("growth", getpid(), "-", count++);
    if (kind == "file" || functions_) {
      url_ = "file:" + directory_.path();
    } else if (kind == "mem") {
      url_ = "mem:" + name;
      served_ = *OpenStore(url_, "", Soon());
    } else if (const std::string url = kind == "tcp" ? "tcp://127.0.0.1:0" : "local:" + name;
               apart) {
      ServeApart(url);
    } else {
      served_ = *ServeStore(url, "");
      url_ = served_->url();
    }
  }
  ~StoreOfKind() {
    if (server_ > 0) {
      kill(server_, SIGKILL);
      EndOf(server_);
    }
  }
  StoreOfKind(const StoreOfKind&) = delete;
  StoreOfKind& operator=(const StoreOfKind&) = delete;

  std::shared_ptr<Store> Open() const {
    auto store = *OpenStore(url_, "", Soon());
    return functions_ ? MakeStoreOfFunctions(std::move(store)) : store;
  }
  // Ends a server in this process.
  void Close() { served_.reset(); }

 private:
  void ServeApart(const std::string& url) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    server_ = StartProcess([&] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto served = *ServeStore(url, "");
      ASSERT_EQ(write(ends[1], served->url().data(), served->url().size()),
                static_cast<ssize_t>(served->url().size()));
      pause();
    });
    close(ends[1]);
    char text[256];
    const ssize_t length = read(ends[0], text, sizeof(text));
    ASSERT_GT(length, 0);
    url_.assign(text, static_cast<size_t>(length));
    close(ends[0]);
  }

  const bool functions_;
  const TempDirectory directory_;
  std::string url_;
  std::shared_ptr<Store> served_;
  pid_t server_ = -1;
};

}  // namespace entrain
