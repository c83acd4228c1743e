// The sending side of the eager and rendezvous protocols. The peer keeps only a bounded number of
// bytes that it has not asked for. A small message is sent eagerly while there is credit. For any
// other message, this side sends an RTS. The peer answers with a CTS when the message's receive is
// posted. Each endpoint of tcp and ucx has one RendezvousSender. The endpoint itself sends the
// bytes.
//
//   Post --> waiting --(small, credit)--> given away -----------------------> done
//                   \------(otherwise)--> RTS sent --OnCts--> cleared --> ... --> done
//
// Order: first the waiting messages, in the order posted (invariant 1 of transport.h), then the
// messages whose CTS has arrived, one after another.
//
// Credit: when an eager message has left the peer's memory for early messages, the peer returns its
// cost (MatchQueue::CostOf). The cost that the peer has not returned is at most kEarlyCredit.
// Beyond this limit, this side sends RTS. An early message then needs memory at the peer only for
// its RTS packet.
//
// Thread safety: none; only the driver calls.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "transports/matching.h"
#include "transports/packet.h"
#include "transports/transport.h"

namespace entrain {

constexpr int64_t kEarlyCredit = 4 << 20;  // per direction of a pair

// A message from its posting until its memory belongs to the caller again. RendezvousSender makes
// and owns the object.
struct Outgoing {
  // kGivenAway: the transport has all bytes of the message. kSendingRts: the transport is sending
  // the RTS. kDead: the message was revoked while it was in a queue, and is freed when it reaches
  // the front of the queue.
  enum class State : uint8_t {
    kFree,
    kWaiting,
    kGivenAway,
    kSendingRts,
    kRtsSent,
    kCleared,
    kDead
  };
  Envelope envelope;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t given = 0, taken = 0;  // number of bytes given to the transport, and of bytes that the
                                 // transport has sent
  Completion* done = nullptr;
  uint64_t message = 0;  // never 0; contains a generation, so that no two messages have the same
                         // number
  State state = State::kFree;
  bool queued = false;  // the message is in a queue

  // Returns true if the peer knows the message by its RTS. If the message then fails, the peer must
  // be told.
  bool known() const { return state == State::kRtsSent || state == State::kCleared; }
};

class RendezvousSender {
 public:
  using State = Outgoing::State;
  explicit RendezvousSender(CompletionList* completions) : completions_(completions) {}

  void Post(const Envelope& envelope, ConstBytes bytes, Completion* done);
  bool empty() const { return waiting_.empty() && cleared_.empty(); }
  // Returns true if the peer has not yet answered an RTS.
  bool awaiting() const { return rts_sent_ > 0; }
  // Returns the next message to send, or null. If its state is kWaiting, the transport must send
  // the message eagerly or send an RTS. If its state is kCleared, the transport must send the next
  // part of its data.
  Outgoing* Next();
  // Removes the message from its queue. Must be called only for the message that Next has just
  // returned.
  void Dequeue(Outgoing* send);
  void RtsSent(Outgoing* send);
  // Returns null if the message of this number is over, or never existed.
  Outgoing* Find(uint64_t message);
  // Completes a message. The transport must have sent all its bytes.
  void Complete(Outgoing* send);
  // Counts `bytes` bytes of the message's data as sent. Completes the message if these are its last
  // bytes.
  void Taken(Outgoing* send, int64_t bytes);

  // ---- Functions for answers of the peer. An error means that the peer broke the protocol.
  absl::Status OnCredit(int64_t bytes);
  absl::Status OnCts(uint64_t message);
  absl::Status OnRefuse(uint64_t message);

  // Returns true if there is credit for an eager message of `bytes` bytes.
  bool HasCredit(int64_t bytes) const {
    return credit_used_ + MatchQueue::CostOf(bytes) <= kEarlyCredit;
  }
  // Takes credit for an eager message. Returns false if there is not enough.
  bool TakeCredit(int64_t bytes);
  // Gives back the credit of a message that was not sent.
  void PutCreditBack(int64_t bytes) { credit_used_ -= MatchQueue::CostOf(bytes); }
  // Adds credit to return to the peer. The next packet carries this credit. If credit_is_due(), the
  // transport must send a packet for it.
  void ReturnCredit(int64_t bytes) { credit_to_return_ += bytes; }
  bool credit_is_due() const { return credit_to_return_ >= kEarlyCredit / 4; }
  // Returns the credit to put into the next packet, and counts it as returned.
  uint32_t SayCredit();

  // Calls `f` with each message that is not over. `f` may call Fail for it.
  template <typename F>
  void ForEach(F f) {
    for (Outgoing& send : sends_) {
      if (send.state != State::kFree && send.state != State::kDead) {
        f(&send);
      }
    }
  }
  // Fails the message with `why`. Its memory belongs to the caller again.
  void Fail(Outgoing* send, const absl::Status& why);
  // Must be called after all messages have failed.
  void Clear();

 private:
  static constexpr uint64_t kPlaces = 1 << 24;  // message = generation * kPlaces + place

  void Free(Outgoing* send);

  CompletionList* const completions_;
  std::deque<Outgoing> sends_;
  std::vector<Outgoing*> free_;
  std::deque<Outgoing*> waiting_, cleared_;  // may hold dead messages
  int64_t rts_sent_ = 0;
  int64_t credit_used_ = 0, credit_to_return_ = 0;
};

}  // namespace entrain
