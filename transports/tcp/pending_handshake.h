// A connection before it carries frames: while it is being established, and during its handshake.
// Reads only the bytes of the handshake, and allocates nothing for a peer before the peer has
// proved its identity.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/net/handshaker.h"
#include "lib/net/socket.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"

namespace entrain {

class PendingHandshake {
 public:
  // Wraps an accepted connection.
  PendingHandshake(Fd fd, const Address& from, const TransportConfig& config, Deadline deadline);
  // Dials a connection.
  static absl::StatusOr<PendingHandshake> Dial(const Address& to, const TransportConfig& config,
                                               Deadline deadline,
                                               const ConnectionId& further_to = {});

  // Continues as far as possible without blocking. Returns true once the handshake is done.
  absl::StatusOr<bool> Progress();
  // reached returns true if the connection is established. silent returns true if nothing has been
  // received on it.
  bool reached() const { return !connecting_; }
  bool silent() const { return shake_.silent(); }
  // peer to further_to must be called only after Progress has returned true.
  const PeerId& peer() const { return shake_.handshake().peer(); }
  ConnectionId connection() const { return shake_.handshake().connection(); }
  bool checksums() const { return shake_.handshake().checksums(); }
  ConnectionId further_to() const { return shake_.handshake().further_to(); }
  const Address& address() const { return address_; }
  Deadline deadline() const { return deadline_; }
  int fd() const { return shake_.fd(); }
  // Returns the epoll events for which to wait.
  uint32_t interest() const;
  // Returns the connection after the handshake.
  Channel Take() { return shake_.Take(); }

 private:
  PendingHandshake(Fd fd, const Address& to, const TransportConfig& config, Deadline deadline,
                   bool dialer, const ConnectionId& further_to);

  Address address_;
  Deadline deadline_;
  Handshaker shake_;
  bool connecting_;
};

}  // namespace entrain
