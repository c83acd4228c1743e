// The receiving half of an endpoint. Takes records out of the ring: gives small messages to the
// MatchQueue and messages sent by RTS to the RtsReceiver. On the inline path, a caller that waits
// for the next message gets it directly.
//
// The ring is emptied whether or not receives are posted. Early messages go to the MatchQueue,
// within the sender's credit.
//
// Thread safety: none. Read calls Events, which may revoke and close, but must not destroy the
// object.
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
  // Returns the facts for messages that this side receives.
  const Facts& facts() const { return rendezvous_.facts(); }

  // See Endpoint::PostRecv.
  void Post(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint);
  bool HasEarly(Tag tag) const { return queue_.HasEarly(tag); }
  // See Endpoint::Release.
  absl::Status Release(Loan* loan) { return rendezvous_.Release(loan); }
  // Takes memory that the peer has offered. Returns an error if the peer broke the protocol.
  absl::Status TakeOffers() { return rendezvous_.TakeOffers(); }

  // See Endpoint::TryRecv. If the message stays in the ring, at `*where`, it must be ended by
  // Settle.
  Endpoint::Next TakeNow(const Envelope& envelope, Bytes into, const std::byte** where);
  // See Endpoint::TryTaken.
  Endpoint::Next HearNow(SendRequest request);
  void Settle() {
    if (looked_at_ > 0 && channel_ != nullptr) {
      LetGo();
    }
  }

  // Returns true if Read or Pull has work. Costs one look at the ring's next line.
  bool MayHaveWork() { return rendezvous_.busy() || channel_->reader().MayHaveNext(); }
  // Does the same, ordered after the caller's last seq_cst store.
  bool HasWork() { return rendezvous_.busy() || channel_->reader().HasNext(); }
  // Takes some records and returns their number. Returns an error if the peer broke the protocol.
  absl::StatusOr<int> Read();
  // See RtsReceiver.
  int Pull() { return rendezvous_.Pull(); }
  bool peer_gone() const { return rendezvous_.peer_gone(); }
  // Returns the peer's reason for ending the connection; empty if the peer has not ended it.
  const std::string& farewell() const { return farewell_; }

  void Revoke(Context mine, const absl::Status& why);
  void FailAll(const absl::Status& why);

 private:
  // The copied part of a message whose record is still being written.
  class OpenRecord {
   public:
    // Returns the number of bytes of the record at `at` that are in `into`.
    size_t Copied(uint64_t at, Bytes into) const {
      const bool same = at_ == at && into_.data() == into.data() && into_.size() == into.size();
      return same ? bytes_ : 0;
    }
    // Copies the bytes of `payload`, the beginning of the message, that are not in `into` yet.
    // Returns false if there are none.
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
  // Takes the message, or returns its place in the ring, where it then stays until Settle.
  Endpoint::Next FindNow(const Envelope& envelope, Bytes into, const std::byte** data);
  Endpoint::Next FindOpen(const Envelope& envelope, Bytes into);
  // Takes the records that report the end of this side's own messages, up to a limit, and returns
  // the next other record in `record`. Returns false if there is none.
  bool PeekPastEnds(RingReader::Record* record);
  // Reads the whole message whose RTS is the next record, and takes the record. Returns false if
  // Poll must receive the message.
  bool ReadNow(const Envelope& envelope, ConstBytes payload, Bytes into);
  // Releases the ring's lines from time to time, not after every record. A writer does not wait for
  // the lines that are not released yet, because any record fits the rest of the ring.
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
  int64_t looked_at_ =
      0;  // the cost of the message that FindNow returned and that is still in the ring
  OpenRecord open_;
  bool ended_ = false;
};

}  // namespace entrain::shm
