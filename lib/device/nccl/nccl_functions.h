// A table of NCCL's functions. They are found at run time, and nothing is linked. So one binary
// works on machines with and without NCCL.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/device/nccl/nccl_abi.h"

namespace entrain::nccl {

// Thread safety: any thread, within NCCL's rules for one communicator.
struct Functions {
#define ENTRAIN_NCCL_POINTER(name, result, parameters) result(*name) parameters = nullptr;
  ENTRAIN_NCCL_FUNCTIONS(ENTRAIN_NCCL_POINTER)
#undef ENTRAIN_NCCL_POINTER
  int version = 0;  // result of ncclGetVersion

  // Returns OK for kSuccess and kInProgress. Otherwise returns an error that contains NCCL's
  // message, such as "ncclAllReduce: remote process exited (...)". The codes are:
  //   UNAVAILABLE          kRemoteError, kSystemError: a failure of a peer or of the path to it
  //   FAILED_PRECONDITION  kInvalidUsage: two ranks on one device, among others
  //   INVALID_ARGUMENT     kInvalidArgument
  //   INTERNAL             CUDA's and NCCL's own errors
  absl::Status Check(Result result, absl::string_view function) const;

  // Loads NCCL from the file, and never unloads it, because NCCL has threads of its own. Returns
  // UNAVAILABLE with the reason if there is no such file, if it lacks a function, or if it is older
  // than kOldestVersion.
  static absl::StatusOr<Functions> Load(const std::string& file);
};

std::string VersionText(int version);  // 21903: "2.19.3"

}  // namespace entrain::nccl
