#include "transports/shm/introduction.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/local_socket.h"
#include "transports/shm/passing.h"

namespace entrain::shm {
namespace {

constexpr uint64_t kCardMagic = 0x33'44'52'41'43'4d'48'53;  // "SHMCARD3"

// A process describes itself with this card. The two processes may have different builds and
// versions of the library, so the card has a fixed size and begins with its version.
struct Card {
  uint64_t magic;
  uint64_t cookie_address;
  Cookie cookie;
  char cpus[CpuSet::kMostBytes];  // like CpuSet::bits
  uint64_t quota_device, quota_inode;
  uint32_t quota_millicores, reserved;
};

absl::Status Closed() {
  return absl::UnavailableError("closed by the peer while connecting");
}

// Sends one or two kilobytes on a new socket, which always has room for them.
absl::Status SendAll(int fd, const void* data, size_t bytes, absl::Span<const int> descriptors) {
  const ssize_t sent = SendWith(fd, data, bytes, descriptors);
  if (sent < 0) {
    return ErrnoStatus(errno, "writing to the peer while connecting");
  }
  return static_cast<size_t>(sent) == bytes
             ? absl::OkStatus()
             : absl::InternalError("the peer's socket took only part of a message");
}

}  // namespace

absl::StatusOr<Fd> ListenAbstract(std::string* name) {
  uint8_t random[16];
  RandomBytes(random, sizeof(random));
  *name = absl::StrCat("entrain-", absl::BytesToHexString(absl::string_view(
                                       reinterpret_cast<const char*>(random), sizeof(random))));
  return ListenLocal(*name);
}

bool SomebodyListens(absl::string_view name) {
  absl::StatusOr<Fd> fd = LocalSocket();
  if (!fd.ok()) {
    return true;  // cannot find out, so assumes that a process listens
  }
  socklen_t length;
  const sockaddr_un address = AbstractAddress(name, &length);
  return connect(fd->get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 ||
         errno != ECONNREFUSED;
}

Introduction::Introduction(const Self* self, absl::string_view dial_name)
    : self_(self),
      dialer_(true),
      name_(dial_name),
      handshake_(true, Purpose::kShm, self->id, self->key),
      stage_(Stage::kDial) {}

Introduction::Introduction(const Self* self, Fd accepted)
    : self_(self),
      dialer_(false),
      handshake_(false, Purpose::kShm, self->id, self->key),
      stage_(Stage::kHandshake),
      socket_(std::move(accepted)) {}

absl::StatusOr<bool> Introduction::Step() {
  while (failed_.ok() && stage_ != Stage::kDone) {
    const absl::StatusOr<bool> on = StepOnce();
    failed_ = on.status();
    if (on.ok() && !*on) {
      return false;
    }
  }
  if (!failed_.ok()) {
    return failed_;
  }
  return true;
}

// Returns true if the introduction is now in its next stage.
absl::StatusOr<bool> Introduction::StepOnce() {
  switch (stage_) {
    case Stage::kDial:
      return Dial();
    case Stage::kHandshake:
      return ShakeHands();
    case Stage::kOffer:
      return Offer();
    case Stage::kCard:
      return ReadCard();
    case Stage::kAdmission:
      return Answer();
    case Stage::kDone:
      break;
  }
  return true;
}

absl::StatusOr<bool> Introduction::Dial() {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, LocalSocket());
  socklen_t length;
  const sockaddr_un address = AbstractAddress(name_, &length);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EAGAIN || errno == EINTR) {
      return false;  // the listener has too many unaccepted connections
    }
    return ErrnoStatus(errno, "dialling");
  }
  socket_ = std::move(fd);
  stage_ = Stage::kHandshake;
  return true;
}

absl::StatusOr<bool> Introduction::ShakeHands() {
  if (result_.process.pid() == 0) {  // refuses processes of other users before any bytes are
                                     // exchanged
    ENTRAIN_ASSIGN_OR_RETURN(result_.process, PeerProcess::Of(socket_.get()));
  }
  absl::Status refused;
  while (true) {
    if (std::string out = handshake_.TakeOutput(); !out.empty()) {
      ENTRAIN_RETURN_IF_ERROR(SendAll(socket_.get(), out.data(), out.size(), {}));
    }
    ENTRAIN_RETURN_IF_ERROR(refused);
    if (handshake_.done()) {
      break;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const bool full, Fill(handshake_.wanted(), false));
    if (!full) {
      return false;
    }
    refused = handshake_.Consume(std::exchange(inbox_, std::string()));
  }
  if (leaving_) {
    return absl::AbortedError("given up");
  }
  stage_ = dialer_ ? Stage::kOffer : Stage::kCard;
  return true;
}

absl::StatusOr<bool> Introduction::Offer() {
  ENTRAIN_ASSIGN_OR_RETURN(result_.segment, Segment::Create(self_->ring_bytes));
  ENTRAIN_RETURN_IF_ERROR(SendCard(result_.segment.fd()));
  stage_ = Stage::kCard;
  return true;
}

absl::StatusOr<bool> Introduction::ReadCard() {
  // A card of another version may be shorter, so only its version is read first.
  ENTRAIN_ASSIGN_OR_RETURN(bool full, Fill(sizeof(Card::magic), true));
  if (full && std::memcmp(inbox_.data(), &kCardMagic, sizeof(kCardMagic)) != 0) {
    return absl::UnavailableError("the peer introduces itself in an unknown way");
  }
  ENTRAIN_ASSIGN_OR_RETURN(full, Fill(sizeof(Card), true));
  if (!full) {
    return false;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckCard());
  stage_ = dialer_ ? Stage::kDone : Stage::kAdmission;
  result_.side = dialer_ ? 0 : 1;
  if (dialer_) {
    result_.socket = std::move(socket_);
  }
  return true;
}

absl::StatusOr<bool> Introduction::Answer() {
  if (!admitted_) {
    char nothing;
    const ssize_t got = recv(socket_.get(), &nothing, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0) {
      return Closed();
    }
    return false;
  }
  ENTRAIN_RETURN_IF_ERROR(SendCard(-1));
  result_.socket = std::move(socket_);
  stage_ = Stage::kDone;
  return true;
}

absl::Status Introduction::SendCard(int with_segment) {
  Card card{};
  card.magic = kCardMagic;
  card.cookie_address = reinterpret_cast<uint64_t>(self_->cookie.data());
  card.cookie = self_->cookie;
  self_->cpus.set.bits().copy(card.cpus, sizeof(card.cpus));
  card.quota_device = self_->cpus.quota.device;
  card.quota_inode = self_->cpus.quota.inode;
  card.quota_millicores = self_->cpus.quota.millicores;
  const int fds[kMaxDescriptors] = {self_->doorbell, with_segment};
  return SendAll(socket_.get(), &card, sizeof(card),
                 absl::MakeSpan(fds, with_segment >= 0 ? 2 : 1));
}

absl::Status Introduction::CheckCard() {
  Card card;
  std::memcpy(&card, inbox_.data(), sizeof(card));
  const size_t expected = dialer_ ? 1 : 2;
  if (descriptors_.size() != expected) {
    return absl::UnavailableError("the peer introduces itself in an unknown way");
  }
  result_.cpus = {CpuSet::FromBits({card.cpus, sizeof(card.cpus)}),
                  {card.quota_device, card.quota_inode, card.quota_millicores}};
  result_.doorbell = std::move(descriptors_[0]);
  if ((fcntl(result_.doorbell.get(), F_GETFL) & O_NONBLOCK) == 0) {
    return absl::UnavailableError("the peer's doorbell could block its ringer");
  }
  if (!dialer_) {
    ENTRAIN_ASSIGN_OR_RETURN(result_.segment, Segment::Adopt(std::move(descriptors_[1])));
  }
  result_.pull = self_->pull && result_.process.SetCookie(card.cookie_address, card.cookie);
  if (self_->pull && !result_.pull) {
    ENTRAIN_LOG(kWarning, "shm: cannot read the memory of pid ", result_.process.pid(), " (",
                strerror(errno), "); large messages are copied twice instead of once");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Introduction::Fill(size_t bytes, bool take_descriptors) {
  char buffer[256];
  while (inbox_.size() < bytes) {
    const ssize_t got =
        ReceiveWith(socket_.get(), buffer, std::min(bytes - inbox_.size(), sizeof(buffer)),
                    take_descriptors ? &descriptors_ : nullptr);
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) {
        return false;
      }
      return ErrnoStatus(errno, errno == EMFILE
                                    ? "this process has no room for the peer's descriptors"
                                    : "reading from the peer while connecting");
    }
    if (got == 0) {
      return Closed();
    }
    inbox_.append(buffer, static_cast<size_t>(got));
  }
  return true;
}

}  // namespace entrain::shm
