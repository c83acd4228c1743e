// A thread that calls the caller's functions. A function of the caller may block, for example on a
// lock that another thread holds during a call of the library. Each engine has one thread for
// done() of entrain_work_notify, each communicator has one for reductions, and the process has one
// for the log function. A thread is made at its first use. Nobody joins the thread, and nobody
// waits for it without a deadline: the function that runs on it may need a lock that the waiter
// holds.
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
  // `name` is the thread's name in debuggers and ps. RESOURCE_EXHAUSTED: the system gives no
  // thread.
  static absl::StatusOr<std::shared_ptr<CallbackThread>> Start(const char* name);
  // The thread ends by itself once it has called everything that was posted. The destructor may run
  // on this very thread.
  ~CallbackThread();
  // Calls `callback` soon, after all callbacks that were posted before. `name` is the name that
  // Running reports.
  void Post(Callback callback, std::string name = {});
  // The name of the callback that runs now, the time (by Clock::Real()) at which it began, and the
  // number of callbacks that wait behind it. If no callback runs, the time is 0.
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
