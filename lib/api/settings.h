// Settings that have several sources: the config struct, then the environment, then the default.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "include/entrain/comm.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"

namespace entrain::api {

// Returns INVALID_ARGUMENT for a negative timeout.
absl::Status CheckTimeout(int64_t timeout_ns);
// Returns INVALID_ARGUMENT for a timeout that is 0 or negative.
absl::Status CheckPositiveTimeout(int64_t timeout_ns);

// Return the options from the struct and the environment. The caller sets store, rank and size of
// CommOptions. ToRuntimeOptions also sets the log function of the process if the config has one.
absl::StatusOr<RuntimeOptions> ToRuntimeOptions(const entrain_runtime_config_t* config);
absl::StatusOr<CommOptions> ToCommOptions(const entrain_comm_config_t& config);

}  // namespace entrain::api
