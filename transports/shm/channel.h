// A standing connection: the two rings of a segment with their doorbells, the words beside them,
// and the peer's process. Knows nothing of messages.
//
// Thread safety: none.
#pragma once

#include <cstdint>

#include "lib/base/bytes.h"
#include "transports/shm/byte_ring.h"
#include "transports/shm/introduction.h"
#include "transports/shm/wire.h"

namespace entrain::shm {

class Channel {
 public:
  explicit Channel(Acquaintance peer);

  // Writing. Reserve, Open, Publish and TakeAheadUpTo as in RingWriter; Publish wakes the peer if it
  // sleeps.
  std::byte* Reserve(size_t payload, bool again_in_front = false) {
    return whole_ || writer_.EndOf(payload, again_in_front) <= Segment::kFirstOfRing || Grow()
               ? writer_.Reserve(payload, again_in_front)
               : nullptr;
  }
  void Publish(Kind kind) {
    writer_.Publish(kind, reader_.taken());
    if (theirs_->sleeping.load(std::memory_order_seq_cst) != kAwake) {  // pairs with Sleep
      Ring();
    }
  }
  void Open(Kind kind, size_t ready) { writer_.Open(kind, ready); }
  void TakeAheadUpTo(size_t payload) { writer_.TakeAheadUpTo(payload); }
  bool HasRoomFor(size_t payload) { return writer_.HasRoomFor(payload); }
  size_t MaxPayload() const { return RingFormat::MaxPayload(segment_.ring_bytes()); }

  // Reading, as in RingReader; Peek hears how far the peer has come, Release wakes the peer if it
  // sleeps for want of room.
  RingReader& reader() { return reader_; }
  bool Peek(RingReader::Record* record) {
    if (!reader_.Peek(record)) {
      return false;
    }
    writer_.Learn(record->taken);
    return true;
  }
  void Release();
  // Long messages come this way: see Segment::MapRing. At once from the second time on.
  void MapTheirRing();

  // Before sleeping; afterwards the caller looks once more at what it wants to be woken for.
  void Sleep(Sleeping what) { mine_->sleeping.store(what, std::memory_order_seq_cst); }
  void Wake() {
    mine_->sleeping.store(kAwake, std::memory_order_relaxed);  // late: one needless ring
  }

  // The peer is not asleep. A hint.
  bool PeerPolls() const { return theirs_->sleeping.load(std::memory_order_relaxed) == kAwake; }

  // The cost of eager messages taken, as a running sum, told to the peer and by the peer. A count
  // only: relaxed.
  void AddConsumed(int64_t cost) {
    consumed_ += static_cast<uint64_t>(cost);
    mine_->consumed.store(consumed_, std::memory_order_relaxed);
  }
  uint64_t TheirConsumed() const { return theirs_->consumed.load(std::memory_order_relaxed); }

  // Before an RTS names a buffer under this context: whether it can be revoked. False: shortage().
  bool CanRevoke(Context context);
  // After these return, the peer does not use what it reads from our buffers any more.
  void RevokeContext(Context context);
  void RevokeAll();
  bool Revoked(Context context) const;  // by this side
  // Whether the peer has done so; to be asked after each copy out of its memory.
  bool RevokedByPeer(Context context) const;
  bool ClosedByPeer() const;

  const PeerProcess& process() const { return process_; }
  int socket() const { return socket_.get(); }
  bool can_pull() const { return pull_; }
  // Passes memory of this process's to the peer. False: not now.
  bool Offer(const WireOffer& offer, int memory);
  // What the peer has passed. False: nothing more for now, or ever: hung_up. An error: it broke the
  // protocol. `memory` stays invalid if the descriptor could not be had.
  absl::StatusOr<bool> TakeOffer(WireOffer* offer, Fd* memory);
  // TakeOffer has met the end of the connection.
  bool hung_up() const { return hung_up_; }
  // Once and for all.
  void StopPulling(absl::string_view why);
  // The peer sees the end of the connection. No reading or writing of the socket afterwards.
  void Hangup() { socket_.Reset(); }
  bool broken() const { return writer_.broken() || reader_.broken() || !shortage_.ok(); }
  // Why nothing more can be written: no memory for the rest of the ring, or of the words.
  const absl::Status& shortage() const { return shortage_; }

 private:
  void Ring();
  // The first time that a record goes beyond the ring's first bytes.
  bool Grow();

  Fd socket_, doorbell_;
  Segment segment_;
  PeerProcess process_;
  bool pull_, hung_up_ = false;
  Side *const mine_, *const theirs_;
  RingWriter writer_;
  RingReader reader_;
  uint64_t consumed_ = 0;
  const int side_;
  bool whole_ = false, words_ = false;  // all of the ring, of the words exists
  bool theirs_mapped_ = false;
  absl::Status shortage_;
};

}  // namespace entrain::shm
