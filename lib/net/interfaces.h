// Which address a process binds and publishes.
//
// A filter (ENTRAIN_INTERFACE) is a list with commas. Each entry is one of
//   eth0          the interface of that name          10.0.0.0/8, fd00::/8   addresses in that
//   network eth*          interfaces that begin with "eth"    10.0.0.7               that address
//   ipv4, ipv6    addresses of that family            ^ENTRY                 nothing that ENTRY
//   matches
// An address passes when no ^ENTRY matches it, when it is of a family listed (if any is listed),
// and when a name or network matches it (if any is listed). Among those that pass, the order of the
// names and networks in the filter decides; then the address that leads to the store; then routable
// before link-local before loopback.
//
// Without a filter: the address from which packets to the store's host leave; without a store's
// host: 127.0.0.1.
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

// The addresses of this host's interfaces that are up, in the kernel's order. "eth0 10.0.0.7" each
// in messages.
absl::StatusOr<std::vector<Interface>> ListInterfaces();

// Pure. `route`: the address that leads to the store, or null. kInvalidArgument for a malformed
// entry, kFailedPrecondition when nothing passes; both name the filter and list what exists.
absl::StatusOr<Address> ChooseAddress(absl::string_view filter,
                                      const std::vector<Interface>& interfaces,
                                      const Address* route);

// The address, port 0, for this process. `route_to`: the store's host (a name or a number), empty
// when there is none. A name that this host's own tables map to loopback (as Debian's do with its
// own name) is taken to mean this host, so the address of the default route is used: other hosts
// know the name by another address.
absl::StatusOr<Address> ChooseLocalAddress(absl::string_view filter, absl::string_view route_to,
                                           const Stop& stop);

// The address from which packets to `to` leave. Sends nothing.
absl::StatusOr<Address> RouteTo(const Address& to);

// Whether an interface of this host has the address.
bool IsLocal(const Address& address);

// True for a name other than "localhost" all of whose addresses are loopback: this host's own name.
bool IsOwnName(absl::string_view host, const std::vector<Address>& addresses);

}  // namespace entrain
