#include "lib/device/nccl/nccl_functions.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain::nccl {
namespace {

absl::StatusCode CodeOf(Result result) {
  switch (result) {
    case kRemoteError:
    case kSystemError:
      return absl::StatusCode::kUnavailable;
    case kInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    case kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status Functions::Check(Result result, absl::string_view function) const {
  if (result == kSuccess || result == kInProgress) {
    return absl::OkStatus();
  }
  const char* const name = ncclGetErrorString(result);
  const char* const last = ncclGetLastError(nullptr);
  const bool more = last != nullptr && *last != '\0';
  return absl::Status(CodeOf(result),
                      absl::StrCat(function, ": ", name == nullptr ? "unknown error" : name,
                                   more ? absl::StrCat(" (", last, ")") : ""));
}

absl::StatusOr<Functions> Functions::Load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("no NCCL: ", dlerror()));
  }
  Functions all;
#define ENTRAIN_NCCL_FIND(name, result, parameters)                                         \
  all.name = reinterpret_cast<decltype(all.name)>(dlsym(library, #name));                   \
  if (all.name == nullptr) {                                                                \
    return absl::UnavailableError(absl::StrCat("NCCL of ", file, " has no ", #name,         \
                                               "; needed is ", VersionText(kOldestVersion), \
                                               " or later"));                               \
  }
  ENTRAIN_NCCL_FUNCTIONS(ENTRAIN_NCCL_FIND)
#undef ENTRAIN_NCCL_FIND
  const absl::Status asked = all.Check(all.ncclGetVersion(&all.version), "ncclGetVersion");
  if (!asked.ok()) {
    return absl::UnavailableError(asked.message());
  }
  if (all.version < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("NCCL of ", file, " is version ",
                                               VersionText(all.version), "; needed is ",
                                               VersionText(kOldestVersion), " or later"));
  }
  return all;
}

}  // namespace entrain::nccl
