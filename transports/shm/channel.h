// An established connection: the two rings of a segment, the doorbells, the words of both sides
// (Side in segment.h), and the peer's process. This class does not know about messages.
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

  // ---- Writing. Reserve, Open, Publish, TakeAheadUpTo and HasRoomFor work as in RingWriter.
  // Publish also wakes the peer if the peer sleeps.
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

  // ---- Reading: Peek and Release work as in RingReader. Peek also learns how far the peer has
  // read this side's ring. Release also wakes the peer if the peer sleeps because it had no room.
  RingReader& reader() { return reader_; }
  bool Peek(RingReader::Record* record) {
    if (!reader_.Peek(record)) {
      return false;
    }
    writer_.Learn(record->taken);
    return true;
  }
  void Release();
  // Calls Segment::MapRing for the ring that the peer writes. Called when long messages arrive.
  // Only the first call has an effect.
  void MapTheirRing();

  // Must be called before the caller sleeps. After this call, the caller must check once more for
  // the events that shall wake it, and only then sleep.
  void Sleep(Sleeping what) { mine_->sleeping.store(what, std::memory_order_seq_cst); }
  void Wake() {
    mine_->sleeping.store(kAwake, std::memory_order_relaxed);  // if the peer sees this late, it
                                                               // only rings once in vain
  }

  // Returns true if the peer is awake. Only a hint.
  bool PeerPolls() const { return theirs_->sleeping.load(std::memory_order_relaxed) == kAwake; }

  // AddConsumed adds to the cost of the eager messages that this side has taken. TheirConsumed
  // returns the cost of the eager messages that the peer has taken. Relaxed order, because each is
  // only a count.
  void AddConsumed(int64_t cost) {
    consumed_ += static_cast<uint64_t>(cost);
    mine_->consumed.store(consumed_, std::memory_order_relaxed);
  }
  uint64_t TheirConsumed() const { return theirs_->consumed.load(std::memory_order_relaxed); }

  // Returns true if a buffer of this context can be revoked. Must be called before an RTS names a
  // buffer of the context. If the result is false, shortage() has the reason.
  bool CanRevoke(Context context);
  // After these functions have returned, the peer discards everything that it reads from this
  // side's buffers. RevokeContext is about the buffers of one context, RevokeAll about all buffers.
  void RevokeContext(Context context);
  void RevokeAll();
  bool Revoked(Context context) const;  // true if this side has revoked the context
  // RevokedByPeer returns true if the peer has revoked the context. ClosedByPeer returns true if
  // the peer has called RevokeAll. After each copy out of the peer's memory, the caller must call
  // both functions.
  bool RevokedByPeer(Context context) const;
  bool ClosedByPeer() const;

  const PeerProcess& process() const { return process_; }
  int socket() const { return socket_.get(); }
  bool can_pull() const { return pull_; }
  // Offers memory of this process to the peer. Returns false if that is not possible now.
  bool Offer(const WireOffer& offer, int memory);
  // Receives one offer of memory from the peer. Returns false if no offer has arrived, or if the
  // connection has ended (hung_up). Returns an error if the peer broke the protocol. `*memory` is
  // invalid if its descriptor could not be received.
  absl::StatusOr<bool> TakeOffer(WireOffer* offer, Fd* memory);
  // Returns true if TakeOffer has reached the end of the connection.
  bool hung_up() const { return hung_up_; }
  // Stops reading the peer's memory for ever.
  void StopPulling(absl::string_view why);
  // Closes the socket. This tells the peer that the connection has ended. The socket must not be
  // used afterwards.
  void Hangup() { socket_.Reset(); }
  // Gives up all memory and descriptors of the connection, after Hangup. A process may outlive many
  // peers. Records that were read from the ring become invalid.
  void Drop() {
    segment_.Drop();
    doorbell_.Reset();
    process_.Forget();
  }
  bool broken() const { return writer_.broken() || reader_.broken() || !shortage_.ok(); }
  // Returns the reason why nothing more can be written: no memory for the rest of the ring, or for
  // the revocation words.
  const absl::Status& shortage() const { return shortage_; }

 private:
  void Ring();
  // Allocates the whole ring. Must be called before a record goes beyond Segment::kFirstOfRing.
  // Returns false if memory is short (shortage).
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
  bool whole_ = false, words_ = false;  // whole_: the whole ring is allocated. words_: the
                                        // revocation words of all contexts are allocated
  bool theirs_mapped_ = false;
  absl::Status shortage_;
};

}  // namespace entrain::shm
