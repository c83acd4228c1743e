#include "lib/net/handshaker.h"

#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

static_assert(Handshake::kHelloBytes >= Handshake::kProofBytes, "both fit in Handshaker::input_");

absl::Status Run(Handshaker& handshaker, bool until_proved, const Stop& stop) {
  while (true) {
    ENTRAIN_ASSIGN_OR_RETURN(const bool done, handshaker.Progress(until_proved));
    if (done || (until_proved && handshaker.proved())) {
      return absl::OkStatus();
    }
    const auto events = static_cast<short>(POLLIN | (handshaker.unsent() ? POLLOUT : 0));
    ENTRAIN_RETURN_IF_ERROR(WaitFd(handshaker.fd(), events, stop, "handshake: receiving"));
  }
}

}  // namespace

Handshaker::Handshaker(Fd fd, const Address& peer, bool dialer, Purpose purpose,
                       const std::array<uint8_t, 16>& self, const Security& security,
                       const ConnectionId& further_to)
    : dialer_(dialer),
      handshake_(dialer, purpose, self, security.key, further_to, security.OfferTo(peer)),
      channel_(std::move(fd)),
      tls_(security.tls),
      output_(handshake_.TakeOutput()) {}

bool Handshaker::proved() const {
  const bool sent = handshake_.wanted() != Handshake::kHelloBytes && !unsent();
  return dialer_ && sent && (channel_.tls() == nullptr || shaken_);
}

absl::StatusOr<bool> Handshaker::Progress(bool until_proved) {
  while (true) {
    if (channel_.tls() != nullptr && !shaken_) {
      ENTRAIN_ASSIGN_OR_RETURN(shaken_, Shake());
      if (!shaken_) {
        return false;
      }
    }
    ENTRAIN_RETURN_IF_ERROR(Write());
    if (handshake_.done()) {
      return !unsent();
    }
    if (until_proved && proved()) {
      return false;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const bool whole, Read());
    if (!whole) {
      return false;
    }
    ENTRAIN_RETURN_IF_ERROR(Consume());
  }
}

absl::Status Handshaker::Write() {
  while (!output_.empty()) {
    const absl::StatusOr<size_t> put = WriteSome(channel_, output_.data(), output_.size());
    if (!put.ok()) {
      return Annotate(put.status(), "handshake");
    }
    if (*put == 0) {
      return absl::OkStatus();
    }
    output_.erase(0, *put);
  }
  return channel_.Flush() ? absl::OkStatus()
                          : Annotate(TransferError(errno, "sending"), "handshake");
}

absl::StatusOr<bool> Handshaker::Read() {
  const size_t wanted = handshake_.wanted();
  while (have_ < wanted) {
    const absl::StatusOr<size_t> got = ReadSome(channel_, input_ + have_, wanted - have_);
    if (!got.ok() && shaken_ && !channel_.tls()->why().empty()) {
      // The listener may refuse the dialer's certificate after the dialer's side of the TLS
      // handshake is done.
      return absl::FailedPreconditionError(absl::StrCat("handshake: TLS: ", channel_.tls()->why()));
    }
    if (!got.ok()) {
      return Annotate(got.status(), "handshake");
    }
    if (*got == 0) {
      return false;
    }
    heard_ = true;
    have_ += *got;
  }
  return true;
}

absl::Status Handshaker::Consume() {
  const absl::Status status = handshake_.Consume({input_, std::exchange(have_, 0)});
  if (!status.ok()) {
    output_ += handshake_.TakeOutput();
    Write().IgnoreError();  // the refusal, which tells the dialer the reason
    return status;
  }
  // The listener's proof is sent inside TLS. The dialer's proof is sent before TLS begins.
  const bool last = dialer_ || !handshake_.tls();
  if (last) {
    output_ += handshake_.TakeOutput();
  }
  if (handshake_.tls() && channel_.tls() == nullptr && (dialer_ || handshake_.done())) {
    ENTRAIN_RETURN_IF_ERROR(BeginTls());
    output_ = handshake_.TakeOutput();
  }
  return absl::OkStatus();
}

absl::Status Handshaker::BeginTls() {
  ENTRAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<TlsSession> session,
      TlsSession::Create(tls_, dialer_, channel_.fd(), handshake_.digest(), std::move(output_)));
  output_.clear();
  channel_.Use(std::move(session));
  return absl::OkStatus();
}

absl::StatusOr<bool> Handshaker::Shake() {
  // A listener that refuses the dialer's proof answers with zeros. No record of TLS begins with a
  // zero.
  char first = 0;
  if (dialer_ && !answered_ && recv(channel_.fd(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1) {
    if (first == 0) {
      return absl::FailedPreconditionError(
          "handshake: the other side does not hold the same key; ENTRAIN_KEY_FILE must name the "
          "same key on all ranks");
    }
    answered_ = true;
  }
  return channel_.tls()->Shake();
}

absl::Status RunHandshake(Handshaker& handshaker, const Stop& stop) {
  return Run(handshaker, /*until_proved=*/false, stop);
}

absl::Status RunUntilProved(Handshaker& handshaker, const Stop& stop) {
  return Run(handshaker, /*until_proved=*/true, stop);
}

}  // namespace entrain
