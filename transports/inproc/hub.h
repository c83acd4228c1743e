// The registry of the transport instances of this process, and of links that only one side has
// opened. Thread safety: any thread.
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

// A send buffer from which the receiver copies by itself, piece by piece.
//
//   kIdle --receiver--> kCopying --receiver--> kIdle        (acquire, release)
//   kIdle --sender----> kRevoked                            (acquire)
//
// The receiver reads `data` only in the state kCopying. The sender sets kRevoked only from kIdle,
// and waits for one piece at most. After that nobody reads `data`.
struct LentMessage {
  enum State : uint32_t { kIdle, kCopying, kRevoked };
  std::atomic<uint32_t> state{kIdle};
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  // Only for the sender.
  Tag tag;
  Completion* done = nullptr;  // null once it has run
  size_t at = 0;               // its index among the sender's open messages
  bool open = false;
};

// The two endpoints of a link. Outlives both, so each may hold pointers to the other's messages.
struct InprocPair {
  struct Side {
    std::shared_ptr<Inbox> inbox;  // null until this side has connected
    uint32_t slot = 0;             // slot of its endpoint in its transport
    // All records of this side. A record is made only if none is free.
    std::deque<LentMessage> lent;
    std::vector<LentMessage*> free;  // used only by the side's own thread
    // Cost of the eager messages that the *other* side has taken from this one. The other side
    // writes it (relaxed, since it is only a count), and this one reads it.
    std::atomic<int64_t> consumed{0};
  };
  Side side[2];
  // reason of the first side for closing before the second came; guarded by the hub
  std::string closed;
};

class Hub {
 public:
  static Hub& OfThisProcess();

  // Registers a new instance. Its address is "TOKEN/NUMBER".
  uint64_t Enter();
  void Leave(uint64_t instance);
  std::string AddressOf(uint64_t instance) const;
  // Returns the number in an address of this process, or 0 for any other text.
  uint64_t InstanceOf(absl::string_view address) const;

  struct Joined {
    std::shared_ptr<InprocPair> link;
    int side = 0;           // this side's index
    bool complete = false;  // the other side has connected already
    std::string closed;     // ... and its reason, if it has closed
  };
  // Opens the link between `mine` and `other`, or completes it. The link is null if the other
  // instance does not exist, or not any more.
  Joined Join(uint64_t mine, uint64_t other, const std::shared_ptr<Inbox>& inbox, uint32_t slot);
  // Closes the link with `why` because its first side leaves. Returns false, and does nothing, if
  // the second side has come.
  bool Abandon(InprocPair* link, absl::string_view why);

 private:
  Hub();

  const uint64_t random_;
  std::mutex mutex_;  // guards all members below; std, since sanitizers understand it with any
                      // build of Abseil
  uint64_t next_ = 1;
  std::map<uint64_t, bool> alive_;
  // Links with one side, by (smaller, larger) instance. `second` of a value is the instance that
  // opened the link.
  std::map<std::pair<uint64_t, uint64_t>, std::pair<std::shared_ptr<InprocPair>, uint64_t>> half_;
};

}  // namespace entrain
