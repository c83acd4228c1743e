// A thread that calls functions of the caller's, which may block, for a lock that another thread holds over a call of the
// library: done() of entrain_work_notify, on one an engine, reductions, on one a communicator, and the log function, on one
// a process. Made for the first of them. Nobody joins it, nor waits for it without a deadline: what it runs may need what its
// waiter holds.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace entrain {

class CallbackThread {
 public:
  using Callback = absl::AnyInvocable<void() &&>;
  // `name`: as tools that look at threads show it. RESOURCE_EXHAUSTED: the system gives no thread.
  static absl::StatusOr<std::shared_ptr<CallbackThread>> Start(const char* name);
  // The thread ends by itself once it has called what was posted. May be run on it.
  ~CallbackThread();
  // Calls it soon, after those that were posted before. `name`: what Running calls it.
  void Post(Callback callback, std::string name = {});
  // What it is in, since when by Clock::Real() (0: it is in nothing), and how many wait behind that.
  struct Running {
    std::string name;
    int64_t since_ns = 0;
    size_t waiting = 0;
  };
  Running running() const;

 private:
  struct Queue;
  explicit CallbackThread(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
  static void* Main(void* queue);

  const std::shared_ptr<Queue> queue_;
};

}  // namespace entrain
