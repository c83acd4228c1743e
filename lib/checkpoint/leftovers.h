// What saves leave in a directory when their processes are killed: files that nobody will ever finish, and files of ranks that no
// checkpoint lists. Nothing here is an error: what cannot be removed stays, and does no harm.
//
// A file is removed only if it is known to be of no use:
//
//   X.ckpt.tmp                  begins as an unfinished checkpoint does, its writer's lock is gone, and it is old enough
//   X_RANK_ID.ckpt, and .tmp    ... of the save that such an X.ckpt.tmp names (CheckpointWriter::Mark); X.ckpt does not list it,
//                               and is not unreadable
//
// So files of other checkpoints, of saves that are under way in this or another process, and of other programs stay.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

// NAME_RANK_ID.ckpt: what a rank writes for one save of a checkpoint NAME.
std::string PartName(absl::string_view name, int rank, uint32_t id);

// All ranks' files of one save, which has failed or whose processes are gone; those that somebody writes stay, and those that the
// checkpoint of that name lists: all, if it cannot be read.
void RemoveParts(const std::string& directory, absl::string_view name, uint32_t id);

// What dead processes left whose files were last changed before that time of the directory's file system.
void ClearLeftovers(const std::string& directory, int64_t before_ns);

// When a file was last changed; 0: there is none.
int64_t ChangedAt(const std::string& path);

}  // namespace entrain
