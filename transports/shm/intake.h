// The receiving half of an endpoint: takes records out of the ring, gives messages to the
// MatchQueue, and fetches announced ones once they are wanted.
//
//   announced ──matched──> fetched   its front is read from the sender's memory, piece by piece,
//                     │              from Poll; the rest is asked for (kPush) and comes by the ring
//                     │              in fragments; either part may be all of it ──> kDone, if
//                     │              anything was read
//                     └──> lent      (it is mapped here, and the receive takes a loan)
//                                    ──Release──> kDone
//   announced by the next record, while TakeNow waits for it ──> read whole, at once ──> kDone
//
// The ring is emptied whether or not receives are posted: early messages go to the MatchQueue,
// within the credit that the sender has.
//
// Thread safety: none. Read calls Events, which may revoke and close but not destroy.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "transports/matching.h"
#include "transports/shm/channel.h"
#include "transports/shm/outbox.h"
#include "transports/shm/pace.h"
#include "transports/shm/peer_regions.h"
#include "transports/shm/wire.h"

namespace entrain::shm {

class Intake {
 public:
  Intake(Endpoint* endpoint, Events* events, CompletionList* completions, Outbox* outbox,
         const Limits& limits, Surroundings* around);
  void Attach(Channel* channel) { channel_ = channel; }

  // As Endpoint::PostRecv.
  void Post(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint);
  bool HasEarly(Tag tag) const { return queue_.HasEarly(tag); }
  // As Endpoint::Release.
  absl::Status Release(Loan* loan);
  // Memory that the peer has passed. An error: it broke the protocol.
  absl::Status TakeOffers();

  // As Endpoint::TryRecv. Settle ends a message that lies at `*where`, in the ring.
  Endpoint::Next TakeNow(const Envelope& envelope, Bytes into, const std::byte** where);
  // As Endpoint::TryTaken.
  Endpoint::Next HearNow(Ticket ticket);
  void Settle() {
    if (looked_at_ > 0 && channel_ != nullptr) {
      LetGo();
    }
  }

  // Whether Read or Pull has something to do, by one look at the ring's next line.
  bool MayHaveWork() { return Fetching() || channel_->reader().MayHaveNext(); }
  // The same, ordered after the caller's last seq_cst store.
  bool HasWork() { return Fetching() || channel_->reader().HasNext(); }
  // Some records. Returns how many. An error: the peer broke the protocol.
  absl::StatusOr<int> Read();
  // One piece of the first message that is being pulled. Returns events.
  int Pull();
  // The peer was found to be gone while pulling from it.
  bool peer_gone() const { return peer_gone_; }
  // What the peer said when it ended the connection; empty: nothing yet.
  const std::string& farewell() const { return farewell_; }

  void Revoke(Context mine, const absl::Status& why);
  void FailAll(const absl::Status& why);

 private:
  // Announced by the peer, and not finished.
  struct Remote {
    Tag tag;
    uint64_t bytes = 0, address = 0;
    uint64_t handle = 0;                         // the peer's
    std::shared_ptr<const PeerRegion> region{};  // that it lies in; null: not mapped here
    Incoming* incoming = nullptr;                // matched: held until it is complete
    bool lent = false;
    bool revoked = false;  // here, while it was lent: the sender has been told
    // Read from the sender's memory: [0, front), of which [0, read) is here.
    uint64_t read = 0, front = 0;
    // Through the ring: [next, until) is asked for and not here yet.
    uint64_t next = 0, until = 0;
    uint64_t pulling = 0, pushing = 0;  // as counted below
    bool unreadable = false;            // what is left of the front must be asked for too
    bool last = false;                  // asked for in the end: the sender does not wait for kDone
    bool weighed = false;               // the work was: so its copies are timed for that
    std::optional<LoneMessages::Way> way{};  // it came alone: timed
    int64_t since = 0;
    const std::byte* data() const { return region->At(address); }
  };
  absl::Status Handle(const RingReader::Record& record);
  absl::Status OnEager(ConstBytes payload);
  absl::Status OnAnnounce(const WireAnnounce& wire);
  absl::Status OnFragment(ConstBytes payload);
  void OnWithdraw(Context context);
  // A message has met its receive, or is not wanted.
  void Fetch(Incoming* incoming);
  bool Fetching() const { return !fresh_.empty() || !pulls_.empty(); }
  // How much of it to read from the sender's memory; the rest goes through the ring.
  uint64_t Decide(Remote* remote);
  // What is left of its front from `from` on.
  void AskForPush(Remote* remote, uint64_t handle, uint64_t from);
  void Forget(uint64_t handle);
  void Lend(Remote* remote, uint64_t handle);
  void PullPiece(Remote* remote, uint64_t handle);
  // Such a copy of its bytes took from `start` to now.
  void Timed(const Remote& remote, Pace::Copy copy, size_t bytes, int64_t start);
  PeerProcess::Read ReadPiece(const Remote& remote, Bytes into, size_t* got) const;
  // After more of it has come, or turned out unreadable. Ends it when all is here.
  void Proceed(Remote* remote, uint64_t handle);
  // Tells the sender that its buffer is free, and forgets.
  void Finish(uint64_t handle);
  void ReturnCredit();
  void LetGo();
  // Takes the message, or finds it in the ring, where it stays until Settle.
  Endpoint::Next FindNow(const Envelope& envelope, Bytes into, const std::byte** data);
  // The next record that is not the end of a message of ours; those are taken, but not without end.
  // False: there is none.
  bool PeekPastEnds(RingReader::Record* record);
  // Reads a message that is announced by the next record, and takes that. False: Poll must see to it.
  bool ReadNow(const Envelope& envelope, ConstBytes payload, Bytes into);
  // Its bytes: from the sender's memory; from its region, which is mapped here if that goes.
  bool ReadWhole(uint64_t address, Bytes into);
  bool CopyMapped(const WireAnnounce& wire, Bytes into);
  // Reads what of the message is not mapped to its place beside the mapping.
  bool Complete(const PeerRegion& region, uint64_t address, uint64_t bytes);
  // Whether a message of this length is to come both ways at once.
  bool Shares(uint64_t bytes);
  // Whether the sender can copy too: it waits, has a core, and does not fetch from here itself.
  bool SenderMayCopy() const;
  // How much of the next record TakeEarly has copied there.
  size_t EarlyBytes(Bytes into) const;
  // Copies what is there of a message for this receive that is being written. False: nothing new.
  bool TakeEarly(const Envelope& envelope, Bytes into);
  // Not after every record: nothing waits for so little room, as any record fits the rest.
  void ReleaseNowAndThen();

  Events* const events_;
  Endpoint* const endpoint_;
  Outbox* const outbox_;
  const Limits limits_;
  Surroundings* const around_;
  Channel* channel_ = nullptr;
  MatchQueue queue_;
  PeerRegions regions_;
  HandleTable<Remote> remotes_;         // its numbers are the MatchQueue's handles
  uint64_t pulling_ = 0, pushing_ = 0;  // bytes of messages under way, by how they come
  Pace pace_;
  std::optional<LoneMessages::Way> way_next_;  // it has been asked, and said so
  unsigned fragments_ = 0;
  std::vector<uint64_t> fresh_;    // matched since the last Pull
  std::list<uint64_t> pulls_;      // whose front is read
  std::vector<uint64_t> refused_;  // room for Revoke
  std::string farewell_;
  int64_t looked_at_ =
      0;  // the cost of the message that FindNow gave and that is still in the ring
  // What TakeEarly has copied of the record that begins `at`, for which receive.
  struct {
    uint64_t at = 0;
    Bytes into;
    size_t bytes = 0;
  } early_;
  bool peer_gone_ = false, ended_ = false;
};

}  // namespace entrain::shm
