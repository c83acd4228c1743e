// A directory as a store. Each key is a file that is replaced by rename, so readers need no lock.
// Writers exclude each other by a lock on the file ".lock". The kernel releases the lock when its
// holder dies. Names:
//   k<key>   a value (file_access.h escapes the key); holds text(key) text(value)
//   m...     meetings (file_meeting.cc)
#include <cerrno>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "lib/store/file_access.h"
#include "lib/store/file_meeting.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

constexpr size_t kMaxFileBytes = kMaxStoreKey + kMaxStoreValue + 8;

std::string FileName(absl::string_view key) {
  return absl::StrCat("k", EscapeForFile(key));
}

struct Stored {
  std::string key, value;
};

// Returns kNotFound if there is no such file.
absl::StatusOr<Stored> ReadStored(const std::string& path) {
  ENTRAIN_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxFileBytes));
  Reader in(bytes);
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
    ENTRAIN_ASSIGN_OR_RETURN(const Fd lock,
                             LockDirectory(directory_, stop, Describe(url(), request)));
    return Write(request);
  }

  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key, const Entry& entry,
                                                     const Stop& stop) override {
    return JoinInDirectory(directory_, key, entry, stop);
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

  // The caller must hold the lock of LockDirectory.
  absl::StatusOr<std::string> Write(const StoreRequest& request) const {
    const std::string path = Path(FileName(request.key));
    if (request.op == StoreOp::kDelete) {
      if (unlink(path.c_str()) != 0 && errno != ENOENT) {
        return FileError("remove", path);
      }
      return std::string();
    }
    const auto old = ReadStored(path);
    if (!old.ok() && !absl::IsNotFound(old.status())) {
      return old.status();
    }
    const std::string* held = old.ok() ? &old->value : nullptr;
    ENTRAIN_ASSIGN_OR_RETURN(std::string value, ValueAfter(request, held));
    if (!IsRefused(request, held)) {
      ENTRAIN_RETURN_IF_ERROR(
          ReplaceFile(directory_, path, Writer().PutText(request.key).PutText(value).Take()));
    }
    return value;
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
