// The receiving half of an endpoint. Takes records out of the ring. Passes small messages to the
// MatchQueue, and messages sent by RTS to the RtsReceiver. On the fast path (Endpoint::TryRecv),
// passes the next message directly to the caller that waits for it.
//
// Read empties the ring even if no receives are posted. Early messages go to the MatchQueue, within
// the sender's credit.
//
// Thread safety: none. Read calls Events. These may revoke contexts and close the endpoint, but
// must not destroy this object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "transports/matching.h"
#include "transports/shm/channel.h"
#include "transports/shm/rts_receiver.h"
#include "transports/shm/tx_queue.h"
#include "transports/shm/wire.h"

namespace entrain::shm {

class RxQueue {
 public:
  RxQueue(Endpoint* endpoint, Events* events, CompletionList* completions, TxQueue* tx,
          const Limits& limits);
  void Attach(Channel* channel);
  // Must be called when Facts::spare_cores may have changed.
  void SetSpareCores(bool spare_cores) { rendezvous_.SetSpareCores(spare_cores); }
  // Returns the facts (ways.h) for the messages that this side receives.
  const Facts& facts() const { return rendezvous_.facts(); }

  // See Endpoint::PostRecv.
  void Post(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint);
  bool HasEarly(Tag tag) const { return queue_.HasEarly(tag); }
  // See Endpoint::Release.
  absl::Status Release(Loan* loan) { return rendezvous_.Release(loan); }
  // After FailAll: returns true if a loan has not been released.
  bool lends() const { return rendezvous_.lends(); }
  // Receives and maps the memory that the peer has offered. Returns an error if the peer broke the
  // protocol.
  absl::Status TakeOffers() { return rendezvous_.TakeOffers(); }

  // See Endpoint::TryRecv. If the message stays in the ring at `*where`, the caller must later call
  // Settle to remove it.
  Endpoint::Next TakeNow(const Envelope& envelope, Bytes into, const std::byte** where);
  // See Endpoint::TryTaken.
  Endpoint::Next HearNow(SendRequest request);
  void Settle() {
    if (looked_at_ > 0 && channel_ != nullptr) {
      LetGo();
    }
  }

  // Returns true if Read or Pull has work. Reads only the ring's next line.
  bool MayHaveWork() { return rendezvous_.busy() || channel_->reader().MayHaveNext(); }
  // Does the same as MayHaveWork, ordered after the caller's last seq_cst store.
  bool HasWork() { return rendezvous_.busy() || channel_->reader().HasNext(); }
  // Takes records out of the ring, up to a limit, and returns their number. Returns an error if the
  // peer broke the protocol.
  absl::StatusOr<int> Read();
  // See RtsReceiver::Pull and RtsReceiver::peer_gone.
  int Pull() { return rendezvous_.Pull(); }
  bool peer_gone() const { return rendezvous_.peer_gone(); }
  // Returns the peer's reason for ending the connection; empty if the peer has not ended it.
  const std::string& farewell() const { return farewell_; }

  void Revoke(Context mine, const absl::Status& why);
  void FailAll(const absl::Status& why);

 private:
  // The part of a message that was copied while the peer was still writing the message's record.
  class OpenRecord {
   public:
    // Returns how many bytes of the message in the record at position `at` were already copied to
    // `into`.
    size_t Copied(uint64_t at, Bytes into) const {
      const bool same = at_ == at && into_.data() == into.data() && into_.size() == into.size();
      return same ? bytes_ : 0;
    }
    // `payload` is the written part of the message. Copies those of its bytes that are not yet in
    // `into`. Returns false if there are none.
    bool CopyOn(uint64_t at, ConstBytes payload, Bytes into);

   private:
    uint64_t at_ = 0;
    Bytes into_;
    size_t bytes_ = 0;
  };
  absl::Status Handle(const RingReader::Record& record);
  absl::Status OnEager(ConstBytes payload);
  absl::Status OnControl(ConstBytes payload);
  absl::Status OnWithdraw(ConstBytes payload);
  void ReturnCredit();
  void LetGo();
  // Finds the next message. kThis: the message is at `*data`. That is in `into`, or in the ring,
  // where the message stays until Settle.
  Endpoint::Next FindNow(const Envelope& envelope, Bytes into, const std::byte** data);
  Endpoint::Next FindOpen(const Envelope& envelope, Bytes into);
  // Handles and removes kDone records, up to a limit. (These records report that this side's own
  // messages are over.) Stores the next record in `*record`. Returns false if there is no other
  // record.
  bool PeekPastEnds(RingReader::Record* record);
  // Reads the whole message whose RTS is the next record, and removes the record. Returns false if
  // Poll must receive the message.
  bool ReadNow(const Envelope& envelope, ConstBytes payload, Bytes into);
  // Releases the ring's lines from time to time, not after every record. The writer need not wait
  // for this, because any record fits the rest of the ring.
  void ReleaseNowAndThen();

  Events* const events_;
  Endpoint* const endpoint_;
  TxQueue* const tx_;
  const Limits limits_;
  Channel* channel_ = nullptr;
  MatchQueue queue_;
  RtsReceiver rendezvous_;
  std::vector<uint64_t> refused_;  // reused by Revoke
  std::string farewell_;
  // the cost of the message that FindNow has found and that is still in the ring; 0: none
  int64_t looked_at_ = 0;
  OpenRecord open_;
  bool ended_ = false;
};

}  // namespace entrain::shm
