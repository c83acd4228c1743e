// Matching: finds the receive to which a message belongs. Each endpoint of inproc, shm, tcp and ucx
// has one MatchQueue.
//
// A message and its receive may come in either order:
//
//   receive first: the receive waits in the queue; then the message comes and goes straight into
//                  the receive's buffer
//   message first: the queue keeps the message as an early message (OnEarly). The Post of its
//                  receive *claims* the message: assigns it to the receive
//
// A message arrives in one of three forms. The transport chooses the form by the function that it
// calls:
//
//   Deliver    the whole message has arrived (inproc, shm: a small message; tcp: a message
//              that one read has brought)
//   Begin      the header has arrived. The payload follows in pieces, and the transport writes each
//              piece to Incoming::writable()
//   OnRts      the message waits at the sender until the transport asks for it. `handle` is the
//              transport's number for the message. If the sender may send data before that, the
//              transport holds the message from the beginning, and calls Ahead for such data
//
// Begin and OnRts return an Incoming. The transport reports progress by Advance. It ends a message
// before its last byte by Fail or Abandon.
//
// Thread safety: none; only the driver calls. The queue adds completions to a CompletionList. The
// transport runs this list in Poll.
//
// Invariants (besides those of transport.h):
//   a For one tag, receives wait or messages wait, never both. The first that waits is served
//     first.
//   b An Incoming that the transport holds stays valid until Advance returns true, or until Fail or
//     Abandon, even if its context is revoked before. Its dropped() may become true at any time.
//   c A message whose receive is posted needs no allocation. A small early message needs no
//     allocation once the pools are large enough.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "transports/tag_table.h"
#include "transports/transport.h"

namespace entrain {

// The completions that the next Poll will run. Each transport has one list. So a completion can run
// after its endpoint was destroyed.
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

// A message that has arrived only in part, or an early message that the queue keeps. MatchQueue
// creates and owns the object.
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
  // Returns true if the message was sent by RTS and no receive has claimed it yet.
  bool unclaimed() const { return by_rts_ && in_line_; }
  // Returns the loan of the receive if the receive accepts a loan of the sender's memory; otherwise
  // null.
  Loan* loan() const { return hint_.loan; }
  // Returns the memory for the next left() bytes. This memory is in the receive's buffer, or in the
  // queue's memory for early messages. Returns an empty span if the message is dropped. The result
  // is valid only until the next call of the MatchQueue, because a claim or a revocation changes
  // it.
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
  size_t held_at_ = 0;      // index of this object in MatchQueue::held_
  absl::Status withdrawn_;  // reason why the sender withdrew the message
  int64_t cost_ = 0;        // credit to return to the sender when the message is released
  bool by_rts_ = false;     // sent by RTS, and not complete
  bool in_line_ = false;    // in its tag's Line: early and not claimed
  bool held_ = false;       // the transport holds the message
  bool claimed_ = false;    // a receive has claimed it, and its last byte has not arrived
  bool counted_ = false;    // early_bytes includes cost_
  bool dropped_ = false;
};

class MatchQueue {
 public:
  // The cost of an eager message: its bytes plus the memory to keep it. early_bytes, limits and
  // credit are sums of costs.
  static constexpr int64_t kOverhead = 64;
  static constexpr int64_t CostOf(int64_t bytes) { return bytes + kOverhead; }
  // The largest number of RTS that the queue keeps. A peer that sends more breaks the protocol.
  static constexpr int64_t kMaxRts = 1 << 20;

  // `early_limit` is the largest cost of all eager messages that the queue keeps. If the
  // transport's senders respect a credit, `early_limit` is this credit. A peer that exceeds the
  // limit breaks the protocol. All pointers must outlive this object.
  MatchQueue(Endpoint* endpoint, Events* events, CompletionList* completions, int64_t early_limit);
  ~MatchQueue();
  MatchQueue(const MatchQueue&) = delete;
  MatchQueue& operator=(const MatchQueue&) = delete;

  // Implements Endpoint::PostRecv. Empties hint.loan. Usually returns null, and the transport has
  // nothing to do. Otherwise returns a message that was sent by RTS. If dropped() is false for this
  // message, the receive has claimed it. The transport must then start the transfer (send CTS or
  // copy the message) and call Advance. If dropped() is true, the receive has failed, because it
  // does not match the message. The transport must then refuse the message and call Abandon.
  Incoming* Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint = {});

  // Looks for an early message of this tag. kWhole: the first early message is complete and has
  // this envelope and this length. It was copied to `into` and removed from the queue. kOther:
  // nothing was done, because the first early message differs or is not complete, or a receive is
  // posted.
  enum class Kept { kNothing, kWhole, kOther };
  Kept TakeKept(const Envelope& envelope, Bytes into);

  // Implements Endpoint::HasEarly.
  bool HasEarly(Tag tag) const {
    const Line* line = lines_.empty() ? nullptr : lines_.Find(tag);
    return line != nullptr && line->first_early != nullptr;
  }

  // The functions for the three forms of arrival. They must be called only from Poll. They call
  // Events::Accepts, and OnEarly if the message is kept. These events may revoke contexts and close
  // the endpoint, but must not destroy the endpoint. An error means that the peer has exceeded its
  // limits. The path must then fail.
  absl::Status Deliver(const Envelope& envelope, ConstBytes payload);
  // Never returns null. The transport holds the message until it is complete.
  absl::StatusOr<Incoming*> Begin(const Envelope& envelope, int64_t bytes);
  // Returns null if the queue keeps the message. A later Post then returns it. Otherwise returns
  // the message, with the same meaning as the result of Post. With `ahead`, returns also a message
  // that the queue keeps: its unclaimed() is true, and the transport holds it.
  absl::StatusOr<Incoming*> OnRts(const Envelope& envelope, int64_t bytes, uint64_t handle,
                                  bool ahead = false);
  // Must be called when `bytes` more bytes come of a message that was sent by RTS, and the sender
  // had not been asked for them, so that they cost credit. The transport must hold the message.
  absl::Status Ahead(Incoming* incoming, int64_t bytes);
  // Raises the limit of the cost of eager messages and data.
  void Lend(int64_t bytes) { early_limit_ += bytes; }

  // Must be called when the transport has written `bytes` more bytes to writable(), or has read and
  // discarded them. Returns true if the message is complete. The transport must then not use
  // `incoming` any more: the receive's completion is due, or the queue keeps the complete message.
  bool Advance(Incoming* incoming, int64_t bytes);
  // Must be called when the rest of a message will not come. A receive that has claimed the message
  // fails with `why`. The transport must not use `incoming` any more.
  void Fail(Incoming* incoming, const absl::Status& why);
  // Must be called for a dropped message whose bytes will not come. The transport must not use
  // `incoming` any more.
  void Abandon(Incoming* incoming);
  // Must be called when the sender withdraws an RTS, because the sender's process has revoked the
  // message's context. Returns true if the queue keeps the message. A receive that claims the
  // message later fails with `why`. The transport must not use the message any more.
  bool Withdraw(Tag tag, uint64_t handle, const absl::Status& why);
  // Does the same for an unclaimed message that the transport holds.
  void Withdraw(Incoming* incoming, const absl::Status& why);

  // Fails the receives of this context with `why`, and removes its early messages. Marks as dropped
  // its messages that the transport holds. Appends the handles of its kept RTS to `refused`, so
  // that the transport can tell the sender.
  void Revoke(Context mine, const absl::Status& why, std::vector<uint64_t>* refused);
  // Must be called when the path has ended. Receives that wait now, even those that have claimed a
  // message, fail with `why`. Later receives fail too. Exception: messages that have arrived
  // entirely stay for later receives, because the peer may have sent all its messages and ended.
  // The transport must not use any Incoming afterwards.
  void FailAll(const absl::Status& why);

  // Returns the cost of all eager messages that the queue keeps, complete or not.
  int64_t early_bytes() const { return early_bytes_; }
  // Returns the cost of the eager messages that were delivered or dropped since the last call. The
  // transport must return this cost to the sender as credit.
  int64_t TakeReleased();
  // Returns the number of receives that have no message yet.
  int64_t posted() const { return posted_; }
  // Returns true if a receive waits, or a transfer is under way. If not, a transport may look for
  // messages of the peer less often.
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
  // The result of TakePosted.
  enum class Match { kNone, kTaken, kMismatch };
  // Removes the first receive of the tag and stores it in `*taken`. kNone: the tag has no receive.
  // kMismatch: the removed receive has failed, because its descriptor or length differs.
  Match TakePosted(const Envelope& envelope, int64_t bytes, Posted* taken);
  Incoming* NewIncoming(const Envelope& envelope, int64_t bytes);
  void Recycle(Incoming* incoming);
  void Release(Incoming* incoming);
  // Must be called for a message that becomes dropped, but that the transport still holds. Returns
  // its credit and frees its memory.
  void ReleaseDropped(Incoming* incoming);
  void Hold(Incoming* incoming);
  void EndHold(Incoming* incoming);
  // Appends the message to its tag's Line. If it was not sent by RTS, allocates memory for its
  // payload.
  void Keep(Incoming* incoming);
  void GiveStorage(Incoming* incoming);
  // Enlarges the memory of a kept message to at least `bytes` bytes.
  void GrowStorage(Incoming* incoming, int64_t bytes);
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
  int64_t early_limit_;

  TagTable<Line> lines_;
  NodePool<Posted, &Posted::next> posted_pool_;
  NodePool<Incoming, &Incoming::next_> incoming_pool_;
  std::vector<std::unique_ptr<std::byte[]>> spares_;  // free blocks of kSpareBytes, for large
                                                      // messages
  std::vector<Incoming*> held_;
  absl::Status end_;  // not OK: FailAll was called
  int64_t posted_ = 0, early_bytes_ = 0, released_ = 0, kept_rts_ = 0;
};

// Returns the error of invariant 6 in transport.h.
absl::Status MismatchError(const Envelope& receive, int64_t receive_bytes, const Envelope& message,
                           int64_t message_bytes);

}  // namespace entrain
