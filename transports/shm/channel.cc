#include "transports/shm/channel.h"

#include <cerrno>
#include <utility>
#include <vector>

#include <unistd.h>

#include "lib/base/log.h"
#include "transports/shm/passing.h"

namespace entrain::shm {
namespace {

uint64_t BitOf(Context context) {
  return uint64_t{1} << (context % 64);
}

}  // namespace

Channel::Channel(Acquaintance peer)
    : socket_(std::move(peer.socket)),
      doorbell_(std::move(peer.doorbell)),
      segment_(std::move(peer.segment)),
      process_(std::move(peer.process)),
      pull_(peer.pull),
      mine_(&segment_.side(peer.side)),
      theirs_(&segment_.side(1 - peer.side)),
      writer_(segment_.ring(peer.side), segment_.ring_bytes(), &theirs_->head),
      reader_(segment_.ring(1 - peer.side), segment_.ring_bytes(), &mine_->head),
      side_(peer.side) {}

bool Channel::Grow() {
  if (shortage_.ok()) {
    shortage_ = segment_.ReserveRing(side_);
    whole_ = shortage_.ok();
    if (whole_) {
      segment_.MapRing(side_);
    }
  }
  return whole_;
}

void Channel::MapTheirRing() {
  if (!std::exchange(theirs_mapped_, true)) {
    segment_.MapRing(1 - side_);
  }
}

void Channel::Ring() {
  // Because of the exchange, only the first of several records rings the doorbell. The peer sets
  // the word again before it sleeps again.
  if (theirs_->sleeping.exchange(kAwake, std::memory_order_seq_cst) != kAwake) {
    const uint64_t one = 1;
    // The write fails only if the counter is full. The peer is then being woken already.
    [[maybe_unused]] const ssize_t ignored = write(doorbell_.get(), &one, sizeof(one));
  }
}

void Channel::Release() {
  if (reader_.unreleased() == 0) {
    return;
  }
  reader_.Release();
  if (theirs_->sleeping.load(std::memory_order_seq_cst) == kForDataOrRoom) {  // pairs with Sleep
    Ring();
  }
}

bool Channel::CanRevoke(Context context) {
  if (context < Side::kFirstContexts || words_) {
    return true;
  }
  if (shortage_.ok()) {
    shortage_ = segment_.ReserveWords(side_);
    words_ = shortage_.ok();
  }
  return words_;
}

void Channel::RevokeContext(Context context) {
  if (!CanRevoke(context)) {
    RevokeAll();  // CanRevoke has set shortage_, so the path is lost in any case
    return;
  }
  segment_.revoked(side_, context).fetch_or(BitOf(context), std::memory_order_seq_cst);
  FenceAfterRevoking();
}

void Channel::RevokeAll() {
  mine_->closed.store(1, std::memory_order_seq_cst);
  FenceAfterRevoking();
}

bool Channel::Revoked(Context context) const {
  return (segment_.revoked(side_, context).load(std::memory_order_relaxed) & BitOf(context)) != 0;
}

bool Channel::RevokedByPeer(Context context) const {
  FenceAfterCopying();
  return (segment_.revoked(1 - side_, context).load(std::memory_order_seq_cst) & BitOf(context)) !=
         0;
}

bool Channel::ClosedByPeer() const {
  FenceAfterCopying();
  return theirs_->closed.load(std::memory_order_seq_cst) != 0;
}

bool Channel::Offer(const WireOffer& offer, int memory) {
  return SendWith(socket_.get(), &offer, sizeof(offer), {memory}) == ssize_t{sizeof(offer)};
}

absl::StatusOr<bool> Channel::TakeOffer(WireOffer* offer, Fd* memory) {
  std::vector<Fd> descriptors;
  const ssize_t got = ReceiveWith(socket_.get(), offer, sizeof(*offer), &descriptors);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return false;
  }
  if (got <= 0) {
    hung_up_ = true;
    return false;
  }
  if (static_cast<size_t>(got) != sizeof(*offer) || descriptors.size() > 1) {
    return absl::UnavailableError("the peer broke the protocol: it sends what is no offer");
  }
  *memory = descriptors.empty() ? Fd() : std::move(descriptors[0]);
  return true;
}

void Channel::StopPulling(absl::string_view why) {
  if (!std::exchange(pull_, false)) {
    return;
  }
  ENTRAIN_LOG(kWarning, "shm: cannot read the memory of pid ", process_.pid(), " any more (", why,
              "); large messages are copied twice instead of once");
}

}  // namespace entrain::shm
