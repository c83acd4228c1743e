#include "transports/tcp/pending_handshake.h"

#include <utility>

#include <poll.h>
#include <sys/epoll.h>

#include "lib/base/status.h"

namespace entrain {

PendingHandshake::PendingHandshake(Fd fd, const Address& from, const TransportConfig& config,
                                   Deadline deadline)
    : PendingHandshake(std::move(fd), from, config, deadline, false, {}) {}

PendingHandshake::PendingHandshake(Fd fd, const Address& to, const TransportConfig& config,
                                   Deadline deadline, bool dialer, const ConnectionId& further_to)
    : address_(to),
      deadline_(deadline),
      shake_(std::move(fd), to, dialer, Purpose::kData, config.self, config.security, further_to),
      connecting_(dialer) {}

absl::StatusOr<PendingHandshake> PendingHandshake::Dial(const Address& to,
                                                        const TransportConfig& config,
                                                        Deadline deadline,
                                                        const ConnectionId& further_to) {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, StartConnect(to));
  return PendingHandshake(std::move(fd), to, config, deadline, true, further_to);
}

uint32_t PendingHandshake::interest() const {
  return EPOLLIN | (connecting_ || shake_.unsent() ? static_cast<uint32_t>(EPOLLOUT) : 0);
}

absl::StatusOr<bool> PendingHandshake::Progress() {
  if (connecting_) {
    pollfd ready = {fd(), POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) {
      return false;
    }
    ENTRAIN_RETURN_IF_ERROR(FinishConnect(fd(), address_));
    connecting_ = false;
  }
  return shake_.Progress();
}

}  // namespace entrain
