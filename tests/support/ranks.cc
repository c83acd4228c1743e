#include "tests/support/ranks.h"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/store/store.h"

namespace entrain {

void RunRanks(int size, const RanksOptions& options,
              const std::function<void(const std::shared_ptr<Communicator>& comm)>& body) {
  static std::atomic<int> runs{0};
  const auto store =
      OpenStore(absl::StrCat("mem:ranks", runs.fetch_add(1)), "", {Deadline::After(kSecond)});
  ASSERT_TRUE(store.ok()) << store.status();
  std::barrier created(size);  // a failure in one body must not reach another rank's creation
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RuntimeOptions runtime_options;
      runtime_options.transports = options.transports;
      runtime_options.own_thread = options.own_thread;
      runtime_options.host_id = options.host_id ? options.host_id(rank) : "";
      auto runtime = Runtime::Create(runtime_options);
      ASSERT_TRUE(runtime.ok()) << runtime.status();
      CommOptions comm_options;
      comm_options.runtime = *runtime;
      comm_options.store = *store;
      comm_options.rank = rank;
      comm_options.size = size;
      comm_options.algorithms = options.algorithms;
      comm_options.tuning = options.tuning;
      comm_options.determinism = options.determinism;
      comm_options.timeout_ns = options.timeout_ns;
      auto comm = Communicator::Create(comm_options);
      created.arrive_and_wait();
      ASSERT_TRUE(comm.ok()) << "rank " << rank << ": " << comm.status();
      body(*comm);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace entrain
