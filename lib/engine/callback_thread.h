// A thread that calls functions of the caller's, which may block, for a lock that another thread holds over a call of the
// library: done() of entrain_work_notify, on one an engine, and reductions, on one a communicator. Made for the first of
// them. Nobody joins it, nor waits for it without a deadline: what it runs may need what its waiter holds.
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
  // `name`: as tools that look at threads show it. RESOURCE_EXHAUSTED: the system gives no thread.
  static absl::StatusOr<std::shared_ptr<CallbackThread>> Start(const char* name);
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
