// A directory as a store. Each key is a file, replaced by rename, so that readers need no lock;
// writers take turns by a lock on the file ".lock", which the kernel releases when its holder dies.
// Names:
//   k<key>              bytes other than letters, digits, '_' and '-' as %XX
//   h<start>~<sha-256>  keys whose escaped form is too long for a file name
// Each file holds text(key) text(value), so that the names need not be turned back.
#include <cerrno>
#include <cstring>

#include <dirent.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

constexpr size_t kMaxEscaped = 200;  // file names end at 255
constexpr size_t kMaxFileBytes = kMaxStoreKey + kMaxStoreValue + 8;

std::string FileName(absl::string_view key) {
  std::string escaped;
  for (const char c : key) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-') {
      escaped += c;
    } else {
      absl::StrAppendFormat(&escaped, "%%%02x", static_cast<unsigned char>(c));
    }
  }
  if (escaped.size() <= kMaxEscaped) {
    return absl::StrCat("k", escaped);
  }
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest);
  return absl::StrCat(
      "h", escaped.substr(0, 100), "~",
      absl::BytesToHexString({reinterpret_cast<const char*>(digest), SHA256_DIGEST_LENGTH}));
}

absl::Status FileError(absl::string_view what, absl::string_view path) {
  const int error = errno;
  // A directory that cannot be used is the user's to mend; a shortage (disk, descriptors) is this
  // process's.
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

struct Stored {
  std::string key, value;
};

// kNotFound when there is no such file.
absl::StatusOr<Stored> ReadStored(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return errno == ENOENT ? absl::NotFoundError("no such key") : FileError("read", path);
  }
  std::string bytes(4096, '\0');
  size_t filled = 0;
  while (true) {
    const ssize_t got = read(fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0) {
      return FileError("read", path);
    }
    filled += static_cast<size_t>(got);
    if (got == 0 || filled > kMaxFileBytes) {
      break;
    }
    if (filled == bytes.size()) {
      bytes.resize(bytes.size() * 4);
    }
  }
  Reader in(absl::string_view(bytes).substr(0, filled));
  Stored stored;
  stored.key = std::string(in.GetText(kMaxStoreKey));
  stored.value = std::string(in.GetText(kMaxStoreValue));
  if (!in.Finished()) {
    return absl::DataLossError(absl::StrCat("file store: ", path, " is not one of this store's"));
  }
  return stored;
}

class FileStore final : public RequestStore {
 public:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}
  std::string url() const override { return absl::StrCat("file:", directory_); }

 private:
  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    switch (request.op) {
      case StoreOp::kTryGet:
        return Read(request);
      case StoreOp::kGet:
        return Wait(request, stop);
      default:
        break;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Fd lock, Lock(request, stop));
    return request.op == StoreOp::kDeletePrefix ? Delete(request.key) : Write(request);
  }

  std::string Path(absl::string_view name) const { return absl::StrCat(directory_, "/", name); }

  absl::StatusOr<std::string> Read(const StoreRequest& request) const {
    const auto stored = ReadStored(Path(FileName(request.key)));
    if (absl::IsNotFound(stored.status())) {
      return absl::NotFoundError(absl::StrCat(Describe(url(), request), ": there is none"));
    }
    ENTRAIN_RETURN_IF_ERROR(stored.status());
    return stored->value;
  }

  absl::StatusOr<std::string> Wait(const StoreRequest& request, const Stop& stop) const {
    for (int sleep_ms = 1;; sleep_ms = std::min(2 * sleep_ms, 20)) {
      auto value = Read(request);
      if (!absl::IsNotFound(value.status())) {
        return value;
      }
      ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, Describe(url(), request)));
      poll(nullptr, 0, std::min(sleep_ms, StopSliceMs(stop)));
    }
  }

  // Held until the descriptor closes. Opened anew each time: locks of one descriptor do not exclude
  // threads.
  absl::StatusOr<Fd> Lock(const StoreRequest& request, const Stop& stop) const {
    const std::string path = Path(".lock");
    Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd.valid()) {
      return FileError("open", path);
    }
    while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return FileError("lock", path);
      }
      ENTRAIN_RETURN_IF_ERROR(
          CheckStop(stop, absl::StrCat(Describe(url(), request), ": waiting for ", path)));
      poll(nullptr, 0, 1);
    }
    return fd;
  }

  // With the lock held, so the temporary file has one writer; what a dead one left is overwritten.
  absl::StatusOr<std::string> Write(const StoreRequest& request) const {
    const std::string path = Path(FileName(request.key));
    const auto old = ReadStored(path);
    if (!old.ok() && !absl::IsNotFound(old.status())) {
      return old.status();
    }
    const std::string* held = old.ok() ? &old->value : nullptr;
    ENTRAIN_ASSIGN_OR_RETURN(std::string value, ValueAfter(request, held));
    if (!IsRefused(request, held)) {
      ENTRAIN_RETURN_IF_ERROR(Replace(path, request.key, value));
    }
    return value;
  }

  absl::Status Replace(const std::string& path, absl::string_view key,
                       absl::string_view value) const {
    const std::string bytes = Writer().PutText(key).PutText(value).Take();
    const std::string temporary = Path(".new");
    const Fd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
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
    if (rename(temporary.c_str(), path.c_str()) != 0) {
      return FileError("rename to", path);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Delete(absl::string_view prefix) const {
    DIR* directory = opendir(directory_.c_str());
    if (directory == nullptr) {
      return FileError("list", directory_);
    }
    int64_t count = 0;
    while (const dirent* entry = readdir(directory)) {
      if (entry->d_name[0] == '.') {
        continue;
      }
      const std::string path = Path(entry->d_name);
      const auto stored = ReadStored(path);
      // Files that are none of ours are left alone.
      if (stored.ok() && absl::StartsWith(stored->key, prefix) && unlink(path.c_str()) == 0) {
        ++count;
      }
    }
    closedir(directory);
    return absl::StrCat(count);
  }

  const std::string directory_;
};

absl::Status MakeDirectories(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return FileError("create directory", part);
    }
    if (slash == std::string::npos) {
      return absl::OkStatus();
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> OpenFileStore(absl::string_view where, const Stop& stop) {
  const std::string directory(where);
  if (directory.empty()) {
    return absl::InvalidArgumentError(
        "store URL \"file:\": a directory is missing, as in file:DIRECTORY");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, absl::StrCat("opening store file:", directory)));
  ENTRAIN_RETURN_IF_ERROR(MakeDirectories(directory));
  struct stat info;
  if (stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("file store: ", directory, " is not a directory"));
  }
  if (access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    return FileError("use", directory);
  }
  return std::shared_ptr<Store>(std::make_shared<FileStore>(directory));
}

}  // namespace entrain
