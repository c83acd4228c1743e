#include "transports/ucx/ways.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "lib/base/config.h"

namespace entrain::ucx {
namespace {

// Excludes shared memory, because all senders to a process share one queue (README.md, "UCX's
// shared memory"), and tcp (README.md, "Strangers").
constexpr char kDefault[] = "^sm,tcp";

bool Names(absl::string_view tls, absl::string_view one) {
  absl::ConsumePrefix(&tls, "^");
  const std::vector<absl::string_view> names = absl::StrSplit(tls, ',');
  return std::count(names.begin(), names.end(), one) > 0;
}

std::string WithoutUnnamedTcp(const std::string& asked) {
  if (Names(asked, "tcp")) {
    return asked;
  }
  if (absl::StartsWith(asked, "^")) {
    return absl::StrCat(asked, ",tcp");
  }
  return Names(asked, "all") ? "^tcp" : asked;
}

}  // namespace

Ways WaysOf(const std::optional<std::string>& asked) {
  Ways ways{WithoutUnnamedTcp(asked.value_or(kDefault))};
  ways.tcp = Allows(ways.tls, "tcp");
  ways.sm = Allows(ways.tls, "posix,sysv");
  return ways;
}

bool Allows(absl::string_view tls, absl::string_view transports) {
  const bool excluding = absl::ConsumePrefix(&tls, "^");
  std::vector<absl::string_view> named;
  for (absl::string_view name : absl::StrSplit(tls, ',')) {
    if (name == "sm" || name == "shm" || name == "mm") {
      named.insert(named.end(), {"posix", "sysv"});
    } else {
      named.push_back(name);
    }
  }
  const auto is_named = [&](absl::string_view one) {
    return std::count(named.begin(), named.end(), one) > 0;
  };
  const std::vector<absl::string_view> those = absl::StrSplit(transports, ',');
  return excluding ? !std::all_of(those.begin(), those.end(), is_named)
                   : is_named("all") || std::any_of(those.begin(), those.end(), is_named);
}

absl::Status NoWay() {
  return absl::UnimplementedError(
      "no RDMA device may be used here, and UCX_TLS names neither tcp nor sm, by which processes "
      "could reach each other without one");
}

absl::Status CheckStrangers(const Ways& ways) {
  if (!ways.tcp || GetEnv("ENTRAIN_INSECURE") == "1") {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("UCX_TLS=", ways.tls,
                   " names tcp. On UCX's TCP port 24 bytes from any sender end this process, with "
                   "a key or without. Leave tcp out of UCX_TLS, or set ENTRAIN_TRANSPORTS=shm,tcp; "
                   "ENTRAIN_INSECURE=1 permits it where no stranger reaches the port"));
}

}  // namespace entrain::ucx
