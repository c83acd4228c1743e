// The published address of a process's listener: "HOST:PORT". A loopback address is followed by "#"
// and a mark of the host and its network namespace, because 127.0.0.1 means another machine on
// another host.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/socket.h"

namespace entrain {

struct TcpAddress {
  Address address;
  std::string mark;  // empty if the address is not loopback

  static absl::StatusOr<TcpAddress> Parse(absl::string_view text);
  // Returns the address of a listener on this host, with the host's mark if the address is
  // loopback.
  static TcpAddress OfListener(const Address& address);
  std::string ToString() const;
  // Returns true if both addresses are in the same address family, and either both are loopback
  // addresses of the same host or neither is loopback. The two sides get the same answer.
  bool Reaches(const TcpAddress& other) const;
};

}  // namespace entrain
