// A checkpoint that functions of the caller write and read, instead of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/checkpoint/checkpoint_file.h"

namespace entrain {

// See entrain_checkpoint_functions_t (train.h).
struct CheckpointFunctions {
  void* user = nullptr;
  int32_t (*write_at)(void* user, int64_t offset, const void* data, size_t bytes) = nullptr;
  int32_t (*finish)(void* user) = nullptr;
  int32_t (*read_at)(void* user, int64_t offset, void* data, size_t bytes) = nullptr;
  int64_t bytes = 0;  // number of bytes that can be read
};

// Messages call the checkpoint by this name.
constexpr const char* kFunctionsName = "the checkpoint of the caller's functions";

// Return kInvalidArgument, naming the function, if a function is missing.
absl::StatusOr<std::unique_ptr<CheckpointTarget>> TargetOf(const CheckpointFunctions& functions);
absl::StatusOr<std::unique_ptr<const CheckpointSource>> SourceOf(
    const CheckpointFunctions& functions);

}  // namespace entrain
