// Marks that this thread runs a callback, and records what the callback may do. A callback is a
// function of the caller that the library calls.
//
// The callback done() of entrain_work_notify may start calls, because the library never waits for
// the thread of done(). No other callback may start calls. For example, the library waits for the
// function of a reduction, so that function must not wait for the library. The library may also run
// that function more often on one rank than on another. A call started in it might then have no
// counterpart on the other ranks.
//
// A callback runs in the library's floating-point environment. The end of the scope sets this
// environment again, because the callback may have changed it.
//
// Thread safety: each thread has its own scopes.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/base/float_environment.h"

namespace entrain {

// Describes what a public function needs. CallbackScope::Check compares it with what the callback
// may do.
enum class Does {
  kLook,   // never waits and does not need the engine: always allowed
  kStart,  // may need the engine, but never waits for another rank: allowed in done()
  kWait,   // may wait for other ranks: never allowed
};

class CallbackScope {
 public:
  // `name` is a text such as "the done() of all_reduce #2"; it must outlive the scope. `may` is the
  // highest value that Check accepts while the callback runs.
  CallbackScope(absl::string_view name, Does may) : name_(name), may_(may), outer_(innermost_) {
    innermost_ = this;
  }
  ~CallbackScope() {
    innermost_ = outer_;
    FloatEnvironment::Set();
  }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  // Returns FAILED_PRECONDITION if this thread runs a callback that must not call a function with
  // these needs. Example: "called from the done() of all_reduce #2, which must not wait".
  static absl::Status Check(Does does) {
    return innermost_ == nullptr || does <= innermost_->may_ ? absl::OkStatus()
                                                             : innermost_->Refuse(does);
  }

 private:
  absl::Status Refuse(Does does) const;

  // Read by every call of the library. With any other TLS model, each read would call the dynamic
  // linker's __tls_get_addr.
  static __thread const CallbackScope* innermost_ __attribute__((tls_model("initial-exec")));

  const absl::string_view name_;
  const Does may_;
  const CallbackScope* const outer_;
};

}  // namespace entrain
