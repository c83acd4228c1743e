// Removes files that are left in a directory after a save was killed: unfinished files, and files
// of ranks that no checkpoint lists. Nothing here returns an error. A file that cannot be removed
// does no harm.
//
// A file is removed only if it fulfils all conditions:
//
//   X.ckpt.tmp
//     - It begins like an unfinished checkpoint.
//     - No process holds the writer's lock on it.
//     - It was last changed before the time that the caller gives.
//   X_RANK_ID.ckpt, X_RANK_ID.ckpt.tmp
//     - The X.ckpt.tmp of the same save fulfils the conditions above. (It contains the id of the
//       save, see FileTarget::Mark.)
//     - X.ckpt does not exist, or it can be read and does not list this file.
//
// Files of other checkpoints, of other programs, and of saves that are still in progress are kept.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

// Returns NAME_RANK_ID.ckpt, the name of the file that one rank writes in one save of checkpoint
// NAME.
std::string PartName(absl::string_view name, int rank, uint32_t id);

// Removes the files of all ranks of one save. The save must have failed, or its processes must be
// gone. Keeps a file that a process is still writing, and a file that the checkpoint NAME.ckpt
// lists. Keeps all files if NAME.ckpt exists but cannot be read.
void RemoveParts(const std::string& directory, absl::string_view name, uint32_t id);

// Removes the files of dead processes that were last changed before `before_ns`. The time is that
// of the directory's file system.
void ClearLeftovers(const std::string& directory, int64_t before_ns);

// Returns the time at which the file was last changed. Returns 0 if there is no such file.
int64_t ChangedAt(const std::string& path);

}  // namespace entrain
