// Receives the messages for which the peer has sent RTS. For each message, it does one of three
// things. It copies the message out of the sender's memory. Or it asks the sender by a CTS to send
// the message through the ring. Or it lends the message to its receive in place.
//
//   RTS ──────matched──> Choose (ways.h) ──> PullTransfer: copied in pieces, from Poll ──> kDone
//                             │                     │ cannot be read
//                             ├──────────────────> RingTransfer: arrives in fragments
//                             └──> lent ──Release──> kDone
//
// If a caller waits for the message of the next RTS (fast path), ReadNow reads the whole message at
// once and sends kDone.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "transports/matching.h"
#include "transports/shm/channel.h"
#include "transports/shm/peer_regions.h"
#include "transports/shm/pull_transfer.h"
#include "transports/shm/ring_transfer.h"
#include "transports/shm/tx_queue.h"
#include "transports/shm/ways.h"
#include "transports/shm/wire.h"

namespace entrain::shm {

class RtsReceiver {
 public:
  // `queue` matches the messages of this path. All arguments must outlive the object.
  RtsReceiver(MatchQueue* queue, TxQueue* tx, const Limits& limits)
      : queue_(queue), tx_(tx), limits_(limits) {}
  void Attach(Channel* channel);
  // Returns the facts (ways.h) for the messages that this side receives.
  const Facts& facts() const { return facts_; }
  void SetSpareCores(bool spare_cores) { facts_.spare_cores = spare_cores; }

  // ---- Functions for the records that the peer sends. They return an error if the peer broke the
  // protocol.
  absl::Status OnRts(const WireRts& wire);
  absl::Status OnFragment(ConstBytes payload);
  absl::Status OnRetire(const WireRetire& wire) { return regions_.Forget(wire.region); }
  void OnWithdraw(Context context);
  // Receives and maps the memory that the peer has offered. Returns an error if the peer broke the
  // protocol.
  absl::Status TakeOffers();

  // Must be called when a message was matched with its receive, or was dropped.
  void OnMatched(Incoming* incoming);
  // Copies the whole message now and tells the sender that it was read. Returns false if Poll must
  // receive the message; `into` may then have been overwritten.
  bool ReadNow(const WireRts& wire, Context context, Bytes into);

  // Returns true if Pull has work.
  bool busy() const { return !matched_.empty() || !pulls_.empty(); }
  // Begins the transfers of the matched messages, and copies one piece of the first message that is
  // being copied. Returns the number of events.
  int Pull();
  // Returns true if the peer was found to be gone or closed when its memory was read.
  bool peer_gone() const { return peer_gone_; }
  // See Endpoint::Release.
  absl::Status Release(Loan* loan);

  // Returns true if the caller has a loan. Release then still asks the peer's words.
  bool lends() const { return ended_ && remotes_.size() > 0; }

  // Tells the sender that a message is over. `handle` is the handle given to MatchQueue::OnRts.
  void Finish(uint64_t handle);
  // Tells the sender that the loans of this context are over. Their memory stays mapped in this
  // process until Release.
  void RevokeLoans(Context mine);
  void FailAll();

 private:
  struct Remote {
    Tag tag;
    uint64_t bytes = 0, address = 0;
    uint64_t handle = 0;  // the peer's handle
    // region that contains the message; null: not mapped in this process
    std::shared_ptr<const PeerRegion> region{};
    Incoming* incoming = nullptr;                // not null: the message is matched, and its
                                                 // transfer is not over
    enum class Loan { kNone, kLent, kRevoked };  // kRevoked: the sender has been told
    Loan loan = Loan::kNone;
    std::variant<std::monostate, PullTransfer, RingTransfer> transfer{};
    const std::byte* mapped() const { return region == nullptr ? nullptr : region->At(address); }
  };
  Way WayOf(const Remote& remote) const;
  void Begin(uint64_t handle);
  void Lend(Remote* remote, uint64_t handle);
  // Asks the sender to send the message through the ring, from byte `from` on.
  void AskFor(Remote* remote, uint64_t handle, uint64_t from);
  void PullPiece(Remote* remote, uint64_t handle);
  // Ends a message that has arrived as a whole.
  void Complete(Remote* remote, uint64_t handle);
  void Drop(Remote* remote, uint64_t handle);
  bool Read(uint64_t address, Bytes into) const;
  bool CopyMapped(const WireRts& wire, Bytes into) const;
  // Reads the unmapped parts of the message into the private memory directly before and after the
  // mapping.
  bool ReadUnmapped(const PeerRegion& region, uint64_t address, uint64_t bytes) const;

  MatchQueue* const queue_;
  TxQueue* const tx_;
  const Limits limits_;
  Channel* channel_ = nullptr;
  Facts facts_;
  PeerRegions regions_;
  HandleTable<Remote> remotes_;    // its numbers are the handles that the MatchQueue knows
  std::vector<uint64_t> matched_;  // matched since the last Pull
  std::list<uint64_t> pulls_;      // messages that are being copied
  bool peer_gone_ = false, ended_ = false;
};

}  // namespace entrain::shm
