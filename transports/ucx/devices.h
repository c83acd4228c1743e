// Chooses the devices that UCX may use, from ENTRAIN_INTERFACE and the path to the store.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "transports/transport.h"

namespace entrain::ucx {

// A port of an RDMA device that is up.
struct RdmaPort {
  std::string name;                     // "mlx5_0:1", as in UCX_NET_DEVICES
  std::vector<std::string> interfaces;  // network interfaces of the same device
};
// Returns the ports that the kernel lists under `folder`.
std::vector<RdmaPort> ListRdmaPorts(const std::string& folder = "/sys/class/infiniband");

struct DeviceChoice {
  std::string names;  // value for UCX_NET_DEVICES
  bool net = false;   // processes on other hosts can be reached
};
// Returns the devices that UCX may use. If `tcp` is true, they include the interface that the tcp
// transport would use. They also include the RDMA ports: all of them, or, if ENTRAIN_INTERFACE is
// set, those with an interface that passes this filter. If the chosen interface is loopback, they
// include no RDMA port.
absl::StatusOr<DeviceChoice> ChooseDevices(const TransportConfig& config,
                                           const std::vector<RdmaPort>& rdma, bool tcp);

}  // namespace entrain::ucx
