// The manifest of a checkpoint. It describes the run, the division of the model into parts and
// layers, and the place of each array. docs/checkpoint-format.md shows the JSON text.
//
// Plain value types. If ParseManifest accepts a manifest, the manifest is consistent: names are
// unique, numbers are in range, and pieces lie inside their layers.
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

// The values are those of the C ABI (train.h).
enum class CheckpointKind : int32_t {
  kPortable = 0,  // a run with any mesh can continue from it
  kExact = 1      // only a run with the same mesh can; it continues as if it had not stopped
};
absl::string_view NameOf(CheckpointKind kind);

// A flat array, or a piece of a flat array.
struct SavedArray {
  std::string name;    // see IsArrayName
  int32_t rank = -1;   // the rank of the mesh whose array this is; -1: of all ranks
  int32_t part = -1;   // the part of the model; -1: the array is not one of a layer
  int32_t layer = -1;  // the layer within `part`; -1: the array is not one of a layer
  int64_t first = 0;   // the first element of the piece, counted in the whole array
  int64_t count = 0;   // elements
  DType dtype = DType::kF32;
  int32_t file = 0;    // 0: this file; otherwise files[file - 1]
  int64_t offset = 0;  // in bytes, from the beginning of that file
  Digest digest{};

  int64_t bytes() const { return count * SizeOf(dtype); }
};
// Returns a text for error messages, for example: "anchor" of layer 3, elements from 0.
std::string Describe(const SavedArray& array);

struct SavedLayer {
  int64_t count = 0;
  bool frozen = false;
  friend bool operator==(const SavedLayer&, const SavedLayer&) = default;
};

// Another file of the same checkpoint.
struct SavedFile {
  std::string name;   // a name in the same directory
  Digest manifest{};  // digest of that file's manifest, which has the digests of its arrays
};

struct Manifest {
  CheckpointKind kind = CheckpointKind::kPortable;
  int64_t step = 0;      // completed optimizer steps
  std::string identity;  // the run's, as lines KEY=VALUE; empty: not known
  std::array<int32_t, 5> mesh = {1, 1, 1, 1,
                                 1};           // lengths of tensor, pipeline, context, shard, sync
  std::vector<std::vector<SavedLayer>> parts;  // by part of the model, then by layer
  std::vector<SavedFile> files;
  std::vector<SavedArray> arrays;  // those in this file are in the order of their offsets
};

// Returns true for a text of 1 to 128 characters that are letters, digits, or one of . _ - /
bool IsArrayName(absl::string_view name);

// Returns JSON with line breaks, for human readers too.
std::string ToJson(const Manifest& manifest);
// Returns kInvalidArgument if the text is not valid. The error text contains the name of the wrong
// member and the reason.
absl::StatusOr<Manifest> ParseManifest(absl::string_view json);

}  // namespace entrain
