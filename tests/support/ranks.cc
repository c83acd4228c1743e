#include "tests/support/ranks.h"

#include <atomic>
#include <barrier>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/device/calls/device_runner.h"
#include "lib/store/store.h"
#include "tests/support/processes.h"
#include "tools/perf/cores.h"

namespace entrain {
namespace {

absl::StatusOr<std::shared_ptr<Communicator>> Join(const RanksOptions& options,
                                                   const std::shared_ptr<Store>& store, int rank,
                                                   int size) {
  RuntimeOptions runtime_options;
  runtime_options.transports = options.transports;
  runtime_options.own_thread = options.own_thread;
  runtime_options.device_calls = kDeviceCalls;
  if (options.core) {
    perf::PinToCore(options.core(rank));
  }
  runtime_options.host_id = options.host_id ? options.host_id(rank) : "";
  auto runtime = Runtime::Create(runtime_options);
  if (!runtime.ok()) {
    return runtime.status();
  }
  CommOptions comm_options;
  comm_options.cpus.quota = options.quota ? options.quota(rank) : CpuQuota();
  comm_options.runtime = *runtime;
  comm_options.store = store;
  comm_options.rank = rank;
  comm_options.size = size;
  comm_options.algorithms = options.algorithms;
  comm_options.tuning = options.tuning;
  comm_options.determinism = options.determinism;
  comm_options.timeout_ns = options.timeout_ns;
  return Communicator::Create(comm_options);
}

// Runs one rank. Called in the process of this rank.
void RunRankProcess(const std::string& url, int rank, int size, const RanksOptions& options,
                    const RankBody& body) {
  auto store = OpenStore(url, "", {Deadline::After(5 * kSecond)});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto comm = Join(options, *std::move(store), rank, size);
  ASSERT_TRUE(comm.ok()) << "rank " << rank << ": " << comm.status();
  body(*comm);
}

}  // namespace

void RunRanks(int size, const RanksOptions& options, const RankBody& body) {
  static std::atomic<int> runs{0};
  const auto store =
      OpenStore(absl::StrCat("mem:ranks", runs.fetch_add(1)), "", {Deadline::After(kSecond)});
  ASSERT_TRUE(store.ok()) << store.status();
  std::barrier created(size);  // a failure in one body must not reach another rank's creation
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm = Join(options, *store, rank, size);
      created.arrive_and_wait();
      ASSERT_TRUE(comm.ok()) << "rank " << rank << ": " << comm.status();
      body(*comm);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

std::vector<int> RunRankProcesses(int size, const RanksOptions& options, const RankBody& body) {
  const TempDirectory directory;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(StartProcess(
        [&] { RunRankProcess("file:" + directory.path(), rank, size, options, body); }));
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    ends.push_back(EndOf(child));
  }
  return ends;
}

}  // namespace entrain
