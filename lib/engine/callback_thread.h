// The thread that calls done() of entrain_work_notify: functions of the caller's that may block, for a lock that another
// thread holds over a call of the library. One an engine, made for the first of them. Nobody waits for it, nor joins it:
// what it runs may need what its waiter holds.
//
// Thread safety: any thread.
#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace entrain {

class CallbackThread {
 public:
  using Callback = absl::AnyInvocable<void() &&>;
  // RESOURCE_EXHAUSTED: the system gives no thread.
  static absl::StatusOr<std::shared_ptr<CallbackThread>> Start();
  // The thread ends by itself once it has called what was posted. May be run on it.
  ~CallbackThread();
  // Calls it soon, after those that were posted before.
  void Post(Callback callback);

 private:
  struct Queue;
  explicit CallbackThread(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
  static void* Main(void* queue);

  const std::shared_ptr<Queue> queue_;
};

}  // namespace entrain
