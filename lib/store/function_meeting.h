// A rank's part in a meeting over a store that consists of the user's functions.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/store/function_store.h"
#include "lib/store/gathering.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<StoreMeeting>> JoinByFunctions(
    std::shared_ptr<const FunctionCalls> calls, const std::string& key, const Entry& entry);

}  // namespace entrain
