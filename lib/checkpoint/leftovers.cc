#include "lib/checkpoint/leftovers.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/checkpoint/checkpoint_file.h"
#include "lib/net/fork_close.h"
#include "lib/net/socket.h"

namespace entrain {
namespace {

constexpr absl::string_view kUnfinished = ".ckpt.tmp";

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  DIR* const opened = opendir(directory.c_str());
  if (opened == nullptr) {
    return names;
  }
  while (const dirent* entry = readdir(opened)) {
    names.emplace_back(entry->d_name);
  }
  closedir(opened);
  return names;
}

int64_t ChangedAt(const struct stat& file) {
  return file.st_ctim.tv_sec * kSecond + file.st_ctim.tv_nsec;
}

// Removes an unfinished file if no process holds its lock and its last change was before
// `before_ns`. With `ours`, the file's name says that it is one, and its writer may have died before
// the file's first bytes.
bool RemoveUnfinished(const std::string& path, int64_t before_ns, bool ours, Unfinished* found) {
  const Fd fd = OpenClosedOnFork(
      [&] { return open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  struct stat file {};
  if (!fd.valid() || fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) ||
      ChangedAt(file) >= before_ns || flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return false;
  }
  *found = ReadUnfinished(fd.get(), path);
  return (ours || found->is) && unlink(path.c_str()) == 0;
}

// Returns the files that the checkpoint at `path` lists. Returns an empty list if there is no such
// checkpoint, and nullopt if it cannot be read.
std::optional<std::vector<std::string>> ListedFiles(const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0 && errno == ENOENT) {
    return std::vector<std::string>();
  }
  const auto whole = CheckpointReader::Open(path);
  if (!whole.ok()) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const SavedFile& one : (*whole)->manifest().files) {
    names.push_back(one.name);
  }
  return names;
}

}  // namespace

std::string PartName(absl::string_view name, int rank, uint32_t id) {
  return absl::StrFormat("%s_%04d_%08x.ckpt", name, rank, id);
}

int64_t ChangedAt(const std::string& path) {
  struct stat file {};
  return stat(path.c_str(), &file) == 0 ? ChangedAt(file) : 0;
}

void RemoveParts(const std::string& directory, absl::string_view name, uint32_t id) {
  const auto needed = ListedFiles(absl::StrCat(directory, "/", name, ".ckpt"));
  if (!needed) {
    return;
  }
  const std::string before = absl::StrCat(name, "_");
  const std::string behind = absl::StrFormat("_%08x.ckpt", id);
  for (const std::string& file : NamesIn(directory)) {
    absl::string_view rank = file;
    const bool unfinished = absl::ConsumeSuffix(&rank, ".tmp");
    const bool part = absl::ConsumePrefix(&rank, before) && absl::ConsumeSuffix(&rank, behind) &&
                      rank.size() >= 4 &&
                      rank.find_first_not_of("0123456789") == absl::string_view::npos;
    const std::string path = absl::StrCat(directory, "/", file);
    Unfinished found;
    if (part && unfinished) {
      RemoveUnfinished(path, Deadline::Never().at_ns, /*ours=*/true, &found);
    } else if (part && std::find(needed->begin(), needed->end(), file) == needed->end()) {
      unlink(path.c_str());
    }
  }
}

void ClearLeftovers(const std::string& directory, int64_t before_ns) {
  for (const std::string& file : NamesIn(directory)) {
    Unfinished found;
    if (!absl::EndsWith(file, kUnfinished) ||
        !RemoveUnfinished(absl::StrCat(directory, "/", file), before_ns, /*ours=*/false, &found)) {
      continue;
    }
    ENTRAIN_LOG(kInfo, directory, "/", file, ": removed: its writer is gone");
    if (found.id) {
      RemoveParts(directory, absl::StripSuffix(file, kUnfinished), *found.id);
    }
  }
}

}  // namespace entrain
