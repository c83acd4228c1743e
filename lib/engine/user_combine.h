// One combination by the caller's own reduction function. The function runs on a CallbackThread of
// the communicator. It may block without limit, and the call may end meanwhile. So the function
// gets only memory of the library, and its result is dropped if the call has ended.
//
// Thread safety: Call runs on the CallbackThread. All other functions are [driver]
// (lib/engine/engine.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/call.h"
#include "lib/base/callback_thread.h"
#include "lib/engine/engine.h"
#include "lib/engine/plan.h"
#include "lib/memory/buffer.h"

namespace entrain {

// A combination uses the engine and the thread that runs the function. Errors show `name`, for
// example "the user reduction of all_reduce #2".
struct UserFunctions {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<CallbackThread> thread;
  std::shared_ptr<const std::string> name;
};

class UserCombine final : public Job, public std::enable_shared_from_this<UserCombine> {
 public:
  // Called on the driver with the function's return value. Not called if the combination was
  // cancelled.
  using Returned = absl::AnyInvocable<void(int32_t) &&>;
  static std::shared_ptr<UserCombine> Post(const UserFunctions& functions, DType dtype,
                                           const Reduction& reduction, Combination combination,
                                           Returned returned);
  // Must be called if the call ends before the function has returned. The function is not called
  // again. If it is running, it may still use its operands in `memory`. So this object keeps
  // `memory`.
  void Cancel(std::shared_ptr<OwnedBuffer> memory);
  // Returns the time at which the function was called. Returns 0 if it was not called yet.
  int64_t since_ns() const { return since_ns_.load(std::memory_order_relaxed); }
  void Run() override;

 private:
  UserCombine(const UserFunctions& functions, DType dtype, const Reduction& reduction,
              Combination combination, Returned returned);
  void Call();
  void Count(int32_t change) const;

  const UserFunctions functions_;
  const DType dtype_;
  const Reduction reduction_;
  const Combination combination_;
  Returned then_;
  std::atomic<int64_t> since_ns_{0};
  int32_t returned_ = 0;  // written before Submit
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<OwnedBuffer> memory_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<UserCombine> self_;  // not null from Submit until Run
};

}  // namespace entrain
