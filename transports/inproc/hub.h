// The registry of this process's inproc transports (*instances*), and of the links between them
// that only one side has opened so far. Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

#include "transports/inproc/inbox.h"

namespace entrain {

// A send buffer out of which the receiver's thread copies the message, piece by piece.
//
//   kIdle --receiver--> kCopying --receiver--> kIdle        (acquire, release)
//   kIdle --sender----> kRevoked                            (acquire)
//
// The receiver reads `data` only in the state kCopying. To revoke the message, the sender waits for
// kIdle and sets kRevoked. It waits at most while the receiver copies one piece. After kRevoked,
// the receiver does not read `data`.
struct LentMessage {
  enum State : uint32_t { kIdle, kCopying, kRevoked };
  std::atomic<uint32_t> state{kIdle};
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  // Only the sender uses the members below.
  Tag tag;
  Completion* done = nullptr;  // completion of the send
  size_t at = 0;               // index in the sender's InprocEndpoint::open_
  bool open = false;
};

// The state that the two endpoints of a link share. It outlives both endpoints. So each endpoint
// may keep pointers to the LentMessages of the other side.
struct InprocPair {
  struct Side {
    std::shared_ptr<Inbox> inbox;  // null until this side has connected
    uint32_t slot = 0;             // slot of this side's endpoint in its transport
    // All LentMessages of this side. A new one is added only if none is free.
    std::deque<LentMessage> lent;
    std::vector<LentMessage*> free;  // only this side uses it
    // Cost of this side's eager messages that the other side has taken. The other side writes this
    // value, and this side reads it. Relaxed order, because it is only a count.
    std::atomic<int64_t> consumed{0};
  };
  Side side[2];
  // the reason why the first side closed before the second side connected; guarded by the hub's
  // mutex
  std::string closed;
};

class Hub {
 public:
  static Hub& OfThisProcess();

  // Registers a new instance and returns its number. Its address is "TOKEN/NUMBER".
  uint64_t Enter();
  void Leave(uint64_t instance);
  std::string AddressOf(uint64_t instance) const;
  // Returns the number of the instance with this address, or 0 if the address is not of this
  // process.
  uint64_t InstanceOf(absl::string_view address) const;

  struct Joined {
    std::shared_ptr<InprocPair> link;
    int side = 0;           // this side's index
    bool complete = false;  // the other side has connected already
    std::string closed;     // if the other side has closed already: its reason
  };
  // Opens the link between `mine` and `other`, or completes the link that `other` has opened. The
  // link is null if the other instance does not exist any more, or never did.
  Joined Join(uint64_t mine, uint64_t other, const std::shared_ptr<Inbox>& inbox, uint32_t slot);
  // Closes a link whose first side leaves for the reason `why`. If the second side has already
  // connected, does nothing and returns false.
  bool Abandon(InprocPair* link, absl::string_view why);

 private:
  Hub();

  const uint64_t random_;
  // Guards all members below. A std::mutex, because sanitizers understand it with any build of
  // Abseil.
  std::mutex mutex_;
  uint64_t next_ = 1;
  std::map<uint64_t, bool> alive_;
  // Links that only one side has opened. The key holds the smaller and the larger instance number.
  // `second` of the value is the instance that opened the link.
  std::map<std::pair<uint64_t, uint64_t>, std::pair<std::shared_ptr<InprocPair>, uint64_t>> half_;
};

}  // namespace entrain
