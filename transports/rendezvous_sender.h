// The sender of the eager and rendezvous protocols: messages on their way to a peer that keeps a bounded amount of what it
// has not asked for. A message goes eagerly while the peer's credit lasts; otherwise the peer gets an RTS and answers with a
// CTS when its receive is posted. One RendezvousSender per endpoint, shared by tcp and ucx; how bytes leave is theirs.
//
//   Post --> waiting --(small, credit)--> given away -----------------------> done
//                   \------(otherwise)--> RTS sent --OnCts--> cleared --> ... --> done
//
// Order: messages that wait, in the order posted (invariant 1 of transport.h); then cleared messages, one after another.
//
// Credit: the bytes of eager messages, each counted as MatchQueue counts it, that have left the peer's memory for early
// ones. Eager bytes without credit stay under kEarlyCredit, so RTS packets are all that grows with messages that nobody
// receives.
//
// Thread safety: none; the thread that drives the engine.
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

constexpr int64_t kEarlyCredit = 4 << 20;  // of each direction of a pair

// A message from its posting until its memory is the caller's again. Made and owned by RendezvousSender.
struct Outgoing {
  // kGivenAway: all of it is with the transport. kSendingRts: the RTS is under way. kDead: revoked while in a queue, freed when its turn comes.
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
  int64_t given = 0, taken = 0;  // of its data: to what sends it, and by that
  Completion* done = nullptr;
  uint64_t message = 0;  // its number, not 0; that of a message that is over is recognised
  State state = State::kFree;
  bool queued = false;  // it has a turn to come

  // The peer keeps its RTS or has claimed it, and must be told of its end.
  bool known() const { return state == State::kRtsSent || state == State::kCleared; }
};

class RendezvousSender {
 public:
  using State = Outgoing::State;
  explicit RendezvousSender(CompletionList* completions) : completions_(completions) {}

  void Post(const Envelope& envelope, ConstBytes bytes, Completion* done);
  bool empty() const { return waiting_.empty() && cleared_.empty(); }
  // Whether a message waits for the peer's word.
  bool awaiting() const { return rts_sent_ > 0; }
  // Whose turn it is; null: nobody's. In kWaiting it goes eagerly or as an RTS, in kCleared the
  // next of its data goes.
  Outgoing* Next();
  // It needs no further turn. Only for what Next gave.
  void Dequeue(Outgoing* send);
  void RtsSent(Outgoing* send);
  // Null: a number of a message that is over, or of none.
  Outgoing* Find(uint64_t message);
  // All of it has been taken.
  void Complete(Outgoing* send);
  // So many bytes of its data have been; with the last it is complete.
  void Taken(Outgoing* send, int64_t bytes);

  // What the peer said. Errors are breaches of protocol.
  absl::Status OnCredit(int64_t bytes);
  absl::Status OnCts(uint64_t message);
  absl::Status OnRefuse(uint64_t message);

  // For an eager message.
  bool HasCredit(int64_t bytes) const {
    return credit_used_ + MatchQueue::CostOf(bytes) <= kEarlyCredit;
  }
  // False: there is not enough.
  bool TakeCredit(int64_t bytes);
  // It was not sent.
  void PutCreditBack(int64_t bytes) { credit_used_ -= MatchQueue::CostOf(bytes); }
  // Credit to give back to the peer: with whatever is sent next, or, when it is much, alone.
  void ReturnCredit(int64_t bytes) { credit_to_return_ += bytes; }
  bool credit_is_due() const { return credit_to_return_ >= kEarlyCredit / 4; }
  // What goes with the next one.
  uint32_t SayCredit();

  // Calls `f` with each message that is not over; it may fail it.
  template <typename F>
  void ForEach(F f) {
    for (Outgoing& send : sends_) {
      if (send.state != State::kFree && send.state != State::kDead) {
        f(&send);
      }
    }
  }
  // It fails with `why`: its memory is the caller's again.
  void Fail(Outgoing* send, const absl::Status& why);
  // After all have failed.
  void Clear();

 private:
  static constexpr uint64_t kPlaces = 1 << 24;  // message = generation * kPlaces + place

  void Free(Outgoing* send);

  CompletionList* const completions_;
  std::deque<Outgoing> sends_;
  std::vector<Outgoing*> free_;
  std::deque<Outgoing*> waiting_, cleared_;  // may hold dead ones
  int64_t rts_sent_ = 0;
  int64_t credit_used_ = 0, credit_to_return_ = 0;
};

}  // namespace entrain
