// The messages for which the peer has sent RTS and this side gets: it copies them out of the sender's memory, asks for
// them through the ring (CTS), or lends them to their receives where they lie.
//
//   RTS ──────matched──> Choose (ways.h) ──> PullTransfer: copied piece by piece, from Poll ──> kDone
//                             │                     │ cannot be read
//                             ├──────────────────> RingTransfer: comes in fragments
//                             └──> lent ──Release──> kDone
//   whose RTS is the next record, while ReadNow waits for it ──> read whole, at once ──> kDone
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
  // `queue`: matches the messages of this path. All outlive this.
  RtsReceiver(MatchQueue* queue, TxQueue* tx, const Limits& limits)
      : queue_(queue), tx_(tx), limits_(limits) {}
  void Attach(Channel* channel);
  // Of messages that come here.
  const Facts& facts() const { return facts_; }
  void SetSpareCores(bool spare_cores) { facts_.spare_cores = spare_cores; }

  // Records of the peer. An error: it broke the protocol.
  absl::Status OnRts(const WireRts& wire);
  absl::Status OnFragment(ConstBytes payload);
  absl::Status OnRetire(const WireRetire& wire) { return regions_.Forget(wire.region); }
  void OnWithdraw(Context context);
  // Memory that the peer has passed. An error: it broke the protocol.
  absl::Status TakeOffers();

  // Called when a message has met its receive, or is not wanted.
  void OnMatched(Incoming* incoming);
  // Copies the whole message now and says that it is done. False: Poll must see to it; nothing was done.
  bool ReadNow(const WireRts& wire, Context context, Bytes into);

  // Whether Pull has something to do.
  bool busy() const { return !matched_.empty() || !pulls_.empty(); }
  // Begins what was matched, and copies one piece of the first message that is being copied. Returns events.
  int Pull();
  // Whether the peer was found to be gone while its memory was read.
  bool peer_gone() const { return peer_gone_; }
  // As Endpoint::Release.
  absl::Status Release(Loan* loan);

  // Tells the sender that the message of this handle, as given to MatchQueue::OnRts, is over.
  void Finish(uint64_t handle);
  // Tells the sender that its loans of this context are over. Their memory stays mapped here until Release.
  void RevokeLoans(Context mine);
  void FailAll();

 private:
  struct Remote {
    Tag tag;
    uint64_t bytes = 0, address = 0;
    uint64_t handle = 0;                         // the peer's
    std::shared_ptr<const PeerRegion> region{};  // that it lies in; null: not mapped here
    Incoming* incoming = nullptr;                // matched: held until it is complete
    enum class Loan { kNone, kLent, kRevoked };  // kRevoked: the sender has been told
    Loan loan = Loan::kNone;
    std::variant<std::monostate, PullTransfer, RingTransfer> transfer{};
    const std::byte* mapped() const { return region == nullptr ? nullptr : region->At(address); }
  };
  Way WayOf(const Remote& remote) const;
  void Begin(uint64_t handle);
  void Lend(Remote* remote, uint64_t handle);
  // Asks for the message from byte `from` on.
  void AskFor(Remote* remote, uint64_t handle, uint64_t from);
  void PullPiece(Remote* remote, uint64_t handle);
  // Ends a message that is here as a whole.
  void Complete(Remote* remote, uint64_t handle);
  void Drop(Remote* remote, uint64_t handle);
  bool Read(uint64_t address, Bytes into) const;
  bool CopyMapped(const WireRts& wire, Bytes into) const;
  // Reads what of the message is not mapped to its place beside the mapping.
  bool ReadUnmapped(const PeerRegion& region, uint64_t address, uint64_t bytes) const;

  MatchQueue* const queue_;
  TxQueue* const tx_;
  const Limits limits_;
  Channel* channel_ = nullptr;
  Facts facts_;
  PeerRegions regions_;
  HandleTable<Remote> remotes_;    // its numbers are the MatchQueue's handles
  std::vector<uint64_t> matched_;  // since the last Pull
  std::list<uint64_t> pulls_;      // that are copied
  bool peer_gone_ = false, ended_ = false;
};

}  // namespace entrain::shm
