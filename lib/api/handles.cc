#include "lib/api/handles.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "lib/base/log.h"

namespace entrain::api {
namespace {

absl::string_view KindOf(uint64_t mark) {
  switch (mark) {
    case MarkOf("runt"):
      return "a runtime";
    case MarkOf("stor"):
      return "a store";
    case MarkOf("comm"):
      return "a communicator";
    case MarkOf("work"):
      return "a work";
    case MarkOf("redu"):
      return "a reduction";
    case MarkOf("batc"):
      return "a batch";
    case MarkOf("opti"):
      return "an optimizer";
    case MarkOf("mesh"):
      return "a mesh";
    case MarkOf("shar"):
      return "a shard object";
    case MarkOf("edit"):
      return "an EDiT object";
    case MarkOf("acco"):
      return "an ACCO channel";
    case MarkOf("stat"):
      return "a state";
    default:
      return "";
  }
}

}  // namespace

absl::Status CheckMark(const void* handle, uint64_t found, uint64_t expected, const char* name) {
  if (handle == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  }
  if (found == expected) {
    return absl::OkStatus();
  }
  const absl::string_view other = KindOf(found);
  if (!other.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", other, ", not ", KindOf(expected)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is not ", KindOf(expected), ": it was destroyed, or never was one"));
}

absl::Status CheckStepsAlone(const entrain_optim& optim, absl::string_view name) {
  return optim.wsam == nullptr
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   name, " is WSAM, whose step needs two gradients: entrain_wsam_step"));
}

void LogRefused(const char* function, const absl::Status& status) {
  ENTRAIN_LOG(kError, function, ": ", absl::string_view(status.message()),
              "; nothing was destroyed");
}

}  // namespace entrain::api
