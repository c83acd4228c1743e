// Whether this thread is inside a function of the caller's that the library has called, and what that function may do:
// done() of entrain_work_notify runs on a thread that nobody waits for. A reduction or a step is waited for, and not all ranks
// call it as often, so that a call which it started could have no counterpart.
//
// Thread safety: each thread has its own.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain {

// What a public function does, by which it may be called inside such a function.
enum class Does {
  kLook,   // neither waits nor needs the engine: always
  kStart,  // needs the engine for a turn at most: in done()
  kWait,   // may wait for others: never
};

class CallbackScope {
 public:
  // `name` ("the done() of all_reduce #2") outlives the scope. `may`: what the function may do besides kLook.
  CallbackScope(absl::string_view name, Does may) : name_(name), may_(may), outer_(innermost_) {
    innermost_ = this;
  }
  ~CallbackScope() { innermost_ = outer_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  // FAILED_PRECONDITION "called from the done() of all_reduce #2, which must not wait".
  static absl::Status Check(Does does) {
    return innermost_ == nullptr || does <= innermost_->may_ ? absl::OkStatus()
                                                             : innermost_->Refuse(does);
  }

 private:
  absl::Status Refuse(Does does) const;

  // Asked in every call: without the model, each asking would be a call of the dynamic linker.
  static __thread const CallbackScope* innermost_ __attribute__((tls_model("initial-exec")));

  const absl::string_view name_;
  const Does may_;
  const CallbackScope* const outer_;
};

}  // namespace entrain
