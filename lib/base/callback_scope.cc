#include "lib/base/callback_scope.h"

#include "absl/strings/str_cat.h"

namespace entrain {

__thread const CallbackScope* CallbackScope::innermost_ = nullptr;

absl::Status CallbackScope::Refuse(Does does) const {
  const bool waits = does == Does::kWait;
  return absl::FailedPreconditionError(absl::StrCat("called from ", name_, ", which must not ",
                                                    waits ? "wait" : "use the engine",
                                                    waits ? "" : ": the engine may wait for it"));
}

}  // namespace entrain
