// The sending half of an endpoint. Copies small messages into the ring (eager), sends RTS for the others, sends
// those through the ring that the peer asks for (CTS), and writes all other records of this direction.
//
// A record that does not fit the ring at once waits in a list, controls before messages. The peer empties
// its ring whether or not receives are posted, so the lists move on as long as the peer polls: no
// message waits for another's receive.
//
// Thread safety: none. Completions go to the CompletionList; nothing calls back.
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
  int64_t credit = 1 << 20;            // cost of eager messages that the receiver has not taken
  size_t piece_bytes = 256 << 10;      // copied from the peer's memory in one turn of Poll
  size_t at_once_bytes = 1 << 20;      // the same for a receive that waits for just this message
  bool quick_reads = ReadsAreQuick();  // Facts::quick_reads
};

class TxQueue {
 public:
  // `regions`: of this process, to be offered to the peer; may be null.
  TxQueue(CompletionList* completions, const Limits& limits, const SharedRegions* regions)
      : completions_(completions), regions_(regions), limits_(limits) {}
  // The connection stands. Until then everything waits.
  void Attach(Channel* channel);
  // Facts::spare_cores may have changed; once attached.
  void SetSpareCores(bool spare_cores);

  // As Endpoint::PostSend.
  void Send(const Envelope& envelope, ConstBytes bytes, Completion* done);
  // As Endpoint::TrySend.
  Endpoint::Sent SendNow(const Envelope& envelope, ConstBytes bytes, SendRequest* request);
  // As Endpoint::TryTaken (whether it is back) and Await.
  bool IsBack(SendRequest request) { return unfetched_.Find(request.number) == nullptr; }
  void Await(SendRequest request, Completion* done);
  // Tells the peer at once that a message has been read. False: no room; nothing was done.
  bool DoneNow(const WireDone& wire);
  // Any record without a buffer; copied.
  void Control(Kind kind, ConstBytes payload);
  template <typename Wire>
  void Control(Kind kind, const Wire& wire) {
    Control(kind, ConstBytes(reinterpret_cast<const std::byte*>(&wire), sizeof(wire)));
  }

  // Writes what waits, as far as there is room. Returns the number of records.
  int Flush();
  // Whether the peer has still to take a message sent by RTS.
  bool awaiting() const { return unfetched_.size() > 0; }
  // Whether something waits for room, or for the connection.
  bool waiting() const { return !controls_.empty() || !sends_.empty() || !asked_.empty(); }
  // Whether Flush would write some of it. Ordered after the caller's last seq_cst store.
  bool CanFlush();

  // Records from the peer about our RTS. An error: it broke the protocol.
  absl::Status OnDone(const WireDone& wire);
  absl::Status OnCts(const WireCts& wire);

  // As Transport::Retire.
  void Retire(const SharedRegion& region);

  // Sends to this context fail; the peer does not use what it reads of them any more.
  void Revoke(Context theirs, const absl::Status& why);
  void FailAll(const absl::Status& why);

 private:
  struct Waiting {
    Envelope envelope;
    ConstBytes bytes;
    Completion* done;
  };
  // Sent by RTS, and not over.
  struct Unfetched {
    Tag tag;
    ConstBytes bytes;
    Completion* done = nullptr;  // null: somebody asks IsBack
    bool asked_for = false;      // by kCts: the message is done when all from `next` on is sent
    uint64_t to = 0;             // WireFragment::to
    size_t next = 0;
  };
  struct Record {
    Kind kind;
    std::string payload;
  };
  // False: no room.
  bool TrySend(const Waiting& message);
  bool IsEager(ConstBytes bytes);
  // `conversing`: the sender waits for an answer, so the ring may begin again.
  bool TryEager(const Envelope& envelope, ConstBytes bytes, bool conversing);
  bool TryRts(const Waiting& message);
  bool RtsNow(const Envelope& envelope, ConstBytes bytes, SendRequest* request);
  // Writes the record to `at`, where there is room for it. Returns the handle.
  uint64_t WriteRts(std::byte* at, const Waiting& message);
  // The region that the bytes lie in, known to the peer from now on; 0: none.
  uint64_t Offer(ConstBytes bytes);
  bool TryControl(Kind kind, ConstBytes payload);
  // Fragments of all messages that are asked for, in turn, as far as there is room.
  int SendFragments();
  bool SendFragment(Unfetched* message);  // false: no room
  // It is over for the peer too.
  void Conclude(uint64_t handle, const absl::Status& status, size_t moved);
  int64_t Credit();

  CompletionList* const completions_;
  const SharedRegions* const regions_;
  Limits limits_;
  // Of messages from here. can_read: as this side can read, until the peer asks for a small message instead.
  Facts facts_;
  Channel* channel_ = nullptr;
  // Lists, as most paths never have anything that waits: a deque takes its first block when made.
  std::list<Record> controls_;
  std::list<Waiting> sends_;
  HandleTable<Unfetched> unfetched_;
  std::set<uint64_t> offered_;   // regions that the peer knows
  std::list<uint64_t> asked_;    // handles of those asked for through the ring
  uint64_t eager_cost_ = 0;      // of all eager messages ever sent
  uint64_t known_consumed_ = 0;  // of those, what the peer is known to have taken
};

}  // namespace entrain::shm
