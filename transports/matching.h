// Matching: finds the receive that a message belongs to. One MatchQueue per endpoint, shared by
// inproc, shm, tcp and ucx.
//
// A message and its receive may come in either order:
//
//   receive first: Post, then the message comes and goes straight into the receive's buffer
//   message first: the queue keeps the message as an early message (OnEarly), and Post claims it
//
// A message arrives in one of three forms, which the transport chooses:
//
//   Deliver    the whole message is there (inproc, shm: small messages; tcp: the bytes of one read)
//   Begin      its header is there; the payload follows in pieces, which the transport writes to
//              Incoming::writable()
//   OnRts      the message waits at the sender, known by `handle`, until the transport asks for it
//
// Begin and OnRts give an Incoming. Advance reports its progress. Fail or Abandon ends it early.
//
// Thread safety: none; only the thread that drives the engine. Completions and statuses go to a
// CompletionList, which the transport runs in Poll.
//
// Invariants (besides those of transport.h):
//   a For one tag, either receives wait or messages wait, never both. They are served in order.
//   b An Incoming that the transport holds stays valid until Advance returns true, Fail or Abandon,
//     even if its context is revoked before. It may turn dropped() at any time.
//   c A message that finds its receive needs no allocation. A small early message needs none once
//     the pools are warm.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "transports/transport.h"

namespace entrain {

// The completions that are due, until Poll runs them. One per transport, so that they outlive their
// endpoint.
class CompletionList {
 public:
  void Add(Completion* done, absl::Status status, int64_t bytes) {
    due_.push_back({done, std::move(status), bytes});
  }
  bool empty() const { return due_.empty(); }
  // Runs the completions that are due, and those that become due meanwhile. Returns their number.
  // Must be called only from Poll, and never nested.
  int Run();

 private:
  struct Due {
    Completion* done;
    absl::Status status;
    int64_t bytes;
  };
  std::vector<Due> due_, running_;
};

// A message between its header and its last byte, or one kept early. MatchQueue makes and owns it.
class Incoming {
 public:
  const Envelope& envelope() const { return envelope_; }
  int64_t bytes() const { return bytes_; }
  int64_t received() const { return received_; }
  int64_t left() const { return bytes_ - received_; }
  uint64_t handle() const { return handle_; }  // the argument of OnRts
  // Returns true if the message is not wanted any more (revoked or mismatched). The transport then
  // reads and discards the rest of it and calls Advance, or calls Abandon.
  bool dropped() const { return dropped_; }
  // Returns the loan of the receive if the message was sent by RTS and the receive accepts a loan
  // of the sender's memory; otherwise null.
  Loan* loan() const { return hint_.loan; }
  // Returns the place for the next left() bytes: the rest of the receive's buffer, or of the memory
  // that keeps the message early. Empty if dropped. Must be asked again after any other call, since
  // a claim or a revocation changes it.
  Bytes writable() const { return writable(received_); }
  // Returns the place for the bytes from `at` on.
  Bytes writable(int64_t at) const {
    return dropped_ ? Bytes() : Bytes(target_ + at, static_cast<size_t>(bytes_ - at));
  }
  // For transports that move a message in parts that may end out of order. Returns the length of
  // all parts that have begun.
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
  Incoming* next_ = nullptr;    // in its tag's list of early messages, or in the free list
  std::unique_ptr<std::byte[]> storage_;
  int64_t capacity_ = 0;    // capacity of storage_
  size_t held_at_ = 0;      // its index in MatchQueue::held_
  absl::Status withdrawn_;  // reason why the sender withdrew the message
  bool by_rts_ = false;     // sent by RTS; otherwise eager, and its cost is counted
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
  // credit passes that credit; a peer that exceeds it breaks the protocol. All pointers must
  // outlive this object.
  MatchQueue(Endpoint* endpoint, Events* events, CompletionList* completions, int64_t early_limit);
  ~MatchQueue();
  MatchQueue(const MatchQueue&) = delete;
  MatchQueue& operator=(const MatchQueue&) = delete;

  // Implements Endpoint::PostRecv. Empties hint.loan. Usually returns null: the transport has
  // nothing to do. Otherwise the receive has claimed an RTS, and the transport must start its
  // transfer (send CTS or copy the message) and call Advance. If the result is dropped() (receive
  // and message do not match, and the receive has failed), the transport must refuse the message
  // and call Abandon.
  Incoming* Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint = {});

  // Looks for an early message of this tag. kWhole: the first early message has this envelope and
  // this length; it was taken out of the queue and lies in `into`. kOther: the first early message
  // differs, or a receive is posted; nothing was done.
  enum class Kept { kNothing, kWhole, kOther };
  Kept TakeKept(const Envelope& envelope, Bytes into);

  // Implements Endpoint::HasEarly.
  bool HasEarly(Tag tag) const {
    const Line* line = lines_ == 0 ? nullptr : Find(tag);
    return line != nullptr && line->first_early != nullptr;
  }

  // The functions for the three forms of arrival. They must be called only from Poll. They call
  // Events::Accepts, and OnEarly if the message is kept. They may cause that contexts are revoked
  // and the endpoint is closed, but the endpoint must not be destroyed. An error means that the
  // peer exceeded its limits, and the path must fail.
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
  // fails with `why`. Ends the transport's hold.
  void Fail(Incoming* incoming, const absl::Status& why);
  // Ends the transport's hold on a dropped message whose bytes will not come.
  void Abandon(Incoming* incoming);
  // Must be called when the sender withdraws an RTS (it was revoked there). Returns true if the
  // message is kept. A receive that claims it later fails with `why`, and the transport must not
  // use the message any more.
  bool Withdraw(Tag tag, uint64_t handle, const absl::Status& why);

  // Fails the receives of this context with `why`, drops its early messages, and marks held ones as
  // dropped. Appends the handles of kept RTS to `refused`, so that the transport can tell
  // the sender.
  void Revoke(Context mine, const absl::Status& why, std::vector<uint64_t>* refused);
  // Must be called when the path has ended. Receives fail with `why`, now and later, also those
  // that have claimed held messages (the transport must not use any Incoming afterwards). Messages
  // that have arrived entirely stay: the peer may have sent all its messages and ended.
  void FailAll(const absl::Status& why);

  // Returns the cost of the eager messages kept early, complete or not.
  int64_t early_bytes() const { return early_bytes_; }
  // Returns the cost of the eager messages that have left the queue since the last call, delivered
  // or dropped. It is the credit to return to the sender.
  int64_t TakeReleased();
  // Returns the number of receives that wait for a message, without those that have claimed one.
  int64_t posted() const { return posted_; }
  // Returns true if a receive waits, or a message is being moved. Only then is it worth looking at
  // the peer.
  bool expecting() const { return posted_ > 0 || !held_.empty(); }

 private:
  struct Posted {
    Envelope envelope;
    Bytes into;
    Completion* done;
    RecvHint hint;
    Posted* next;
  };
  // The receives or the messages of one tag (invariant a). Removed when empty.
  struct Line {
    Tag tag;
    Posted *first_posted = nullptr, *last_posted = nullptr;
    Incoming *first_early = nullptr, *last_early = nullptr;
    Line* next = nullptr;  // in its bucket, or in the free list
    bool empty() const { return first_posted == nullptr && first_early == nullptr; }
  };
  // Nodes of one kind: a free list over blocks that only grow.
  template <typename T>
  struct Pool {
    std::vector<std::unique_ptr<T[]>> blocks;
    T* free = nullptr;
    T* Take(T* T::*next);
    void Give(T* node, T* T::*next) {
      node->*next = free;
      free = node;
    }
  };

  size_t BucketOf(Tag tag) const;
  Line* Find(Tag tag) const;
  Line* FindOrAdd(Tag tag);
  void RemoveIfEmpty(Line* line);
  void Grow();

  // The result of the search for a receive that matches a message's envelope.
  enum class Match { kNone, kTaken, kMismatch };
  // Removes the first receive of the tag, if there is one, and gives it to `taken`. On a mismatch
  // that receive has failed.
  Match TakePosted(const Envelope& envelope, int64_t bytes, Posted* taken);
  Incoming* NewIncoming(const Envelope& envelope, int64_t bytes);
  void Recycle(Incoming* incoming);
  void Release(Incoming* incoming);
  void Hold(Incoming* incoming);
  void EndHold(Incoming* incoming);
  // Appends the message to its tag's line, with memory for its payload unless it came by RTS.
  void Keep(Incoming* incoming);
  void GiveStorage(Incoming* incoming);
  // Removes the first kept message from its line and returns it.
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

  std::vector<Line*> buckets_;  // their number is a power of two
  size_t lines_ = 0;
  Pool<Line> line_pool_;
  Pool<Posted> posted_pool_;
  Pool<Incoming> incoming_pool_;
  std::vector<std::unique_ptr<std::byte[]>> spares_;  // blocks of kSpareBytes, for larger messages
  std::vector<Incoming*> held_;
  absl::Status end_;  // not OK: FailAll was called
  int64_t posted_ = 0, early_bytes_ = 0, released_ = 0, kept_rts_ = 0;
};

// Returns the error of invariant 6 in transport.h, which names both sides.
absl::Status MismatchError(const Envelope& receive, int64_t receive_bytes, const Envelope& message,
                           int64_t message_bytes);

}  // namespace entrain
