#include "lib/net/keep_alive.h"

#include <algorithm>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

#include "lib/base/config.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int64_t kLeastNs = kSecond;  // the least interval
constexpr int64_t kMostNs = 3600 * kSecond;

void SetOption(int fd, int level, int option, int64_t value) {
  const int number = static_cast<int>(value);
  // If the call fails, the kernel's default stays. That is no error.
  (void)setsockopt(fd, level, option, &number, sizeof(number));
}

}  // namespace

absl::StatusOr<KeepAlive> ParseKeepAlive(absl::string_view text) {
  if (text.empty()) {
    return KeepAlive{};
  }
  const size_t slash = text.find('/');
  const auto limit = ParseDuration(text.substr(0, slash));
  const auto interval =
      slash == absl::string_view::npos
          ? absl::StatusOr<int64_t>(limit.ok() ? std::max(*limit / 4, kLeastNs) : 0)
          : ParseDuration(text.substr(slash + 1));
  if (!limit.ok() || !interval.ok() || *interval < kLeastNs || *interval > *limit ||
      *limit > kMostNs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text,
        "\": expected LIMIT or LIMIT/INTERVAL, as 8s/2s: durations from 1s to 1h, LIMIT not "
        "below INTERVAL"));
  }
  return KeepAlive{*limit, *interval};
}

KeepAlive KeepAliveSetting() {
  return ParseKeepAlive(GetEnv("ENTRAIN_KEEPALIVE").value_or("")).value_or(KeepAlive{});
}

void ProbeWhenIdle(int fd, const KeepAlive& keep_alive) {
  const int64_t interval = keep_alive.interval_ns / kSecond;
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT,
            std::max<int64_t>(keep_alive.limit_ns / keep_alive.interval_ns, 1));
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void ProbeAlways(int fd, const KeepAlive& keep_alive) {
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, keep_alive.limit_ns / kMillisecond);
  ProbeWhenIdle(fd, keep_alive);
}

}  // namespace entrain
