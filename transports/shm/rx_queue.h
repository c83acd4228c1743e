// The receiving half of an endpoint. Takes records out of the ring: gives small messages to the MatchQueue, those sent by RTS ones
// to the RtsReceiver, and hands whole messages to a receive that waits for just them (the inline path).
//
// The ring is emptied whether or not receives are posted: early messages go to the MatchQueue,
// within the credit that the sender has.
//
// Thread safety: none. Read calls Events, which may revoke and close but not destroy.
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
  // Facts::spare_cores may have changed.
  void SetSpareCores(bool spare_cores) { rendezvous_.SetSpareCores(spare_cores); }
  // Of messages that come here.
  const Facts& facts() const { return rendezvous_.facts(); }

  // As Endpoint::PostRecv.
  void Post(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint);
  bool HasEarly(Tag tag) const { return queue_.HasEarly(tag); }
  // As Endpoint::Release.
  absl::Status Release(Loan* loan) { return rendezvous_.Release(loan); }
  // Memory that the peer has passed. An error: it broke the protocol.
  absl::Status TakeOffers() { return rendezvous_.TakeOffers(); }

  // As Endpoint::TryRecv. Settle ends a message that lies at `*where`, in the ring.
  Endpoint::Next TakeNow(const Envelope& envelope, Bytes into, const std::byte** where);
  // As Endpoint::TryTaken.
  Endpoint::Next HearNow(SendRequest request);
  void Settle() {
    if (looked_at_ > 0 && channel_ != nullptr) {
      LetGo();
    }
  }

  // Whether Read or Pull has something to do, by one look at the ring's next line.
  bool MayHaveWork() { return rendezvous_.busy() || channel_->reader().MayHaveNext(); }
  // The same, ordered after the caller's last seq_cst store.
  bool HasWork() { return rendezvous_.busy() || channel_->reader().HasNext(); }
  // Takes some records. Returns their number. An error: the peer broke the protocol.
  absl::StatusOr<int> Read();
  // As RtsReceiver.
  int Pull() { return rendezvous_.Pull(); }
  bool peer_gone() const { return rendezvous_.peer_gone(); }
  // What the peer said when it ended the connection; empty: nothing yet.
  const std::string& farewell() const { return farewell_; }

  void Revoke(Context mine, const absl::Status& why);
  void FailAll(const absl::Status& why);

 private:
  // What is copied of a message whose record is still being written.
  class OpenRecord {
   public:
    // How much of the record that begins at `at` is in `into`.
    size_t Copied(uint64_t at, Bytes into) const {
      const bool same = at_ == at && into_.data() == into.data() && into_.size() == into.size();
      return same ? bytes_ : 0;
    }
    // Copies what of `payload`, the beginning of the message, is not in `into` yet. False: nothing.
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
  // Takes the message, or finds it in the ring, where it stays until Settle.
  Endpoint::Next FindNow(const Envelope& envelope, Bytes into, const std::byte** data);
  Endpoint::Next FindOpen(const Envelope& envelope, Bytes into);
  // The next record that is not the end of a message of ours; those are taken, but not without end.
  // False: there is none.
  bool PeekPastEnds(RingReader::Record* record);
  // Reads a message that is whose RTS is the next record, and takes that. False: Poll must see to it.
  bool ReadNow(const Envelope& envelope, ConstBytes payload, Bytes into);
  // Not after every record: nothing waits for so little room, as any record fits the rest.
  void ReleaseNowAndThen();

  Events* const events_;
  Endpoint* const endpoint_;
  TxQueue* const tx_;
  const Limits limits_;
  Channel* channel_ = nullptr;
  MatchQueue queue_;
  RtsReceiver rendezvous_;
  std::vector<uint64_t> refused_;  // room for Revoke
  std::string farewell_;
  int64_t looked_at_ =
      0;  // the cost of the message that FindNow gave and that is still in the ring
  OpenRecord open_;
  bool ended_ = false;
};

}  // namespace entrain::shm
