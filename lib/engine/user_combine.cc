#include "lib/engine/user_combine.h"

#include <utility>

#include "lib/base/callback_scope.h"

namespace entrain {

UserCombine::UserCombine(const UserFunctions& functions, DType dtype, const Reduction& reduction,
                         Combination combination, Returned returned)
    : functions_(functions),
      dtype_(dtype),
      reduction_(reduction),
      combination_(std::move(combination)),
      then_(std::move(returned)) {}

std::shared_ptr<UserCombine> UserCombine::Post(const UserFunctions& functions, DType dtype,
                                               const Reduction& reduction, Combination combination,
                                               Returned returned) {
  std::shared_ptr<UserCombine> combine(
      new UserCombine(functions, dtype, reduction, std::move(combination), std::move(returned)));
  functions.thread->Post([combine] { combine->Call(); });
  return combine;
}

void UserCombine::Call() {
  const CallbackScope scope(*functions_.name, Does::kLook);
  since_ns_.store(functions_.engine->clock().Now(), std::memory_order_relaxed);
  for (const std::byte* source : combination_.sources) {
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) {
        return;
      }
      Count(1);
    }
    returned_ =
        reduction_.combine(combination_.result, source, static_cast<size_t>(combination_.count),
                           static_cast<int32_t>(dtype_), reduction_.user);
    Count(-1);
    if (returned_ != 0) {
      break;
    }
  }
  // Holds the lock during Submit, so that Cancel cannot come between the test and Submit. A
  // cancelled combination must not be submitted, because the engine may have been destroyed.
  absl::MutexLock lock(&mutex_);
  if (!cancelled_) {
    self_ = shared_from_this();
    functions_.engine->seat().Submit(this);
  }
}

void UserCombine::Count(int32_t change) const {
  if (reduction_.inside != nullptr) {
    // Release: a thread that reads 0 sees everything that the function wrote.
    reduction_.inside->fetch_add(change, std::memory_order_release);
  }
}

void UserCombine::Run() {
  const std::shared_ptr<UserCombine> keep = std::move(self_);
  if (then_) {
    std::exchange(then_, nullptr)(returned_);
  }
}

void UserCombine::Cancel(std::shared_ptr<OwnedBuffer> memory) {
  then_ = nullptr;
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  memory_ = std::move(memory);
}

}  // namespace entrain
