#include "lib/store/file_access.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <openssl/sha.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/net/fork_close.h"

namespace entrain {
namespace {

constexpr size_t kMaxEscaped = 200;  // a file name has at most 255 bytes

}  // namespace

std::string EscapeForFile(absl::string_view key) {
  std::string escaped;
  for (const char c : key) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-') {
      escaped += c;
    } else {
      absl::StrAppendFormat(&escaped, "%%%02x", static_cast<unsigned char>(c));
    }
  }
  if (escaped.size() <= kMaxEscaped) {
    return escaped;
  }
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest);
  return absl::StrCat(
      escaped.substr(0, 100), "~",
      absl::BytesToHexString({reinterpret_cast<const char*>(digest), SHA256_DIGEST_LENGTH}));
}

absl::Status FileError(absl::string_view what, absl::string_view path) {
  const int error = errno;
  // These errors mean that the directory is unusable, and the user can fix that. Other errors may
  // be shortages (disk, descriptors).
  if (error == EACCES || error == EPERM || error == ENOENT || error == ENOTDIR || error == EROFS) {
    return absl::FailedPreconditionError(
        absl::StrCat("file store: cannot ", what, " ", path, ": ", std::strerror(error)));
  }
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat("file store: cannot ", what, " ", path, ": ", std::strerror(error)));
  }
  return ErrnoStatus(error, absl::StrCat("file store: cannot ", what, " ", path));
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return errno == ENOENT ? absl::NotFoundError("no such file") : FileError("read", path);
  }
  std::string bytes(4096, '\0');
  size_t filled = 0;
  while (true) {
    const ssize_t got = read(fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0) {
      return FileError("read", path);
    }
    filled += static_cast<size_t>(got);
    if (got == 0 || filled > most) {
      break;
    }
    if (filled == bytes.size()) {
      bytes.resize(bytes.size() * 4);
    }
  }
  bytes.resize(filled);
  return bytes;
}

absl::Status ReplaceFile(const std::string& directory, const std::string& path,
                         absl::string_view bytes, Fd* lock) {
  const std::string temporary = absl::StrCat(directory, "/.new");
  unlink(temporary.c_str());  // a writer that died may have left a temporary file
  const auto create = [&] {
    return open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  };
  Fd fd = lock == nullptr ? Fd(create()) : OpenClosedOnFork(create);
  if (!fd.valid()) {
    return FileError("create", temporary);
  }
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t put = write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (put < 0) {
      return FileError("write", temporary);
    }
    done += static_cast<size_t>(put);
  }
  if (lock != nullptr && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return FileError("lock", temporary);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return FileError("rename to", path);
  }
  if (lock != nullptr) {
    *lock = std::move(fd);
  }
  return absl::OkStatus();
}

absl::StatusOr<Fd> LockDirectory(const std::string& directory, const Stop& stop,
                                 absl::string_view what) {
  const std::string path = absl::StrCat(directory, "/.lock");
  Fd fd = OpenClosedOnFork([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); });
  if (!fd.valid()) {
    return FileError("open", path);
  }
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return FileError("lock", path);
    }
    ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, absl::StrCat(what, ": waiting for ", path)));
    poll(nullptr, 0, 1);
  }
  return fd;
}

}  // namespace entrain
