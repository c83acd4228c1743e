// Matching: finds the receive that a message belongs to. One MatchQueue per endpoint, shared by
// inproc, shm, tcp and ucx.
//
// A message and its receive may come in either order:
//
//   receive first: Post, then the message comes and goes straight into the receive's buffer
//   message first: the queue keeps the message early (OnEarly), and the receive claims it by Post
//
// A message comes in one of three ways, which the transport chooses:
//
//   Deliver    all of it is there (inproc, shm: small messages; tcp: the bytes of one read)
//   Begin      its header is there; the payload follows in pieces, which the transport writes to
//              Incoming::writable()
//   OnRts      it waits at the sender, known by `handle`, until the transport asks for it
//
// Begin and OnRts give an Incoming. Advance moves it on; Fail or Abandon ends it early.
//
// Thread safety: none; only the thread that drives the engine. Completions and statuses go to a
// CompletionList, which the transport runs in Poll.
//
// Invariants (besides those of transport.h):
//   a For one tag, either receives wait or messages wait, never both; each in order.
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
  uint64_t handle() const { return handle_; }  // as passed to OnRts
  // The message is not wanted any more (revoked or mismatched): the transport reads its rest into
  // nothing and calls Advance, or calls Abandon.
  bool dropped() const { return dropped_; }
  // Not null: a message sent by RTS whose receive accepts a loan of the sender's memory.
  Loan* loan() const { return hint_.loan; }
  // Returns the place for the next left() bytes: the rest of the receive's buffer, or of the memory
  // that keeps the message early. Empty if dropped. Must be asked again after any other call, since
  // a claim or a revocation changes it.
  Bytes writable() const { return writable(received_); }
  // Returns the place for the bytes from `at` on.
  Bytes writable(int64_t at) const {
    return dropped_ ? Bytes() : Bytes(target_ + at, static_cast<size_t>(bytes_ - at));
  }
  // For transports that move a message in parts that may end in another order: how many bytes all
  // parts that have begun will bring.
  int64_t begun() const { return begun_; }
  void Begin(int64_t bytes) { begun_ += bytes; }

 private:
  friend class MatchQueue;

  Envelope envelope_;
  int64_t bytes_ = 0, received_ = 0, begun_ = 0;
  uint64_t handle_ = 0;
  std::byte* target_ = nullptr;
  Completion* done_ = nullptr;  // of the receive that has claimed it
  RecvHint hint_;               // of that receive
  Incoming* next_ = nullptr;    // in its tag's list of early messages, or in the free list
  std::unique_ptr<std::byte[]> storage_;
  int64_t capacity_ = 0;    // of storage_
  size_t held_at_ = 0;      // its index in MatchQueue::held_
  absl::Status withdrawn_;  // why the sender withdrew it
  bool by_rts_ = false;     // else eager: its cost is accounted
  bool in_line_ = false;    // kept early, not claimed
  bool held_ = false;       // by the transport
  bool claimed_ = false;    // a receive waits for its last byte
  bool counted_ = false;    // in early_bytes
  bool dropped_ = false;
};

class MatchQueue {
 public:
  // The cost of an eager message in early_bytes, limits and credit: its bytes and its bookkeeping.
  static constexpr int64_t kOverhead = 64;
  static constexpr int64_t CostOf(int64_t bytes) { return bytes + kOverhead; }
  static constexpr int64_t kMaxRts = 1 << 20;  // kept RTS; more break the protocol

  // `early_limit` bounds the cost of eager messages kept early. A transport whose senders respect a
  // credit passes that credit; a peer that exceeds it breaks the protocol. All pointers must
  // outlive this object.
  MatchQueue(Endpoint* endpoint, Events* events, CompletionList* completions, int64_t early_limit);
  ~MatchQueue();
  MatchQueue(const MatchQueue&) = delete;
  MatchQueue& operator=(const MatchQueue&) = delete;

  // Implements Endpoint::PostRecv. Empties hint.loan. Usually returns null. Not null: the receive
  // met an RTS, and the transport must start its transfer (send CTS or copy it) and call
  // Advance. If it is dropped() (the two do not match, and the receive has failed), the transport
  // must refuse it and call Abandon.
  Incoming* Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint = {});

  // Looks for an early message of this tag. kWhole: the first one has this envelope and length; it
  // was taken and lies in `into`. kOther: the first one differs, or a receive is posted; nothing
  // was done.
  enum class Kept { kNothing, kWhole, kOther };
  Kept TakeKept(const Envelope& envelope, Bytes into);

  // Implements Endpoint::HasEarly.
  bool HasEarly(Tag tag) const {
    const Line* line = lines_ == 0 ? nullptr : Find(tag);
    return line != nullptr && line->first_early != nullptr;
  }

  // The three ways of arrival. Must be called only from Poll. They call Events::Accepts, and
  // OnEarly if the message is kept. These functions may revoke contexts and close the endpoint, but
  // must not destroy it. An error means that the peer exceeded its limits, and the path must fail.
  absl::Status Deliver(const Envelope& envelope, ConstBytes payload);
  // Never returns null. The transport holds the message until it is complete.
  absl::StatusOr<Incoming*> Begin(const Envelope& envelope, int64_t bytes);
  // Null: the message is kept, and a later Post returns it. Otherwise as for Post.
  absl::StatusOr<Incoming*> OnRts(const Envelope& envelope, int64_t bytes, uint64_t handle);

  // The transport has written `bytes` more bytes to writable(), or read them into nothing. Returns
  // true if the message is complete. Then the receive's completion is due, or the complete message
  // is kept, and the transport must not use `incoming` any more.
  bool Advance(Incoming* incoming, int64_t bytes);
  // The rest will not come: a receive that claimed the message fails with `why`. Ends the
  // transport's hold.
  void Fail(Incoming* incoming, const absl::Status& why);
  // Ends the transport's hold on a dropped message whose bytes will not come.
  void Abandon(Incoming* incoming);
  // The sender withdraws an RTS (it was revoked there). Returns true if the message is
  // kept: a receive that claims it then fails with `why`, and the transport must not use it any
  // more.
  bool Withdraw(Tag tag, uint64_t handle, const absl::Status& why);

  // Fails the receives of this context with `why`, drops its early messages, and turns held ones
  // dropped. Appends the handles of kept RTS to `refused`, so that the transport can tell
  // the sender.
  void Revoke(Context mine, const absl::Status& why, std::vector<uint64_t>* refused);
  // The path has ended: receives fail with `why`, now and later, held messages included (the
  // transport must not use any Incoming afterwards). Messages that have arrived entirely stay: the
  // peer may have sent all its messages and ended.
  void FailAll(const absl::Status& why);

  // Returns the cost of the eager messages kept early, complete or not.
  int64_t early_bytes() const { return early_bytes_; }
  // Returns the cost of the eager messages that have left the queue since the last call, delivered
  // or dropped. It is the credit to return to the sender.
  int64_t TakeReleased();
  // Returns how many receives wait for a message, without those of held messages.
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

  std::vector<Line*> buckets_;  // a power of two
  size_t lines_ = 0;
  Pool<Line> line_pool_;
  Pool<Posted> posted_pool_;
  Pool<Incoming> incoming_pool_;
  std::vector<std::unique_ptr<std::byte[]>> spares_;  // of kSpareBytes, for larger messages
  std::vector<Incoming*> held_;
  absl::Status end_;  // not OK: FailAll was called
  int64_t posted_ = 0, early_bytes_ = 0, released_ = 0, kept_rts_ = 0;
};

// Returns the error of invariant 6, which names both sides.
absl::Status MismatchError(const Envelope& receive, int64_t receive_bytes, const Envelope& message,
                           int64_t message_bytes);

}  // namespace entrain
