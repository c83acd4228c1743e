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
// messages whose CTS has arrived, one after another, then the messages that go ahead.
//
// Credit: when an eager message has left the peer's memory for early messages, the peer returns its
// cost (MatchQueue::CostOf). The cost that the peer has not returned is at most kEarlyCredit.
// Beyond this limit, this side sends RTS. An early message then needs memory at the peer only for
// its RTS packet.
//
// On a long way a CTS costs a round trip, in which the link would idle. So the peer lends more
// credit (OnLend). From then on, data may follow the RTS at once: the message goes *ahead*. Each
// piece that is sent before the CTS has come costs credit, as an eager message does. Without
// credit, the rest waits for its CTS.
//
//                        RTS sent, ahead --OnCts--> cleared --> ... --> done
//                          \--(all bytes sent before the CTS)--------> done
//                           \--OnRefuse--> withdrawn by the transport --> done
//
// Thread safety: none; only the driver calls.
#pragma once

#include <algorithm>
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
// The most credit that a peer can lend in addition.
constexpr int64_t kMostLent = int64_t{1} << 30;

// A message from its posting until its memory belongs to the caller again. RendezvousSender makes
// and owns the object.
struct Outgoing {
  // kGivenAway: the transport has all bytes of the message. kSendingRts: the transport is sending
  // the RTS. kAhead: the RTS was sent, and data may follow it. kRefused: the peer has refused a
  // message that went ahead, and the transport must take it back (TakeRefused). kDead: the message
  // was revoked while it was in a queue, and is freed when it reaches the front of the queue.
  enum class State : uint8_t {
    kFree,
    kWaiting,
    kGivenAway,
    kSendingRts,
    kRtsSent,
    kAhead,
    kCleared,
    kRefused,
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
  bool known() const {
    return state == State::kRtsSent || state == State::kAhead || state == State::kCleared ||
           state == State::kRefused;
  }
};

class RendezvousSender {
 public:
  using State = Outgoing::State;
  explicit RendezvousSender(CompletionList* completions) : completions_(completions) {}

  void Post(const Envelope& envelope, ConstBytes bytes, Completion* done);
  // Returns true if no message is queued. (A message that waits for its CTS is not queued, unless
  // it goes ahead.)
  bool empty() const {
    return waiting_.empty() && cleared_.empty() && ahead_.empty() && refused_.empty();
  }
  // Returns true if Next would return a message, or TakeRefused would.
  bool ready() const {
    return !waiting_.empty() || !cleared_.empty() || !refused_.empty() ||
           (!ahead_.empty() && MayGoAhead(*ahead_.front()));
  }
  // Returns true if the peer has not yet answered an RTS.
  bool awaiting() const { return rts_sent_ > 0; }
  // Returns the next message to send, or null. If its state is kWaiting, the transport must send
  // the message eagerly or send an RTS. If its state is kCleared or kAhead, the transport must send
  // the next part of its data. Of a message that is kAhead, this part has at most Allowance bytes
  // and takes credit.
  Outgoing* Next();
  // Returns the largest eager message for which there is credit; 0: none.
  int64_t Allowance() const {
    return std::max<int64_t>(0, limit_ - credit_used_ - MatchQueue::kOverhead);
  }
  // Returns a message that was refused after a part of it had been sent, or null. The transport
  // must stop to use its memory, send WITHDRAW, and call Complete.
  Outgoing* TakeRefused();
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
  // The peer lends `bytes` more bytes of credit.
  absl::Status OnLend(uint64_t bytes);

  // Returns true if there is credit for an eager message of `bytes` bytes.
  bool HasCredit(int64_t bytes) const { return credit_used_ + MatchQueue::CostOf(bytes) <= limit_; }
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

  // The next piece of a message that goes ahead has at least this size, or is the message's rest.
  static constexpr int64_t kLeastAhead = 64 << 10;

  void Free(Outgoing* send);
  // Returns true if there is credit for the next piece of this message.
  bool MayGoAhead(const Outgoing& send) const {
    return HasCredit(std::min(send.bytes - send.given, kLeastAhead));
  }

  CompletionList* const completions_;
  std::deque<Outgoing> sends_;
  std::vector<Outgoing*> free_;
  std::deque<Outgoing*> waiting_, cleared_;  // may hold dead messages
  // Vectors, because most paths have no such messages, and an empty deque takes 600 bytes. ahead_ may
  // hold dead messages.
  std::vector<Outgoing*> ahead_, refused_;
  int64_t rts_sent_ = 0;          // number of messages without an answer to their RTS
  int64_t limit_ = kEarlyCredit;  // the largest credit_used_
  int64_t credit_used_ = 0, credit_to_return_ = 0;
};

}  // namespace entrain
