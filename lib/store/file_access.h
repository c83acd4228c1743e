// The files of a directory that is a store: their names, reading, replacing, and the lock under which they are written.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/net/socket.h"

namespace entrain {

// A key as the rest of a file name: bytes other than letters, digits, '_' and '-' as %XX; of keys whose escaped form is
// too long the start, '~' and the SHA-256.
std::string EscapeForFile(absl::string_view key);

// errno's, naming the path: what the user can mend is kFailedPrecondition, a shortage kResourceExhausted.
absl::Status FileError(absl::string_view what, absl::string_view path);

// The whole file, `most` bytes and one more at most. kNotFound: there is none.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most);

// Writes the file anew and renames it, so that readers see the old one or the new one. The new one may be locked before
// anybody sees it: `lock` then gets its descriptor. Under LockDirectory: the temporary file has one writer.
absl::Status ReplaceFile(const std::string& directory, const std::string& path,
                         absl::string_view bytes, Fd* lock = nullptr);

// Takes turns with the other writers of the directory until the descriptor closes, by the writer's death too. Opened anew
// each time: locks of one descriptor do not exclude threads. `what` names the wait in errors.
absl::StatusOr<Fd> LockDirectory(const std::string& directory, const Stop& stop,
                                 absl::string_view what);

}  // namespace entrain
