// Saves and loads a run's state. Decides which rank writes each array, into which file, and which
// ranks read it back.
//
//    full      the other ranks send their arrays to rank 0, one after the other. Rank 0 writes all
//              arrays to NAME.ckpt
//    sharded   every rank that provides arrays writes them to NAME_RANK_ID.ckpt. Then rank 0 writes
//              NAME.ckpt, which lists the other files. So all files take effect in one step
//
// If functions of the caller replace the files (CheckpointFunctions), the checkpoint has the format
// of `full`.
//
// StateList lists the arrays and the ranks that hold them. lib/checkpoint defines the file format.
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
#include "lib/train/shard/slab.h"
#include "lib/train/state/all_ranks.h"
#include "lib/train/state/state_list.h"

namespace entrain {

// entrain_checkpoint_config_t (train.h) explains the fields.
struct CheckpointOptions {
  std::string directory, name;
  CheckpointKind kind = CheckpointKind::kPortable;
  bool full = true;
  bool rank0_only = true;  // for a load: only rank 0 reads files
  int64_t timeout_ns = 0;
  bool overwrite = false;  // for a save: a checkpoint of a later step may be replaced
  // For a save that is repeated after a loss: the lost writer may be stopped in the middle of it
  // (FileTarget::Create).
  bool takes_over = false;
  // If set, these functions replace the file directory/name.ckpt. A rank's functions read or write
  // a whole checkpoint, never the part of one rank.
  std::optional<CheckpointFunctions> functions = std::nullopt;

  // Returns the name of the checkpoint in messages: the path of its file, or a fixed name if
  // `functions` replace the file.
  std::string path() const;
};
// If an option is wrong, returns kInvalidArgument with the name of the option.
absl::Status CheckOptions(const CheckpointOptions& options);
// Collective. Returns an error if a rank has other options than rank 0. The directory may differ.
// The error contains the name of the option and both values.
absl::Status AgreeOnOptions(AllRanks& all, const CheckpointOptions& options);

// The part of the model on this rank, and the division of this part into shards.
struct ModelPart {
  std::array<int32_t, 5> mesh = {1, 1, 1, 1, 1};
  int part = 0, parts = 1;  // index of this part; number of parts (tensor x pipeline)
  bool copy = false;        // a rank with context coordinate 0 also has this part
  std::vector<SavedLayer> layers;
  // The text of the option identity. A checkpoint contains it, and a load warns of differences.
  std::string identity;
};
ModelPart PartOf(const Mesh& mesh, const Slab& slab);

// Returns true if this rank provides the item for a checkpoint. If several ranks have the same
// item, only one of them provides it.
bool Brings(const StateItem& item, const AllRanks& all, const ModelPart& part, CheckpointKind kind);
// Returns the entry of the item in the manifest of a checkpoint of that kind. All ranks that have
// the same item return the same entry.
SavedArray ArrayOf(const StateItem& item, const AllRanks& all, const ModelPart& part,
                   CheckpointKind kind);

// Collective. Returns OK on all ranks, or the same error on all ranks. After an error, either the
// old checkpoint is unchanged, or the new checkpoint has taken effect.
absl::Status SaveState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       int64_t step, const StateList& state);

// Collective. Reads the values into the list's own memory. If this returns OK, the caller must call
// StateList::Apply. The result is the same on all ranks.
absl::Status LoadState(AllRanks& all, const ModelPart& part, const CheckpointOptions& options,
                       StateList* state);

}  // namespace entrain
