#include "lib/net/key_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/net/socket.h"

namespace entrain {
namespace {

absl::Status Refuse(absl::string_view path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("key file \"", path, "\": ", why));
}

}  // namespace

absl::StatusOr<std::string> ReadKeyFile(absl::string_view path) {
  // Non-blocking, so that open() does not block if a FIFO has that name.
  const Fd fd(open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return Refuse(path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return Refuse(path, "not a regular file");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Refuse(
        path, absl::StrFormat("others may use it (mode %03o); make it 600", info.st_mode & 0777));
  }
  char bytes[kMaxKeyBytes + 2];  // the longest key, a newline, and one byte more, which shows that
                                 // the file is too long
  size_t filled = 0;
  while (filled < sizeof(bytes)) {
    const ssize_t got = read(fd.get(), bytes + filled, sizeof(bytes) - filled);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return Refuse(path, std::strerror(errno));
    }
    if (got == 0) {
      break;
    }
    filled += static_cast<size_t>(got);
  }
  if (filled > 0 && bytes[filled - 1] == '\n') {
    --filled;
  }
  if (filled < kMinKeyBytes) {
    return Refuse(path, absl::StrCat(filled == 0 ? "it is empty" : "it is too short",
                                     ": a key has at least ", kMinKeyBytes, " bytes, this one ",
                                     filled, "; `openssl rand -hex 32` makes one"));
  }
  if (filled > kMaxKeyBytes) {
    return Refuse(path, absl::StrCat("it is longer than ", kMaxKeyBytes, " bytes"));
  }
  return std::string(bytes, filled);
}

}  // namespace entrain
