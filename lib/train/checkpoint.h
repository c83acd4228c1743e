// Saves and loads a run's state: decides which rank writes which array into which file, and which
// rank reads it back.
//
//    full      rank 0 writes NAME.ckpt; the other ranks send it their arrays, one after the other
//    sharded   every rank that brings something writes NAME_RANK_ID.ckpt. Rank 0 writes NAME.ckpt
//              last. NAME.ckpt lists the other files, so all files take effect in one step
//
// If functions of the caller write and read, the checkpoint has the format of `full`, and the code
// is the same.
//
// StateList says what the arrays are and which ranks hold them. lib/checkpoint defines the file
// format.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/checkpoint_functions.h"
#include "lib/checkpoint/manifest.h"
#include "lib/comm/mesh.h"
#include "lib/train/all_ranks.h"
#include "lib/train/slab.h"
#include "lib/train/state_list.h"

namespace entrain {

// Fields are explained at entrain_checkpoint_config_t (train.h).
struct CheckpointOptions {
  std::string directory, name;
  CheckpointKind kind = CheckpointKind::kPortable;
  bool full = true;
  bool rank0_only = true;  // loading: only rank 0 uses the file system
  int64_t timeout_ns = 0;
  // If set, these functions replace the file directory/name.ckpt. The functions of a rank always
  // stand for one whole checkpoint.
  std::optional<CheckpointFunctions> functions = std::nullopt;

  // Returns the name by which messages name the checkpoint: the path of its file, or a fixed name
  // if `functions` replace the file.
  std::string path() const;
};
// Returns kInvalidArgument, naming the option, if one is wrong.
absl::Status CheckOptions(const CheckpointOptions& options);
// Collective. All ranks must give the same options, except the directory. The error names the
// option and both values.
absl::Status AgreeOnOptions(AllRanks& all, const CheckpointOptions& options);

// The part of the model that a rank has, and how the part is divided into shards.
struct ModelPart {
  std::array<int32_t, 5> mesh = {1, 1, 1, 1, 1};
  int part = 0, parts = 1;  // numbered by tensor and pipeline coordinate
  bool copy = false;        // the rank with context coordinate 0 has the same part
  std::vector<SavedLayer> layers;
};
ModelPart PartOf(const Mesh& mesh, const Slab& slab);

// Returns true if this rank brings the item to a checkpoint. Of several ranks with the same item
// only one brings it.
bool Brings(const StateItem& item, const AllRanks& all, const ModelPart& part, CheckpointKind kind);
// Returns the item under its name in a checkpoint of that kind. The name does not depend on the
// rank that brings it.
SavedArray ArrayOf(const StateItem& item, const AllRanks& all, const ModelPart& part,
                   CheckpointKind kind);

// Collective, like all functions below. Returns OK on all ranks, or the same error on all ranks.
// After an error the checkpoint that would have been replaced is unchanged.
absl::Status SaveState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       int64_t step, const StateList& state);

// Reads everything into the list's own memory. If this returns OK, the caller must apply the list.
// The result is the same on all ranks.
absl::Status LoadState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       StateList* state);

}  // namespace entrain
