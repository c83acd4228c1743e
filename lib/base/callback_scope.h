// Marks a thread that is inside a function of the caller which the library has called, and records
// what that function may do. done() of entrain_work_notify runs on a thread for which the library
// does not wait, so it may start calls. The library waits for the function of a reduction or of a
// step, and the number of its calls may differ between ranks. A call started inside such a function
// could have no counterpart on other ranks.
//
// Thread safety: each thread has its own scopes.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain {

// The needs of a public function. They decide whether a callback may call the function.
enum class Does {
  kLook,   // neither waits nor needs the engine: always allowed
  kStart,  // needs the engine for one turn at most: allowed in done()
  kWait,   // may wait for other ranks: never allowed
};

class CallbackScope {
 public:
  // `name` ("the done() of all_reduce #2") must outlive the scope. `may` is what the callback may
  // do besides kLook.
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
