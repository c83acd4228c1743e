// The published address of a process's listener: "HOST:PORT". A loopback address is followed by "#"
// and a mark of the host and its network namespace, because 127.0.0.1 is another machine elsewhere.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/socket.h"

namespace entrain {

struct TcpAddress {
  Address address;
  std::string mark;  // empty unless loopback

  static absl::StatusOr<TcpAddress> Parse(absl::string_view text);
  // Adds this host's mark if the address is loopback.
  static TcpAddress OfListener(const Address& address);
  std::string ToString() const;
  // Returns the same answer on both sides: true if both addresses are loopback of one host, or
  // neither is loopback, and both are of one family.
  bool Reaches(const TcpAddress& other) const;
};

}  // namespace entrain
