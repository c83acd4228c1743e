// Settings of C calls that come from more than one place: the config struct, then the environment,
// then the default.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "include/entrain/comm.h"
#include "lib/comm/communicator.h"
#include "lib/comm/runtime.h"

namespace entrain::api {

// INVALID_ARGUMENT for a negative timeout.
absl::Status CheckTimeout(int64_t timeout_ns);
// INVALID_ARGUMENT also for 0.
absl::Status CheckPositiveTimeout(int64_t timeout_ns);

// The pre-shared key in the file that ENTRAIN_KEY_FILE names; empty when it is unset. For stores
// opened by themselves: with a runtime at hand, its key counts.
absl::StatusOr<std::string> KeyFromEnvironment();

// What the two structs say, with the environment where they say nothing. The store, rank and size
// of CommOptions stay as they are by default.
absl::StatusOr<RuntimeOptions> ToRuntimeOptions(const entrain_runtime_config_t* config);
absl::StatusOr<CommOptions> ToCommOptions(const entrain_comm_config_t& config);

}  // namespace entrain::api
