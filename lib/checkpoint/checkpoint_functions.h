// A checkpoint in a place of the caller's choice: functions of the caller write and read its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/checkpoint/checkpoint_file.h"

namespace entrain {

// See entrain_checkpoint_functions_t in train.h.
struct CheckpointFunctions {
  void* user = nullptr;
  int32_t (*write_at)(void* user, int64_t offset, const void* data, size_t bytes) = nullptr;
  int32_t (*finish)(void* user) = nullptr;
  int32_t (*read_at)(void* user, int64_t offset, void* data, size_t bytes) = nullptr;
  int64_t bytes = 0;  // the number of bytes that read_at can read
};

// The name of the checkpoint in error texts.
constexpr const char* kFunctionsName = "the checkpoint of the caller's functions";

// Both return kInvalidArgument if a function is missing. The error text contains the name of the
// function.
absl::StatusOr<std::unique_ptr<CheckpointTarget>> TargetOf(const CheckpointFunctions& functions);
absl::StatusOr<std::unique_ptr<const CheckpointSource>> SourceOf(
    const CheckpointFunctions& functions);

}  // namespace entrain
