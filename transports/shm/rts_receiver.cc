#include "transports/shm/rts_receiver.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "lib/base/status.h"

namespace entrain::shm {
namespace {

// ReadNow leaves longer mapped messages to Poll, so that their receives may accept a loan.
constexpr size_t kMostMappedNow = 64 << 10;
// If a fragment of this length arrives, long messages are expected, and the whole ring is worth
// mapping.
constexpr size_t kLongFragment = 16 << 10;

absl::Status RevokedThere() {
  return absl::AbortedError("revoked by the peer that was sending");
}

}  // namespace

void RtsReceiver::Attach(Channel* channel) {
  channel_ = channel;
  facts_.can_read = channel->can_pull();
  facts_.reads = limits_.reads;
}

absl::Status RtsReceiver::OnRts(const WireRts& wire) {
  if (wire.bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Breach("an RTS of an impossible length");
  }
  const Envelope envelope = wire.envelope.envelope();
  Remote remote{
      .tag = envelope.tag, .bytes = wire.bytes, .address = wire.address, .handle = wire.handle};
  if (wire.region != 0) {
    if (!regions_.Has(wire.region)) {
      ENTRAIN_RETURN_IF_ERROR(TakeOffers());
    }
    ENTRAIN_ASSIGN_OR_RETURN(remote.region, regions_.Find(wire.region, wire.address, wire.bytes));
    if (remote.region != nullptr && !ReadUnmapped(*remote.region, wire.address, wire.bytes)) {
      remote.region = nullptr;
    }
  }
  const uint64_t handle = remotes_.Add(std::move(remote));
  ENTRAIN_ASSIGN_OR_RETURN(Incoming* const incoming,
                           queue_->OnRts(envelope, static_cast<int64_t>(wire.bytes), handle));
  // OnEarly may have closed this endpoint. Nothing may then be added.
  if (incoming != nullptr && !ended_) {
    OnMatched(incoming);
  }
  return absl::OkStatus();
}

absl::Status RtsReceiver::TakeOffers() {
  WireOffer offer;
  Fd memory;
  while (true) {
    ENTRAIN_ASSIGN_OR_RETURN(const bool taken, channel_->TakeOffer(&offer, &memory));
    if (!taken) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(regions_.Take(offer, std::move(memory)));
  }
}

// Messages of one region may share a page that is not mapped, so several calls may read the same
// bytes to the same address. This is harmless, because all of them write the same bytes.
bool RtsReceiver::ReadUnmapped(const PeerRegion& region, uint64_t address, uint64_t bytes) const {
  for (const PeerRegion::Range& range : region.Unmapped(address, bytes)) {
    if (range.bytes > 0 && !Read(range.address, Bytes(region.At(range.address), range.bytes))) {
      return false;
    }
  }
  return true;
}

bool RtsReceiver::Read(uint64_t address, Bytes into) const {
  size_t got = 0;
  return facts_.can_read &&
         channel_->process().ReadMemoryProved(address, into, &got) == PeerProcess::Read::kSome &&
         got == into.size();
}

void RtsReceiver::OnMatched(Incoming* incoming) {
  const uint64_t handle = incoming->handle();
  Remote* const remote = remotes_.Find(handle);
  remote->incoming = incoming;
  if (incoming->dropped()) {
    Drop(remote, handle);
  } else if (WayOf(*remote) == Way::kLoan) {
    Lend(remote, handle);
  } else {
    matched_.push_back(handle);
  }
}

void RtsReceiver::Drop(Remote* remote, uint64_t handle) {
  queue_->Abandon(remote->incoming);
  Finish(handle);
}

void RtsReceiver::Lend(Remote* remote, uint64_t handle) {
  Incoming* const incoming = std::exchange(remote->incoming, nullptr);
  *incoming->loan() = {remote->mapped(), handle};
  remote->loan = Remote::Loan::kLent;
  queue_->Advance(incoming, incoming->left());
}

absl::Status RtsReceiver::Release(Loan* loan) {
  const uint64_t handle = std::exchange(*loan, Loan()).handle;
  const Remote& remote = *remotes_.Find(handle);  // a lent message stays in the table until
                                                  // Release, even after Revoke and Close
  const bool revoked_here = remote.loan == Remote::Loan::kRevoked;
  const bool good =
      !revoked_here && !channel_->ClosedByPeer() && !channel_->RevokedByPeer(remote.tag.context());
  if (ended_ || revoked_here) {
    remotes_.Remove(handle);
  } else {
    Finish(handle);
  }
  return good ? absl::OkStatus() : absl::AbortedError("revoked while it was read");
}

Way RtsReceiver::WayOf(const Remote& remote) const {
  return Choose({.bytes = remote.bytes,
                 .mapped = remote.region != nullptr,
                 .loan = remote.incoming->loan() != nullptr,
                 .exchange = tx_->awaiting(),
                 .awake = channel_->PeerPolls()},
                facts_);
}

int RtsReceiver::Pull() {
  auto events = static_cast<int>(matched_.size());
  for (const uint64_t handle : matched_) {
    Begin(handle);
  }
  matched_.clear();
  while (!pulls_.empty() && !peer_gone_) {
    const uint64_t handle = pulls_.front();
    Remote* const remote = remotes_.Find(handle);
    if (remote == nullptr || !std::holds_alternative<PullTransfer>(remote->transfer)) {
      pulls_.pop_front();  // the message is over or withdrawn, or now comes through the ring
    } else if (remote->incoming->dropped()) {
      Drop(remote, handle);
      ++events;
    } else {
      PullPiece(remote, handle);
      return events + 1;
    }
  }
  return events;
}

void RtsReceiver::Begin(uint64_t handle) {
  Remote* const remote = remotes_.Find(handle);
  if (remote == nullptr) {  // withdrawn
    return;
  }
  if (!remote->incoming->dropped() && remote->bytes > 0 && WayOf(*remote) == Way::kRing) {
    AskFor(remote, handle, 0);
    return;
  }
  remote->transfer = PullTransfer(remote->address, remote->mapped());
  pulls_.push_back(handle);
}

void RtsReceiver::AskFor(Remote* remote, uint64_t handle, uint64_t from) {
  remote->transfer = RingTransfer(from, remote->bytes);
  tx_->Control(kCts, WireCts{.handle = remote->handle, .to = handle, .offset = from});
}

// Invariant 7: a copy is valid only if the sender had not revoked the message when the copy ended.
void RtsReceiver::PullPiece(Remote* remote, uint64_t handle) {
  auto& pull = std::get<PullTransfer>(remote->transfer);
  if (pull.reads() && !facts_.can_read) {  // can_read has become false while this message waited
    AskFor(remote, handle, pull.bytes());
    return;
  }
  Incoming* const incoming = remote->incoming;
  const PullTransfer::Step step =
      pull.Copy(channel_->process(), incoming->writable(), limits_.piece_bytes);
  if (channel_->ClosedByPeer() || step == PullTransfer::Step::kGone) {
    peer_gone_ = true;
    return;
  }
  if (channel_->RevokedByPeer(remote->tag.context())) {
    queue_->Fail(incoming, RevokedThere());
    remotes_.Remove(handle);
    return;
  }
  if (step == PullTransfer::Step::kForbidden) {
    channel_->StopPulling("forbidden");
    facts_.can_read = false;
  }
  if (step == PullTransfer::Step::kWhole) {
    Complete(remote, handle);
  } else if (step != PullTransfer::Step::kPiece) {
    AskFor(remote, handle, pull.bytes());
  }
}

void RtsReceiver::Complete(Remote* remote, uint64_t handle) {
  queue_->Advance(remote->incoming, remote->incoming->left());
  if (std::holds_alternative<RingTransfer>(remote->transfer)) {
    remotes_.Remove(handle);  // needs no kDone, because the sender knows that it has sent all bytes
  } else {
    Finish(handle);
  }
}

void RtsReceiver::Finish(uint64_t handle) {
  tx_->Control(kDone, WireDone{remotes_.Find(handle)->handle});
  remotes_.Remove(handle);
}

absl::Status RtsReceiver::OnFragment(ConstBytes payload) {
  WireFragment head;
  if (!Take(&payload, &head) || !remotes_.Valid(head.to)) {
    return Breach("a fragment of nothing");
  }
  Remote* const remote = remotes_.Find(head.to);
  if (remote == nullptr) {
    return absl::OkStatus();  // the message was refused while it was under way
  }
  auto* const ring = std::get_if<RingTransfer>(&remote->transfer);
  if (ring == nullptr || !ring->Fits(payload)) {
    return Breach("more fragments than the RTS said");
  }
  Incoming* const incoming = remote->incoming;
  if (incoming->dropped()) {
    Drop(remote, head.to);
    return absl::OkStatus();
  }
  // A fragment of this length fits only in a whole ring, so the whole ring is allocated.
  if (payload.size() >= kLongFragment) {
    channel_->MapTheirRing();
  }
  ring->Take(payload, incoming->writable());
  if (ring->whole()) {
    Complete(remote, head.to);
  }
  return absl::OkStatus();
}

bool RtsReceiver::ReadNow(const WireRts& wire, Context context, Bytes into) {
  const bool here =
      wire.region != 0
          ? CopyMapped(wire, into)
          : Choose(
                {.bytes = wire.bytes, .exchange = tx_->awaiting(), .awake = channel_->PeerPolls()},
                facts_) == Way::kRead &&
                Read(wire.address, into);
  // Invariant 7, as in PullPiece. If the copy is not valid, Poll receives the message again, and
  // PullPiece finds the reason.
  return here && !channel_->ClosedByPeer() && !channel_->RevokedByPeer(context) &&
         tx_->DoneNow({wire.handle});
}

bool RtsReceiver::CopyMapped(const WireRts& wire, Bytes into) const {
  if (into.size() >= kMostMappedNow || !regions_.Has(wire.region)) {
    return false;
  }
  const auto region = regions_.Find(wire.region, wire.address, wire.bytes);
  if (!region.ok()) {
    return false;
  }
  if (*region == nullptr || !(*region)->Maps(wire.address, wire.bytes)) {
    return Read(wire.address, into);
  }
  if (!into.empty()) {
    std::memcpy(into.data(), (*region)->At(wire.address), into.size());
  }
  return true;
}

void RtsReceiver::OnWithdraw(Context context) {
  remotes_.ForEach([&](uint64_t handle, const Remote& remote) {
    if (remote.tag.context() != context || remote.loan != Remote::Loan::kNone) {
      return;  // if the message is lent, Release notices that the sender has taken the memory back
    }
    if (remote.incoming != nullptr) {
      queue_->Fail(remote.incoming, RevokedThere());
    } else {
      queue_->Withdraw(remote.tag, handle, RevokedThere());
    }
    remotes_.Remove(handle);
  });
}

void RtsReceiver::RevokeLoans(Context mine) {
  remotes_.ForEach([&](uint64_t, Remote& remote) {
    if (remote.loan == Remote::Loan::kLent && remote.tag.context() == mine) {
      remote.loan = Remote::Loan::kRevoked;
      tx_->Control(kDone, WireDone{remote.handle});
    }
  });
}

void RtsReceiver::FailAll() {
  ended_ = true;
  matched_.clear();
  pulls_.clear();
  regions_.Clear();
  remotes_.ForEach([&](uint64_t handle, const Remote& remote) {
    if (remote.loan == Remote::Loan::kNone) {
      remotes_.Remove(handle);
    }
  });
}

}  // namespace entrain::shm
