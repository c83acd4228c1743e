// A connection before it carries frames: connecting, then the handshake. Reads exactly the bytes of
// the handshake and allocates nothing on behalf of whoever is at the other end.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/net/handshake.h"
#include "lib/net/socket.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"

namespace entrain {

class PendingHandshake {
 public:
  // One that was accepted.
  PendingHandshake(Fd fd, const Address& from, const TransportConfig& config, Deadline deadline);
  // One that is being dialled.
  static absl::StatusOr<PendingHandshake> Dial(const Address& to, const TransportConfig& config,
                                               Deadline deadline,
                                               const ConnectionId& further_to = {});

  // Goes on as far as it can without blocking; true once the handshake is done.
  absl::StatusOr<bool> Progress();
  // Whether the connection stands, and whether nothing has come by it.
  bool reached() const { return !connecting_; }
  bool silent() const { return !heard_; }
  bool done() const { return !connecting_ && handshake_.done() && output_.empty(); }
  // Of one that is done.
  const PeerId& peer() const { return handshake_.peer(); }
  ConnectionId connection() const { return handshake_.connection(); }
  ConnectionId further_to() const { return handshake_.further_to(); }
  const Address& address() const { return address_; }
  Deadline deadline() const { return deadline_; }
  int fd() const { return fd_.get(); }
  // epoll's events that are worth waking for.
  uint32_t interest() const;
  // The socket; the handshake is over.
  Fd Take() { return std::move(fd_); }

 private:
  PendingHandshake(Fd fd, const Address& to, const TransportConfig& config, Deadline deadline,
                   bool dialer, const ConnectionId& further_to);
  absl::Status Read();
  absl::Status Write();

  Fd fd_;
  Address address_;
  Deadline deadline_;
  Handshake handshake_;
  bool connecting_;
  bool heard_ = false;
  std::string output_;
  char input_[64];
  size_t have_ = 0;
};

}  // namespace entrain
