// Matching: which receive a message belongs to. One MatchQueue per endpoint, shared by inproc, shm,
// tcp and ucx.
//
// A message and its receive may come in either order:
//
//   receive first: Post, then it comes; it goes straight into the receive's buffer
//   message first: it comes, is kept early (OnEarly), and the receive claims it by Post
//
// It comes in one of three ways, as the transport likes:
//
//   Deliver    all of it is at hand (inproc, shm: small messages; tcp: what one read brought)
//   Begin      its header is; the payload follows in pieces, which the transport writes to
//              Incoming::writable()
//   Announce   it waits at the sender, known by `handle`, until the transport asks for it
//
// What Begin or Announce gave is moved on with Advance, and ended early with Fail or Abandon.
//
// Thread safety: none; the thread that drives the engine. Completions and statuses go to a
// CompletionList, which the transport runs in Poll.
//
// Invariants (besides those of transport.h):
//   a Of one tag, either receives wait or messages wait, never both; each in order.
//   b An Incoming that the transport holds stays valid until Advance returns true, Fail or Abandon,
//     whatever is revoked meanwhile; it may turn dropped() at any time.
//   c Nothing is allocated for a message that finds its receive, nor for a small early one once the
//     pools are warm.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "transports/transport.h"

namespace entrain {

// Completions that are due, until Poll runs them. One per transport, so that they outlive their
// endpoint.
class CompletionList {
 public:
  void Add(Completion* done, absl::Status status, int64_t bytes) {
    due_.push_back({done, std::move(status), bytes});
  }
  bool empty() const { return due_.empty(); }
  // Runs what is due, and what becomes due by running it. From Poll only, never nested. Returns how
  // many.
  int Run();

 private:
  struct Due {
    Completion* done;
    absl::Status status;
    int64_t bytes;
  };
  std::vector<Due> due_, running_;
};

// A message between its header and its last byte, or one kept early. Made and owned by MatchQueue.
class Incoming {
 public:
  const Envelope& envelope() const { return envelope_; }
  int64_t bytes() const { return bytes_; }
  int64_t received() const { return received_; }
  int64_t left() const { return bytes_ - received_; }
  uint64_t handle() const { return handle_; }  // as given to Announce
  // Nobody wants it (revoked, mismatched): read the rest to nowhere and Advance, or Abandon it.
  bool dropped() const { return dropped_; }
  // Not null: of an announced message whose receive may be lent the bytes where they lie.
  Loan* loan() const { return hint_.loan; }
  // Of a claimed message: nothing reads its bytes soon.
  bool cold() const { return hint_.cold; }
  // Where the next bytes go: the rest of the receive's buffer, or of the memory that keeps it
  // early; left() bytes. Empty when dropped. Ask again after every call of anything else: a claim
  // or a revocation changes it.
  Bytes writable() const { return writable(received_); }
  // Likewise, from byte `at` on.
  Bytes writable(int64_t at) const {
    return dropped_ ? Bytes() : Bytes(target_ + at, static_cast<size_t>(bytes_ - at));
  }
  // For who moves it in parts that may end in another order: how many bytes all parts that have begun will bring.
  int64_t begun() const { return begun_; }
  void Begin(int64_t bytes) { begun_ += bytes; }

 private:
  friend class MatchQueue;

  Envelope envelope_;
  int64_t bytes_ = 0, received_ = 0, begun_ = 0;
  uint64_t handle_ = 0;
  std::byte* target_ = nullptr;
  Completion* done_ = nullptr;  // of the receive that has claimed it
  RecvHint hint_;               // likewise
  Incoming* next_ = nullptr;    // in its tag's line of early messages, or in the free list
  std::unique_ptr<std::byte[]> storage_;
  int64_t capacity_ = 0;    // of storage_
  size_t held_at_ = 0;      // its place in MatchQueue::held_
  absl::Status withdrawn_;  // why the sender took it back
  bool announced_ = false;  // else eager: its cost is accounted
  bool in_line_ = false;    // kept early, not claimed
  bool held_ = false;       // by the transport
  bool claimed_ = false;    // a receive waits for its last byte
  bool counted_ = false;    // in early_bytes
  bool dropped_ = false;
};

class MatchQueue {
 public:
  // What an eager message counts for in early_bytes, limits and credit: its bytes and its
  // bookkeeping.
  static constexpr int64_t kOverhead = 64;
  static constexpr int64_t CostOf(int64_t bytes) { return bytes + kOverhead; }
  static constexpr int64_t kMaxAnnounced =
      1 << 20;  // kept announcements; more is a breach of protocol

  // `early_limit` bounds the cost of eager messages kept early. A transport whose senders respect a
  // credit passes that credit; exceeding it is then the peer's breach of protocol. All pointers
  // outlive this.
  MatchQueue(Endpoint* endpoint, Events* events, CompletionList* completions, int64_t early_limit);
  ~MatchQueue();
  MatchQueue(const MatchQueue&) = delete;
  MatchQueue& operator=(const MatchQueue&) = delete;

  // Endpoint::PostRecv; empties hint.loan. Null mostly. Not null: this receive met an announcement,
  // which the transport must get moving: grant or copy it, and Advance; or, if dropped() (they do
  // not match: the receive has failed), refuse it and Abandon.
  Incoming* Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint = {});

  // What is kept of this tag. kWhole: the first message has this envelope and length; it is in
  // `into`, and taken. kOther: something else, or a receive is posted; nothing was done.
  enum class Kept { kNothing, kWhole, kOther };
  Kept TakeKept(const Envelope& envelope, Bytes into);

  // Endpoint::HasEarly.
  bool HasEarly(Tag tag) const {
    const Line* line = lines_ == 0 ? nullptr : Find(tag);
    return line != nullptr && line->first_early != nullptr;
  }

  // The three ways of arriving; from Poll only. They call Events (Accepts; OnEarly when the message
  // is kept), which may revoke and close, but not destroy. An error: the peer broke its limits; the
  // path must fail.
  absl::Status Deliver(const Envelope& envelope, ConstBytes payload);
  // Never null; held until it is complete.
  absl::StatusOr<Incoming*> Begin(const Envelope& envelope, int64_t bytes);
  // Null: kept, a later Post gives it. Otherwise as from Post.
  absl::StatusOr<Incoming*> Announce(const Envelope& envelope, int64_t bytes, uint64_t handle);

  // `bytes` more have been written to writable(), or read to nowhere. True when that was all: then
  // the receive's completion is due, or the message is kept complete, and `incoming` is the
  // transport's no more.
  bool Advance(Incoming* incoming, int64_t bytes);
  // The rest will not come: the receive, if any, fails with `why`. Ends the transport's hold.
  void Fail(Incoming* incoming, const absl::Status& why);
  // Ends the transport's hold on a dropped message whose bytes will not come.
  void Abandon(Incoming* incoming);
  // The sender takes an announcement back (revoked there). True if it is kept: whoever claims it
  // fails with `why`, and the transport hears of it no more.
  bool Withdraw(Tag tag, uint64_t handle, const absl::Status& why);

  // Receives of this context fail with `why`; early messages are forgotten; held ones turn dropped.
  // Handles of kept announcements are appended to `refused`, so that the transport can tell the
  // sender.
  void Revoke(Context mine, const absl::Status& why, std::vector<uint64_t>* refused);
  // The path has ended: receives fail with `why`, now and later, held messages included (the
  // transport must not use any Incoming afterwards). Messages that have arrived entirely stay: a
  // peer may have said all that was needed of it, and gone.
  void FailAll(const absl::Status& why);

  // Cost of the eager messages kept early (complete or not).
  int64_t early_bytes() const { return early_bytes_; }
  // Cost of the eager messages that have left the queue since the last call, delivered or dropped:
  // credit to return.
  int64_t TakeReleased();
  // Receives that wait for a message, held ones not counted.
  int64_t posted() const { return posted_; }
  // Receives that wait, or whose message is being moved: whether it is worth looking at the peer.
  bool expecting() const { return posted_ > 0 || !held_.empty(); }

 private:
  struct Posted {
    Envelope envelope;
    Bytes into;
    Completion* done;
    RecvHint hint;
    Posted* next;
  };
  // The line of one tag: receives or messages (invariant a). Gone when empty.
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

  // What waits for a message of this envelope.
  enum class Match { kNone, kTaken, kMismatch };
  // The first receive of the tag is taken out, if there is one; on a mismatch it has failed.
  Match TakePosted(const Envelope& envelope, int64_t bytes, Posted* taken);
  Incoming* NewIncoming(const Envelope& envelope, int64_t bytes);
  void Recycle(Incoming* incoming);
  void Release(Incoming* incoming);
  void Hold(Incoming* incoming);
  void EndHold(Incoming* incoming);
  // Into its tag's line, with memory for its payload unless announced.
  void Keep(Incoming* incoming);
  void GiveStorage(Incoming* incoming);
  // The first kept message, out of its line.
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
  int64_t posted_ = 0, early_bytes_ = 0, released_ = 0, announcements_ = 0;
};

// The error of invariant 6, naming both sides.
absl::Status MismatchError(const Envelope& receive, int64_t receive_bytes, const Envelope& message,
                           int64_t message_bytes);

}  // namespace entrain
