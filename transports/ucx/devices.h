// Which devices UCX may use, as ENTRAIN_INTERFACE and the way to the store say.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "transports/transport.h"

namespace entrain::ucx {

// A port of an RDMA device that is up.
struct RdmaPort {
  std::string name;                     // "mlx5_0:1", as in UCX_NET_DEVICES
  std::vector<std::string> interfaces;  // of the host's network, that are the same device
};
// As the kernel lists them under `folder`.
std::vector<RdmaPort> ListRdmaPorts(const std::string& folder = "/sys/class/infiniband");

struct DeviceChoice {
  std::string names;  // for UCX_NET_DEVICES
  bool net = false;   // others than processes of this host can be reached
};
// The interface that tcp would take, if UCX may use `tcp`, and the RDMA ports: all, or with a filter those whose
// interface passes it. On loopback no RDMA.
absl::StatusOr<DeviceChoice> ChooseDevices(const TransportConfig& config,
                                           const std::vector<RdmaPort>& rdma, bool tcp);

}  // namespace entrain::ucx
