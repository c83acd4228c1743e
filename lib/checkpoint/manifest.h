// What a checkpoint says about itself: of which run it is, how the model is cut, and which arrays
// lie where. docs/checkpoint-format.md shows the text.
//
// A value. What ParseManifest accepts is consistent in itself: names are unique, numbers are in
// range, pieces lie inside their layers.
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
  kPortable = 0,  // what any mesh can go on from
  kExact = 1      // what the same mesh goes on from as if nothing had been
};
absl::string_view NameOf(CheckpointKind kind);

// A flat array, or a piece of one.
struct SavedArray {
  std::string name;    // see IsArrayName
  int32_t rank = -1;   // of the mesh: whose it is; -1: all ranks'
  int32_t part = -1;   // a layer's array, or a piece of it: which part of the model ...
  int32_t layer = -1;  // ... and which layer of that; both -1: no layer's
  int64_t first = 0;   // the piece's first element in the whole array
  int64_t count = 0;   // elements
  DType dtype = DType::kF32;
  int32_t file = 0;    // which file it is in: 0 this one, else files[file - 1]
  int64_t offset = 0;  // bytes from the beginning of that
  Digest digest{};

  int64_t bytes() const { return count * SizeOf(dtype); }
};
// "anchor of layer 3, elements 0 to 99": what messages call it.
std::string Describe(const SavedArray& array);

struct SavedLayer {
  int64_t count = 0;
  bool frozen = false;
  friend bool operator==(const SavedLayer&, const SavedLayer&) = default;
};

// Another file of the same checkpoint.
struct SavedFile {
  std::string name;   // in the same directory
  Digest manifest{};  // of its manifest, which has those of its arrays
};

struct Manifest {
  CheckpointKind kind = CheckpointKind::kPortable;
  int64_t step = 0;                               // optimizer steps done
  std::array<int32_t, 5> mesh = {1, 1, 1, 1, 1};  // tensor, pipeline, context, shard, sync
  std::vector<std::vector<SavedLayer>> parts;     // by part of the model, then by layer
  std::vector<SavedFile> files;
  std::vector<SavedArray> arrays;  // those of this file in the order in which they lie
};

// 1 to 128 letters, digits and ". _ - /".
bool IsArrayName(absl::string_view name);

// JSON, for people to read too.
std::string ToJson(const Manifest& manifest);
// kInvalidArgument says which member is wrong, and how.
absl::StatusOr<Manifest> ParseManifest(absl::string_view json);

}  // namespace entrain
