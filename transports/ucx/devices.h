// Chooses the devices that UCX may use, by ENTRAIN_INTERFACE and by the network route to the store.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "transports/transport.h"

namespace entrain::ucx {

// An active port of an RDMA device.
struct RdmaPort {
  std::string name;                     // "mlx5_0:1", as in UCX_NET_DEVICES
  std::vector<std::string> interfaces;  // network interfaces of the same device
};
// Returns the active ports that the kernel lists under `folder`.
std::vector<RdmaPort> ListRdmaPorts(const std::string& folder = "/sys/class/infiniband");

struct DeviceChoice {
  std::string names;  // value for UCX_NET_DEVICES
  bool net = false;   // processes on other hosts can be reached
};
// Returns the devices that UCX may use. If `tcp` is true, the devices include the interface that
// the tcp transport would use. They also include the ports in `rdma`. If ENTRAIN_INTERFACE is set,
// they include only ports with an interface that passes this filter. If the tcp transport would use
// loopback, they include no RDMA port.
absl::StatusOr<DeviceChoice> ChooseDevices(const TransportConfig& config,
                                           const std::vector<RdmaPort>& rdma, bool tcp);

}  // namespace entrain::ucx
