#include "tools/job_key.h"

#include <cerrno>
#include <optional>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/net/handshake.h"
#include "lib/net/key_file.h"

namespace entrain {
namespace {

constexpr size_t kRandomBytes = 32;

std::string RandomKey() {
  std::string bytes(kRandomBytes, '\0');
  RandomBytes(bytes.data(), bytes.size());
  return absl::BytesToHexString(bytes);  // in hex, because readers drop a newline at the end of the
                                         // file, and a random byte could be one
}

}  // namespace

absl::StatusOr<JobKey> MakeJobKey() {
  JobKey job;
  if (const std::optional<std::string> path = GetEnv("ENTRAIN_KEY_FILE")) {
    job.path = *path;
    ENTRAIN_RETURN_IF_ERROR(ReadKeyFile(job.path).status());
    return job;
  }
  const std::string key = RandomKey();
  job.file = Fd(memfd_create("entrain-key", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = job.file.get();
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (fd < 0 || fchmod(fd, S_IRUSR) != 0 ||
      write(fd, key.data(), key.size()) != static_cast<ssize_t>(key.size()) ||
      fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "cannot make a memory file for the job's key");
  }
  job.path = absl::StrCat("/proc/", getpid(), "/fd/", fd);
  return job;
}

}  // namespace entrain
