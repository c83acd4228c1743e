// Removes the files that killed saves leave in a directory: unfinished files, and files of ranks
// that no checkpoint lists. Nothing here is an error. A file that cannot be removed stays, and does
// no harm.
//
// A file is removed only if it is certainly of no use:
//
//   X.ckpt.tmp                begins like an unfinished checkpoint, its writer's lock is gone, and
//                             it is old enough
//   X_RANK_ID.ckpt, and .tmp  belongs to a save whose X.ckpt.tmp fulfils the conditions above
//                             (FileTarget::Mark); X.ckpt is readable or absent, and does not
//                             list it
//
// Files of other checkpoints, of other programs, and of saves that are still in progress in any
// process stay.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

// Returns NAME_RANK_ID.ckpt: the file that a rank writes for one save of a checkpoint NAME.
std::string PartName(absl::string_view name, int rank, uint32_t id);

// Removes all ranks' files of one save that has failed or whose processes are gone. Files that a
// process still writes stay. Files that the checkpoint of that name lists also stay. If this
// checkpoint cannot be read, all files stay.
void RemoveParts(const std::string& directory, absl::string_view name, uint32_t id);

// Removes the leftovers of dead processes that were last changed before `before_ns`, a time of the
// directory's file system.
void ClearLeftovers(const std::string& directory, int64_t before_ns);

// Returns the time at which the file was last changed; 0: no such file.
int64_t ChangedAt(const std::string& path);

}  // namespace entrain
