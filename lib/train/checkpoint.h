// A run's state on disk: who writes which array into which file, and who reads it back.
//
//   full      rank 0 writes NAME.ckpt; what others hold is sent to it, one array after the other
//   sharded   every rank that holds something writes NAME_RANK_ID.ckpt; NAME.ckpt, which rank 0
//             writes last, lists them, so that all of them take effect in one step
//
// In the hands of functions of the caller's, a checkpoint is what `full` writes, by the same code.
//
// What an array is, and whose, is for the StateList to say; how it lies in a file, for
// lib/checkpoint.
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

// As entrain_checkpoint_config_t (train.h) says.
struct CheckpointOptions {
  std::string directory, name;
  CheckpointKind kind = CheckpointKind::kPortable;
  bool full = true;
  bool rank0_only = true;  // loading: nobody else touches the file system
  int64_t timeout_ns = 0;
  // In place of the file directory/name.ckpt, whole in the hands of the ranks that write or read it.
  std::optional<CheckpointFunctions> functions = std::nullopt;

  // What messages call the checkpoint.
  std::string path() const;
};
// kInvalidArgument names the option.
absl::Status CheckOptions(const CheckpointOptions& options);
// Collective: all ranks must give the same, but for the directory. The error names the option, and both values.
absl::Status AgreeOnOptions(AllRanks& all, const CheckpointOptions& options);

// Which part of the model a rank has, and how that is cut.
struct ModelPart {
  std::array<int32_t, 5> mesh = {1, 1, 1, 1, 1};
  int part = 0, parts = 1;  // by tensor and pipeline coordinate
  bool copy = false;        // another rank of the replica, along the context axis, has the same
  std::vector<SavedLayer> layers;
};
ModelPart PartOf(const Mesh& mesh, const Slab& slab);

// Of what several ranks have, one brings it to a checkpoint: whether this rank does.
bool Brings(const StateItem& item, const AllRanks& all, const ModelPart& part, CheckpointKind kind);
// The item as a checkpoint of that kind names it; whichever rank brings it.
SavedArray ArrayOf(const StateItem& item, const AllRanks& all, const ModelPart& part,
                   CheckpointKind kind);

// Collective, like all below: OK on all ranks or the same error on all; then what the checkpoint
// would have replaced is as it was.
absl::Status SaveState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       int64_t step, const StateList& state);

// Reads everything into the list's own memory; applying it is the caller's, on success, which is
// the same on all ranks.
absl::Status LoadState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       StateList* state);

}  // namespace entrain
