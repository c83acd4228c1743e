// Chooses the address that a process binds and publishes.
//
// A filter (ENTRAIN_INTERFACE) is a list with commas. Each entry is one of
//   eth0                   the interface of that name
//   eth*                   interfaces that begin with "eth"
//   10.0.0.0/8, fd00::/8   addresses in that network
//   10.0.0.7               that address
//   ipv4, ipv6             addresses of that family
//   ^ENTRY                 no address that ENTRY matches
// An address passes the filter if three conditions hold. No ^ENTRY matches it. Its family is
// listed, or no family is listed. A name or network matches it, or none is listed. Among the
// addresses that pass, the one that matches the earliest name or network is chosen. If several
// addresses match this entry, the source address of packets to the store is preferred. Then the
// scope decides: routable before link-local before loopback.
//
// Without a filter, the result is the source address of packets to the store's host. If the store
// has no host, the result is 127.0.0.1.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/net/socket.h"

namespace entrain {

struct Interface {
  std::string name;  // "eth0"
  Address address;   // port 0
};

// Returns the addresses of all interfaces of this host that are up, in the kernel's order. Messages
// show an address as "eth0 10.0.0.7".
absl::StatusOr<std::vector<Interface>> ListInterfaces();

// Chooses among `interfaces`; has no side effects. `route` is the source address of packets to the
// store, or null. kInvalidArgument: an entry is malformed. kFailedPrecondition: no address passes.
// Both errors name the filter and list the existing addresses.
absl::StatusOr<Address> ChooseAddress(absl::string_view filter,
                                      const std::vector<Interface>& interfaces,
                                      const Address* route);

// Returns the address that this process binds and publishes, with port 0. `route_to` is the store's
// host (a name or a number), empty if there is none. If the name resolves to loopback, it is the
// name of this host. (Debian's /etc/hosts maps the host's own name to loopback.) The result is then
// the address of the default route, because other hosts resolve the name to another address.
absl::StatusOr<Address> ChooseLocalAddress(absl::string_view filter, absl::string_view route_to,
                                           const Stop& stop);

// Returns the source address of packets to `to`. Sends nothing.
absl::StatusOr<Address> RouteTo(const Address& to);

// Returns true if an interface of this host has the address.
bool IsLocal(const Address& address);

// Returns true if `host` is a name of this host: it is not "localhost", and all its addresses are
// loopback.
bool IsOwnName(absl::string_view host, const std::vector<Address>& addresses);

}  // namespace entrain
