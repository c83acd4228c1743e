// The files of a directory that is a store: names, reading, replacement, and the lock for writers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/net/socket.h"

namespace entrain {

// Returns the key in a form for the end of a file name. Bytes other than letters, digits, '_' and
// '-' become %XX. If this form is too long, returns the beginning of the form, '~' and the SHA-256
// of the key.
std::string EscapeForFile(absl::string_view key);

// Returns the status for errno. The message names the path. kFailedPrecondition: the user can fix
// the cause. kResourceExhausted: a shortage.
absl::Status FileError(absl::string_view what, absl::string_view path);

// Returns the whole file, or its first `most` + 1 bytes if it is longer. kNotFound: there is no
// such file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most);

// Writes a new file and renames it over `path`, so that readers see either the whole old file or
// the whole new file. If `lock` is not null, the new file is locked before the rename, and `lock`
// gets the file's descriptor. The caller must hold the lock of LockDirectory, so that the temporary
// file has one writer.
absl::Status ReplaceFile(const std::string& directory, const std::string& path,
                         absl::string_view bytes, Fd* lock = nullptr);

// Locks the directory: waits for other writers, and excludes them until the returned descriptor is
// closed. (The kernel closes it when the process dies.) Opens the lock file on each call, because
// flock on a shared descriptor does not exclude other threads. `what` is the operation that an
// error names.
absl::StatusOr<Fd> LockDirectory(const std::string& directory, const Stop& stop,
                                 absl::string_view what);

}  // namespace entrain
