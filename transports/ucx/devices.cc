#include "transports/ucx/devices.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/net/interfaces.h"

namespace entrain::ucx {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    names.push_back(next->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns true if UCX_TLS allows only transports within this host.
bool OnlyThisHost(absl::string_view transports) {
  const auto near = [](absl::string_view name) {
    for (absl::string_view known :
         {"self", "sm", "shm", "mm", "posix", "sysv", "cma", "xpmem", "knem"}) {
      if (name == known) {
        return true;
      }
    }
    return false;
  };
  const std::vector<absl::string_view> names = absl::StrSplit(transports, ',');
  return !transports.empty() && std::all_of(names.begin(), names.end(), near);
}

bool Passes(const std::string& filter, const RdmaPort& port,
            const std::vector<Interface>& interfaces) {
  std::vector<Interface> own;
  for (const Interface& one : interfaces) {
    if (std::count(port.interfaces.begin(), port.interfaces.end(), one.name) > 0) {
      own.push_back(one);
    }
  }
  return filter.empty() || (!own.empty() && ChooseAddress(filter, own, nullptr).ok());
}

}  // namespace

std::vector<RdmaPort> ListRdmaPorts(const std::string& folder) {
  std::vector<RdmaPort> ports;
  for (const std::string& device : NamesIn(folder)) {
    const fs::path path = fs::path(folder) / device;
    for (const std::string& port : NamesIn(path / "ports")) {
      std::string state;
      std::ifstream(path / "ports" / port / "state") >> state;  // "4: ACTIVE"
      if (absl::StartsWith(state, "4")) {
        ports.push_back({absl::StrCat(device, ":", port), NamesIn(path / "device" / "net")});
      }
    }
  }
  return ports;
}

absl::StatusOr<DeviceChoice> ChooseDevices(const TransportConfig& config,
                                           const std::vector<RdmaPort>& rdma, bool tcp) {
  const Stop stop{Deadline::After(config.connect_timeout_ns)};
  ENTRAIN_ASSIGN_OR_RETURN(const Address local,
                           ChooseLocalAddress(config.interface_filter, config.route_to, stop));
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, ListInterfaces());
  DeviceChoice chosen;
  for (const Interface& one : interfaces) {
    if (tcp && one.address.bytes() == local.bytes()) {
      chosen.names = one.name;
      break;
    }
  }
  for (const RdmaPort& port : rdma) {
    if (!local.IsLoopback() && Passes(config.interface_filter, port, interfaces)) {
      absl::StrAppend(&chosen.names, chosen.names.empty() ? "" : ",", port.name);
    }
  }
  chosen.net = !local.IsLoopback() && !chosen.names.empty();
  if (const auto named = GetEnv("UCX_NET_DEVICES")) {
    chosen.net = *named != "lo";
  }
  chosen.net = chosen.net && !OnlyThisHost(GetEnv("UCX_TLS").value_or(""));
  return chosen;
}

}  // namespace entrain::ucx
