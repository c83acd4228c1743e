// The sending half of an endpoint: messages to the peer, small ones through the ring, large ones
// announced there and fetched by the peer; and whatever else goes through the ring in this
// direction.
//
// What does not fit the ring at once waits in a queue, controls before messages. The peer empties
// its ring whether or not receives are posted, so the queue moves on as long as the peer polls: no
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
#include "transports/shm/pace.h"
#include "transports/shm/wire.h"

namespace entrain::shm {

struct Limits {
  size_t ring_bytes = 512 << 10;
  size_t eager_bytes = 32 << 10;  // the largest message that is copied through the ring
  // The same where processes have cores of their own and the receiver may read the sender's memory.
  size_t quick_bytes = RingPaysUpTo();
  size_t fragment_bytes = 32 << 10;
  int64_t credit = 1 << 20;        // cost of eager messages that the receiver has not taken
  size_t piece_bytes = 256 << 10;  // read from the peer's memory in one turn of Poll
  // The same by who waits for just this message; where the sender may as well get the core meanwhile.
  size_t at_once_bytes = 1 << 20, crowded_at_once_bytes = 2 << 20;
  // Messages from this size may come in both ways at once.
  size_t share_bytes = Pace::kLeastAlone;
};

// What the endpoints of one transport know together.
struct Surroundings {
  const Clock* clock = nullptr;
  bool spare_cores = false;  // every process that is connected can have a core of its own
  // Endpoints with announcements that are not over: of our messages, of the peer's.
  int sending = 0, receiving = 0;
};

class Outbox {
 public:
  // `regions`: of this process, to be offered to the peer; may be null.
  Outbox(CompletionList* completions, const Limits& limits, const SharedRegions* regions,
         Surroundings* around);
  // The connection stands. Until then everything waits.
  void Attach(Channel* channel);
  // Surroundings::spare_cores may have changed; once attached.
  void OnCores();

  // As Endpoint::PostSend.
  void Send(const Envelope& envelope, ConstBytes bytes, Completion* done);
  // As Endpoint::TrySend.
  Endpoint::Sent SendNow(const Envelope& envelope, ConstBytes bytes, Ticket* ticket);
  // As Endpoint::TryTaken (whether it is back) and Await.
  bool IsBack(Ticket ticket) { return announced_.Find(ticket.number) == nullptr; }
  void Await(Ticket ticket, Completion* done);
  // Says at once that a message has been read. False: no room; nothing was done.
  bool DoneNow(const WireDone& wire);
  // Any record without a buffer; copied.
  void Control(Kind kind, ConstBytes payload);
  template <typename Wire>
  void Control(Kind kind, const Wire& wire) {
    Control(kind, ConstBytes(reinterpret_cast<const std::byte*>(&wire), sizeof(wire)));
  }

  // What waits, as far as there is room. Returns records written.
  int Flush();
  // Messages that the peer has still to fetch.
  bool announced() const { return announced_.size() > 0; }
  // Something waits for room, or for the connection.
  bool waiting() const { return !controls_.empty() || !sends_.empty() || !pushes_.empty(); }
  // ... and Flush would write some of it. Ordered after the caller's last seq_cst store.
  bool CanFlush();

  // Records from the peer about our announcements. An error: it broke the protocol.
  absl::Status OnDone(const WireDone& wire);
  absl::Status OnPush(const WirePush& wire);

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
  // Announced, not fetched.
  struct Announced {
    Tag tag;
    ConstBytes bytes;
    Completion* done = nullptr;  // null: somebody asks IsBack
    uint64_t to = 0;             // kFragment
    size_t next = 0, until = 0;  // asked for, not yet sent
    bool last = false;           // done when they are
  };
  struct Record {
    Kind kind;
    std::string payload;
  };
  // False: no room.
  bool TrySend(const Waiting& message);
  // Small, and there is credit.
  bool IsEager(ConstBytes bytes);
  // `conversing`: the sender waits for an answer, so the ring may begin again.
  bool TryEager(const Envelope& envelope, ConstBytes bytes, bool conversing);
  bool TryAnnounce(const Waiting& message);
  bool AnnounceNow(const Envelope& envelope, ConstBytes bytes, Ticket* ticket);
  // The room is reserved at `at`.
  uint64_t Announce(std::byte* at, const Waiting& message);
  // The region that the bytes lie in, known to the peer from now on; 0: none.
  uint64_t Offer(ConstBytes bytes);
  bool TryControl(Kind kind, ConstBytes payload);
  void ChooseEager();
  int Push();
  // It is over for the peer too.
  void Conclude(uint64_t handle, const absl::Status& status, size_t moved);
  int64_t Credit();

  CompletionList* const completions_;
  const SharedRegions* const regions_;
  Surroundings* const around_;
  Limits limits_;
  size_t eager_now_ = 0;     // of the limits, which counts
  bool peer_reads_ = false;  // our memory: as we read its, until it asks for a small one instead
  Channel* channel_ = nullptr;
  // Lists, as most paths never have anything that waits: a deque takes its first block when made.
  std::list<Record> controls_;
  std::list<Waiting> sends_;
  HandleTable<Announced> announced_;
  std::set<uint64_t> offered_;  // regions that the peer knows
  std::list<uint64_t> pushes_;  // handles of those asked for through the ring
  unsigned fragments_ = 0;
  CopyTime put_;                 // into the ring, of fragments
  uint64_t eager_cost_ = 0;      // of all eager messages ever sent
  uint64_t known_consumed_ = 0;  // of those, what the peer is known to have taken
};

}  // namespace entrain::shm
