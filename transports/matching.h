// Matching: finds the receive to which a message belongs. Each endpoint of inproc, shm, tcp and ucx
// has one MatchQueue.
//
// A message and its receive may come in either order:
//
//   receive first: the receive waits in the queue; then the message comes and goes straight into
//                  the receive's buffer
//   message first: the queue keeps the message as an early message (OnEarly), and Post claims it
//
// A message arrives in one of three forms. The transport chooses the form by the function that it
// calls:
//
//   Deliver    the whole message is there (inproc, shm: small messages; tcp: the bytes of one read)
//   Begin      the header is there; the payload follows in pieces, and the transport writes each
//              piece to Incoming::writable()
//   OnRts      the message waits at the sender until the transport asks for it; `handle` is the
//              transport's number of the message
//
// Begin and OnRts return an Incoming. By Advance the transport reports progress. By Fail or Abandon
// it ends the message early.
//
// Thread safety: none; only the driver calls. Completions go with their statuses to a
// CompletionList, which the transport runs in Poll.
//
// Invariants (besides those of transport.h):
//   a For one tag, either receives wait or messages wait, never both. The first that waits is served
//     first.
//   b An Incoming that the transport holds stays valid until Advance returns true, or until Fail or
//     Abandon, even if its context is revoked before. Its dropped() may become true at any time.
//   c A message whose receive is posted needs no allocation. A small early message needs no
//     allocation once the pools have grown.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "transports/node_pool.h"
#include "transports/tag_table.h"
#include "transports/transport.h"

namespace entrain {

// The completions that are due and that the next Poll will run. Each transport has one list, so
// that the completions outlive their endpoint.
class CompletionList {
 public:
  void Add(Completion* done, absl::Status status, int64_t bytes) {
    due_.push_back({done, std::move(status), bytes});
  }
  bool empty() const { return due_.empty(); }
  // Runs all completions that are due, also those that become due during the run. Returns their
  // number. Must be called only from Poll, and never nested.
  int Run();

 private:
  struct Due {
    Completion* done;
    absl::Status status;
    int64_t bytes;
  };
  std::vector<Due> due_, running_;
};

// A message whose header has arrived but not its last byte, or a message that is kept early.
// MatchQueue makes and owns the object.
class Incoming {
 public:
  const Envelope& envelope() const { return envelope_; }
  int64_t bytes() const { return bytes_; }
  int64_t received() const { return received_; }
  int64_t left() const { return bytes_ - received_; }
  uint64_t handle() const { return handle_; }  // the argument `handle` of OnRts
  // Returns true if the message is not wanted any more (revoked or mismatched). The transport then
  // reads and discards the rest of the message and calls Advance, or it calls Abandon.
  bool dropped() const { return dropped_; }
  // Returns the loan of the receive if the receive accepts a loan of the sender's memory; otherwise
  // null.
  Loan* loan() const { return hint_.loan; }
  // Returns the memory for the next left() bytes: the rest of the receive's buffer, or of the
  // memory that keeps the message early. Returns an empty span if the message is dropped. The
  // result is valid only until the next call of the MatchQueue, because a claim or a revocation
  // changes it.
  Bytes writable() const { return writable(received_); }
  // Returns the memory for the bytes from `at` on.
  Bytes writable(int64_t at) const {
    return dropped_ ? Bytes() : Bytes(target_ + at, static_cast<size_t>(bytes_ - at));
  }
  // For transports that move several parts of a message at the same time. Returns the sum of the
  // lengths of all parts whose transfer has begun.
  int64_t begun() const { return begun_; }
  void Begin(int64_t bytes) { begun_ += bytes; }

 private:
  friend class MatchQueue;

  Envelope envelope_;
  int64_t bytes_ = 0, received_ = 0, begun_ = 0;
  uint64_t handle_ = 0;
  std::byte* target_ = nullptr;
  Completion* done_ = nullptr;  // completion of the receive that has claimed this message
  RecvHint hint_;               // hint of that receive
  Incoming* next_ = nullptr;    // next in its tag's list of early messages, or in the free list
  std::unique_ptr<std::byte[]> storage_;
  int64_t capacity_ = 0;    // capacity of storage_
  size_t held_at_ = 0;      // its index in MatchQueue::held_
  absl::Status withdrawn_;  // reason why the sender withdrew the message
  bool by_rts_ = false;     // true: sent by RTS; false: sent eagerly, and the cost is counted
  bool in_line_ = false;    // kept early, not claimed
  bool held_ = false;       // the transport holds the message
  bool claimed_ = false;    // a receive waits for its last byte
  bool counted_ = false;    // its cost is included in early_bytes
  bool dropped_ = false;
};

class MatchQueue {
 public:
  // The cost of an eager message in early_bytes, limits and credit: its bytes plus its bookkeeping.
  static constexpr int64_t kOverhead = 64;
  static constexpr int64_t CostOf(int64_t bytes) { return bytes + kOverhead; }
  static constexpr int64_t kMaxRts = 1 << 20;  // most RTS kept; more break the protocol

  // `early_limit` bounds the cost of eager messages kept early. A transport whose senders respect a
  // credit passes that credit. A peer that exceeds the limit breaks the protocol. All pointers must
  // outlive this object.
  MatchQueue(Endpoint* endpoint, Events* events, CompletionList* completions, int64_t early_limit);
  ~MatchQueue();
  MatchQueue(const MatchQueue&) = delete;
  MatchQueue& operator=(const MatchQueue&) = delete;

  // Implements Endpoint::PostRecv. Empties hint.loan. Usually returns null: the transport has
  // nothing to do. Otherwise the receive has claimed a message that was sent by RTS. The transport
  // must then start the transfer (send CTS or copy the message) and call Advance. But if dropped()
  // is true for the result, the receive has failed because it does not match the message. The
  // transport must then refuse the message and call Abandon.
  Incoming* Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint = {});

  // Looks for an early message of this tag. kWhole: the first early message is complete and has
  // this envelope and this length; it was copied to `into` and removed from the queue. kOther: the
  // first early message differs or is not complete, or a receive is posted; nothing was done.
  enum class Kept { kNothing, kWhole, kOther };
  Kept TakeKept(const Envelope& envelope, Bytes into);

  // Implements Endpoint::HasEarly.
  bool HasEarly(Tag tag) const {
    const Line* line = lines_.empty() ? nullptr : lines_.Find(tag);
    return line != nullptr && line->first_early != nullptr;
  }

  // The functions for the three forms of arrival. They must be called only from Poll. They call
  // Events::Accepts, and OnEarly if the message is kept. These events may revoke contexts and close
  // the endpoint, but must not destroy the endpoint. If a function returns an error, the peer
  // exceeded its limits, and the path must fail.
  absl::Status Deliver(const Envelope& envelope, ConstBytes payload);
  // Never returns null. The transport holds the message until it is complete.
  absl::StatusOr<Incoming*> Begin(const Envelope& envelope, int64_t bytes);
  // Returns null if the message is kept; a later Post returns it. Otherwise returns a message as
  // Post does.
  absl::StatusOr<Incoming*> OnRts(const Envelope& envelope, int64_t bytes, uint64_t handle);

  // Must be called when the transport has written `bytes` more bytes to writable(), or has read and
  // discarded them. Returns true if the message is complete. Then the receive's completion is due,
  // or the complete message is kept, and the transport must not use `incoming` any more.
  bool Advance(Incoming* incoming, int64_t bytes);
  // Must be called when the rest of a message will not come. A receive that has claimed the message
  // fails with `why`. The transport must not use `incoming` any more.
  void Fail(Incoming* incoming, const absl::Status& why);
  // Must be called for a dropped message whose bytes will not come. The transport must not use
  // `incoming` any more.
  void Abandon(Incoming* incoming);
  // Must be called when the sender withdraws an RTS (because the message's context was revoked
  // there). Returns true if the message is kept. A receive that claims the message later fails with
  // `why`. The transport must not use the message any more.
  bool Withdraw(Tag tag, uint64_t handle, const absl::Status& why);

  // Fails the receives of this context with `why`, removes its early messages, and marks the
  // messages that the transport holds as dropped. Appends the handles of kept RTS to `refused`, so
  // that the transport can tell the sender.
  void Revoke(Context mine, const absl::Status& why, std::vector<uint64_t>* refused);
  // Must be called when the path has ended. Receives that wait now or are posted later fail with
  // `why`, even if they have claimed a message. The transport must not use any Incoming afterwards.
  // Messages that have arrived entirely stay: the peer may have sent all its messages and ended.
  void FailAll(const absl::Status& why);

  // Returns the cost of the eager messages kept early, complete or not.
  int64_t early_bytes() const { return early_bytes_; }
  // Returns the cost of the eager messages that were delivered or dropped since the last call. This
  // cost is the credit to return to the sender.
  int64_t TakeReleased();
  // Returns the number of receives that have no message yet.
  int64_t posted() const { return posted_; }
  // Returns true if a receive waits, or a message is being moved. If not, a transport need not look
  // for messages of the peer.
  bool expecting() const { return posted_ > 0 || !held_.empty(); }

 private:
  struct Posted {
    Envelope envelope;
    Bytes into;
    Completion* done;
    RecvHint hint;
    Posted* next;
  };
  // The receives or the messages of one tag (invariant a).
  struct Line {
    Tag tag;
    Posted *first_posted = nullptr, *last_posted = nullptr;
    Incoming *first_early = nullptr, *last_early = nullptr;
    Line* next = nullptr;  // for TagTable
    bool empty() const { return first_posted == nullptr && first_early == nullptr; }
  };
  // The result of the search for a receive that matches a message's envelope.
  enum class Match { kNone, kTaken, kMismatch };
  // Removes the first receive of the tag, if there is one, and stores it in `*taken`. kMismatch:
  // the removed receive has failed.
  Match TakePosted(const Envelope& envelope, int64_t bytes, Posted* taken);
  Incoming* NewIncoming(const Envelope& envelope, int64_t bytes);
  void Recycle(Incoming* incoming);
  void Release(Incoming* incoming);
  void Hold(Incoming* incoming);
  void EndHold(Incoming* incoming);
  // Appends the message to its tag's Line. Allocates memory for its payload if it did not come by
  // RTS.
  void Keep(Incoming* incoming);
  void GiveStorage(Incoming* incoming);
  // Removes the first kept message from its tag's Line and returns it.
  Incoming* Unline(Line* line);
  void Claim(Incoming* incoming, const Posted& receive);
  absl::Status Reserve(int64_t bytes);
  void FailPosted(Line* line, const absl::Status& why);
  void ForgetEarly(Line* line, std::vector<uint64_t>* refused);
  void ForgetUnfinished(Line* line);
  void DropHeld(Incoming* incoming, const absl::Status& why);

  Endpoint* const endpoint_;
  Events* const events_;
  CompletionList* const completions_;
  const int64_t early_limit_;

  TagTable<Line> lines_;
  NodePool<Posted, &Posted::next> posted_pool_;
  NodePool<Incoming, &Incoming::next_> incoming_pool_;
  std::vector<std::unique_ptr<std::byte[]>> spares_;  // free blocks of kSpareBytes, for larger
                                                      // messages
  std::vector<Incoming*> held_;
  absl::Status end_;  // not OK: FailAll was called
  int64_t posted_ = 0, early_bytes_ = 0, released_ = 0, kept_rts_ = 0;
};

// Returns the error of invariant 6 in transport.h, which names both sides.
absl::Status MismatchError(const Envelope& receive, int64_t receive_bytes, const Envelope& message,
                           int64_t message_bytes);

}  // namespace entrain
