// The sending half of an endpoint. Copies small messages into the ring (eager), and sends an RTS
// for any other message. If the peer answers with CTS, sends the message through the ring. Also
// writes all other records of this direction.
//
// If a record does not fit the ring at once, it waits in a list. Control records go before
// messages. The peer empties the ring even if no receives are posted. So the lists become shorter
// while the peer polls, and no message waits for the receive of another message.
//
// Thread safety: none. Completions go to the CompletionList. This class has no other callbacks.
#pragma once

#include <cstdint>
#include <list>
#include <set>
#include <string>

#include "absl/status/status.h"

#include "lib/base/bytes.h"
#include "transports/matching.h"
#include "transports/shm/channel.h"
#include "transports/shm/ways.h"
#include "transports/shm/wire.h"

namespace entrain::shm {

struct Limits {
  size_t ring_bytes = 512 << 10;
  size_t fragment_bytes = 32 << 10;
  int64_t credit = 1 << 20;        // largest cost of eager messages that the receiver has not yet
                                   // taken
  size_t piece_bytes = 256 << 10;  // most bytes copied from the peer's memory in one Poll
  // largest message that RxQueue::TakeNow copies from the peer's memory at once
  size_t at_once_bytes = 1 << 20;
  Reads reads = MeasuredReads();  // Facts::reads
};

class TxQueue {
 public:
  // `regions`: the regions of this process that this object may offer to the peer. May be null.
  TxQueue(CompletionList* completions, const Limits& limits, const SharedRegions* regions)
      : completions_(completions), regions_(regions), limits_(limits) {}
  // Must be called when the connection is established. Until then all records wait.
  void Attach(Channel* channel);
  // Must be called when Facts::spare_cores may have changed, after Attach.
  void SetSpareCores(bool spare_cores);

  // See Endpoint::PostSend.
  void Send(const Envelope& envelope, ConstBytes bytes, Completion* done);
  // See Endpoint::TrySend.
  Endpoint::Sent SendNow(const Envelope& envelope, ConstBytes bytes, SendRequest* request);
  // For Endpoint::TryTaken and Endpoint::Await. IsBack returns true if the peer has taken the
  // message.
  bool IsBack(SendRequest request) { return unfetched_.Find(request.number) == nullptr; }
  void Await(SendRequest request, Completion* done);
  // Tells the peer that this side has read a message of the peer. Returns false, and does nothing,
  // if the ring has no room or other records wait.
  bool DoneNow(const WireDone& wire);
  // Sends a record that refers to no buffer. Copies the payload.
  void Control(Kind kind, ConstBytes payload);
  template <typename Wire>
  void Control(Kind kind, const Wire& wire) {
    Control(kind, ConstBytes(reinterpret_cast<const std::byte*>(&wire), sizeof(wire)));
  }

  // Writes waiting records as far as there is room. Returns their number.
  int Flush();
  // Returns true if the peer has not yet taken a message sent by RTS.
  bool awaiting() const { return unfetched_.size() > 0; }
  // Returns true if a record waits for room, or for the connection.
  bool waiting() const { return !controls_.empty() || !sends_.empty() || !asked_.empty(); }
  // Returns true if Flush would write a record. Ordered after the caller's last seq_cst store.
  bool CanFlush();

  // ---- Functions for the peer's records about messages that this side has sent by RTS. They
  // return an error if the peer broke the protocol.
  absl::Status OnDone(const WireDone& wire);
  absl::Status OnCts(const WireCts& wire);

  // See Transport::Retire.
  void Retire(const SharedRegion& region);

  // Fails the sends to this context. If the peer is reading their bytes, it will discard these
  // bytes.
  void Revoke(Context theirs, const absl::Status& why);
  void FailAll(const absl::Status& why);

 private:
  struct Waiting {
    Envelope envelope;
    ConstBytes bytes;
    Completion* done;
  };
  // A message that was sent by RTS and is not over.
  struct Unfetched {
    Tag tag;
    ConstBytes bytes;
    Completion* done = nullptr;  // null: the caller polls IsBack
    bool asked_for = false;      // the peer has sent kCts. The message is done when all bytes from
                                 // `next` on are sent
    uint64_t to = 0;             // WireFragment::to
    size_t next = 0;
  };
  struct Record {
    Kind kind;
    std::string payload;
  };
  // Returns false if there is no room.
  bool TrySend(const Waiting& message);
  bool IsEager(ConstBytes bytes);
  // `conversing`: the caller uses the fast path, and probably waits for an answer. So this is
  // again_in_front of RingWriter::Reserve.
  bool TryEager(const Envelope& envelope, ConstBytes bytes, bool conversing);
  bool TryRts(const Waiting& message);
  bool RtsNow(const Envelope& envelope, ConstBytes bytes, SendRequest* request);
  // Writes the RTS to `at`, which Reserve has returned. Returns the message's handle.
  uint64_t WriteRts(std::byte* at, const Waiting& message);
  // Returns the id of the region that contains the bytes. Offers the region to the peer if the peer
  // does not know it. Returns 0 if there is no such region, or if the offer was not possible.
  uint64_t Offer(ConstBytes bytes);
  bool TryControl(Kind kind, ConstBytes payload);
  // Writes fragments of all messages in asked_, in turn, as far as there is room.
  int SendFragments();
  bool SendFragment(Unfetched* message);  // returns false if there is no room
  // Runs the completion of a message, if it has one, and removes the message.
  void Conclude(uint64_t handle, const absl::Status& status, size_t moved);
  int64_t Credit();

  CompletionList* const completions_;
  const SharedRegions* const regions_;
  Limits limits_;
  // The facts for the messages that this side sends. This side does not know whether the peer can
  // read its memory. So at first, can_read says whether this side can read the peer's memory.
  // can_read becomes false if the peer sends a CTS for a small message instead of reading it.
  Facts facts_;
  Channel* channel_ = nullptr;
  // These are std::list, not std::deque: most paths never have a waiting record, and a deque
  // allocates its first block at once.
  std::list<Record> controls_;
  std::list<Waiting> sends_;
  HandleTable<Unfetched> unfetched_;
  std::set<uint64_t> offered_;   // regions that the peer knows
  std::list<uint64_t> asked_;    // handles of messages for which the peer has sent kCts
  uint64_t eager_cost_ = 0;      // cost of all eager messages ever sent
  uint64_t known_consumed_ = 0;  // the part of eager_cost_ that the peer has reported as taken
};

}  // namespace entrain::shm
