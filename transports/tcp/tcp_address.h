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
  // Returns the address of a listener of this host, with this host's mark if it is loopback.
  static TcpAddress OfListener(const Address& address);
  std::string ToString() const;
  // Returns the same answer on both sides. True if both addresses are loopback of one host, or
  // neither is loopback; and both are of one address family.
  bool Reaches(const TcpAddress& other) const;
};

}  // namespace entrain
