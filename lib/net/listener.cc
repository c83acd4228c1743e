#include "lib/net/listener.h"

#include <algorithm>

#include <sys/resource.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

bool ParsePort(absl::string_view text, uint16_t* port) {
  uint32_t value = 0;
  if (text.empty() || text.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(text, &value) || value < 1 || value > 65535) {
    return false;
  }
  *port = static_cast<uint16_t>(value);
  return true;
}

}  // namespace

absl::StatusOr<PortRange> ParsePorts(absl::string_view text) {
  if (text.empty()) {
    return PortRange{};
  }
  const size_t dash = text.find('-');
  const absl::string_view high = dash == absl::string_view::npos ? text : text.substr(dash + 1);
  PortRange range;
  if (!ParsePort(text.substr(0, dash), &range.low) || !ParsePort(high, &range.high) ||
      range.low > range.high) {
    return absl::InvalidArgumentError(
        absl::StrCat("ports \"", text, "\": expected LOW-HIGH with 1 <= LOW <= HIGH <= 65535"));
  }
  return range;
}

absl::StatusOr<Listener> OpenListener(const Address& host, PortRange ports) {
  for (uint32_t port = ports.low; port <= ports.high; ++port) {
    auto fd = Listen(host.WithPort(static_cast<uint16_t>(port)));
    if (fd.ok()) {
      ENTRAIN_ASSIGN_OR_RETURN(const Address address, LocalAddress(fd->get()));
      return Listener{*std::move(fd), address};
    }
    // Returns the error unchanged if there is only one port, or if the next port would give the
    // same error.
    if (fd.status().code() != absl::StatusCode::kFailedPrecondition || ports.low == ports.high) {
      return fd.status();
    }
  }
  return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", host.host(),
                                                    ": every port from ", ports.low, " to ",
                                                    ports.high, " is in use or forbidden"));
}

size_t PlacesForStrangers(size_t most) {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) {
    return most;
  }
  return std::clamp<size_t>(descriptors.rlim_cur / 8, 1, most);
}

}  // namespace entrain
