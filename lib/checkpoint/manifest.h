// The manifest of a checkpoint describes the run, the division of the model into parts and layers,
// and where each array lies. docs/checkpoint-format.md shows the text.
//
// Plain value types. A manifest that ParseManifest accepts is consistent: names are unique, numbers
// are in range, pieces lie inside their layers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/digest.h"

namespace entrain {

// Values are the C ABI's (train.h).
enum class CheckpointKind : int32_t {
  kPortable = 0,  // any mesh can continue from it
  kExact = 1      // the same mesh continues from it as if the run had not stopped
};
absl::string_view NameOf(CheckpointKind kind);

// A flat array, or a piece of one.
struct SavedArray {
  std::string name;    // see IsArrayName
  int32_t rank = -1;   // the rank of the mesh that owns the array; -1: all ranks
  int32_t part = -1;   // the model part whose layer this is; -1: not an array of a layer
  int32_t layer = -1;  // the layer within `part`; -1: not an array of a layer
  int64_t first = 0;   // the piece's first element in the whole array
  int64_t count = 0;   // elements
  DType dtype = DType::kF32;
  int32_t file = 0;    // 0: the array is in this file; otherwise in files[file - 1]
  int64_t offset = 0;  // bytes from the beginning of that file
  Digest digest{};

  int64_t bytes() const { return count * SizeOf(dtype); }
};
// Returns a text for messages, for example "anchor of layer 3, elements 0 to 99".
std::string Describe(const SavedArray& array);

struct SavedLayer {
  int64_t count = 0;
  bool frozen = false;
  friend bool operator==(const SavedLayer&, const SavedLayer&) = default;
};

// Another file of the same checkpoint.
struct SavedFile {
  std::string name;   // in the same directory
  Digest manifest{};  // digest of the file's manifest, which has the digests of its arrays
};

struct Manifest {
  CheckpointKind kind = CheckpointKind::kPortable;
  int64_t step = 0;                               // optimizer steps completed
  std::array<int32_t, 5> mesh = {1, 1, 1, 1, 1};  // tensor, pipeline, context, shard, sync
  std::vector<std::vector<SavedLayer>> parts;     // by part of the model, then by layer
  std::vector<SavedFile> files;
  std::vector<SavedArray> arrays;  // the arrays of this file are in the order of their offsets
};

// Returns true for 1 to 128 letters, digits and ". _ - /".
bool IsArrayName(absl::string_view name);

// Returns JSON that is also readable to people.
std::string ToJson(const Manifest& manifest);
// Returns kInvalidArgument, naming the wrong member and the reason, if the text is not valid.
absl::StatusOr<Manifest> ParseManifest(absl::string_view json);

}  // namespace entrain
