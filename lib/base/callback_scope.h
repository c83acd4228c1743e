// Marks a thread that runs a callback, which is a function of the caller that the library calls.
// Records what the callback may do. The callback done() of entrain_work_notify may start calls,
// because the library never waits for its thread. No other callback may. For example, the library
// waits for the function of a reduction, and may call the function more often on one rank than on
// another. A call started inside that function might have no counterpart on other ranks.
//
// Thread safety: each thread has its own scopes.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain {

// Says what a public function needs. This decides whether a callback may call the function.
enum class Does {
  kLook,   // neither waits nor needs the engine: always allowed
  kStart,  // may need the engine for a moment, never another rank: allowed in done()
  kWait,   // may wait for other ranks: never allowed
};

class CallbackScope {
 public:
  // `name` ("the done() of all_reduce #2") must outlive the scope. `may` is the most that the
  // callback may do.
  CallbackScope(absl::string_view name, Does may) : name_(name), may_(may), outer_(innermost_) {
    innermost_ = this;
  }
  ~CallbackScope() { innermost_ = outer_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  // Returns FAILED_PRECONDITION "called from the done() of all_reduce #2, which must not wait", for
  // example.
  static absl::Status Check(Does does) {
    return innermost_ == nullptr || does <= innermost_->may_ ? absl::OkStatus()
                                                             : innermost_->Refuse(does);
  }

 private:
  absl::Status Refuse(Does does) const;

  // Every call reads this. Without this TLS model each read would call the dynamic linker.
  static __thread const CallbackScope* innermost_ __attribute__((tls_model("initial-exec")));

  const absl::string_view name_;
  const Does may_;
  const CallbackScope* const outer_;
};

}  // namespace entrain
