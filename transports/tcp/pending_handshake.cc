#include "transports/tcp/pending_handshake.h"

#include <utility>

#include <poll.h>
#include <sys/epoll.h>

#include "lib/base/status.h"

namespace entrain {

static_assert(Handshake::kHelloBytes <= 64 && Handshake::kProofBytes <= 64,
              "they fit in PendingHandshake::input_");

PendingHandshake::PendingHandshake(Fd fd, const Address& from, const TransportConfig& config,
                                   Deadline deadline)
    : PendingHandshake(std::move(fd), from, config, deadline, false, {}) {}

PendingHandshake::PendingHandshake(Fd fd, const Address& to, const TransportConfig& config,
                                   Deadline deadline, bool dialer, const ConnectionId& further_to)
    : fd_(std::move(fd)),
      address_(to),
      deadline_(deadline),
      handshake_(dialer, Purpose::kData, config.self, config.key, further_to),
      connecting_(dialer) {}

absl::StatusOr<PendingHandshake> PendingHandshake::Dial(const Address& to,
                                                        const TransportConfig& config,
                                                        Deadline deadline,
                                                        const ConnectionId& further_to) {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, StartConnect(to));
  return PendingHandshake(std::move(fd), to, config, deadline, true, further_to);
}

uint32_t PendingHandshake::interest() const {
  return EPOLLIN | (connecting_ || !output_.empty() ? static_cast<uint32_t>(EPOLLOUT) : 0);
}

absl::StatusOr<bool> PendingHandshake::Progress() {
  if (connecting_) {
    pollfd ready = {fd_.get(), POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) {
      return false;
    }
    ENTRAIN_RETURN_IF_ERROR(FinishConnect(fd_.get(), address_));
    connecting_ = false;
  }
  ENTRAIN_RETURN_IF_ERROR(Write());
  ENTRAIN_RETURN_IF_ERROR(Read());
  ENTRAIN_RETURN_IF_ERROR(Write());
  return done();
}

absl::Status PendingHandshake::Write() {
  output_ += handshake_.TakeOutput();
  while (!output_.empty()) {
    ENTRAIN_ASSIGN_OR_RETURN(const size_t sent,
                             WriteSome(fd_.get(), output_.data(), output_.size()));
    if (sent == 0) {
      break;
    }
    output_.erase(0, sent);
  }
  return absl::OkStatus();
}

absl::Status PendingHandshake::Read() {
  while (const size_t wanted = handshake_.wanted()) {
    ENTRAIN_ASSIGN_OR_RETURN(const size_t got, ReadSome(fd_.get(), input_ + have_, wanted - have_));
    if (got == 0) {
      return absl::OkStatus();
    }
    heard_ = true;
    have_ += got;
    if (have_ == wanted) {
      have_ = 0;
      const absl::Status status = handshake_.Consume({input_, wanted});
      if (!status.ok()) {
        Write().IgnoreError();  // sends the refusal, which tells the dialer the reason
        return status;
      }
      output_ += handshake_.TakeOutput();
    }
  }
  return absl::OkStatus();
}

}  // namespace entrain
