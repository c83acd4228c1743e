#include "transports/ucx/ucx_address.h"

#include <fstream>
#include <vector>

#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace entrain::ucx {

absl::StatusOr<UcxAddress> UcxAddress::Parse(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('/', 5));
  UcxAddress parsed;
  const std::vector<std::string> process =
      absl::StrSplit(parts.size() == 6 ? parts[1] : "", absl::MaxSplits('@', 1));
  if (process.size() != 2 || !absl::SimpleAtoi(process[0], &parsed.pid) || parsed.pid <= 0 ||
      parts[0].empty() || (parts[3] != "net" && parts[3] != "host") ||
      !absl::WebSafeBase64Unescape(parts[4], &parsed.worker) || parsed.worker.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ucx: \"", text, "\" is not an address that a process published"));
  }
  parsed.version = parts[0];
  parsed.name = process[1];
  parsed.pids = parts[2];
  parsed.net = parts[3] == "net";
  parsed.host = parts[5];
  return parsed;
}

std::string UcxAddress::ToString() const {
  return absl::StrCat(version, "/", process(), "/", pids, "/", net ? "net" : "host", "/",
                      absl::WebSafeBase64Escape(worker), "/", host);
}

std::string UcxAddress::process() const {
  return absl::StrCat(pid, "@", name);
}

bool UcxAddress::Reaches(const UcxAddress& other) const {
  return version == other.version && worker != other.worker &&
         (host == other.host || (net && other.net));
}

std::string PidsOfThisProcess() {
  char space[64] = "";
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const ssize_t bytes = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
  return boot.empty() || bytes <= 0 ? "" : absl::StrCat(boot, space);
}

}  // namespace entrain::ucx
