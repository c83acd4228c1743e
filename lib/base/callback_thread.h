// A thread that calls functions of the caller. Such a function may block, for example on a lock
// that another thread holds during a call of the library.
//
// Each engine has one CallbackThread for done() of entrain_work_notify. Each communicator has one
// for its reductions. The process has one for the log function. Each is created at its first use.
//
// The library does not join this thread, and waits for it only with a deadline, because the running
// callback may be blocked by a lock that the waiting thread holds.
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
  // `name` is the thread's name in debuggers and ps. Returns RESOURCE_EXHAUSTED if the system
  // cannot create a thread.
  static absl::StatusOr<std::shared_ptr<CallbackThread>> Start(const char* name);
  // Does not wait. The thread ends after it has called all callbacks that were posted. The
  // destructor may run on the thread itself.
  ~CallbackThread();
  // Queues `callback`. The thread calls callbacks in the order in which they were posted. `name` is
  // the text that running() returns.
  void Post(Callback callback, std::string name = {});
  // since_ns: the time by Clock::Real() at which the running callback began; 0 if no callback runs.
  // waiting: the number of queued callbacks that have not begun.
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
