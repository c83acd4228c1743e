// Where ranks of one process find each other: which transport instances exist, and the links that
// one side has opened. Thread safety: any thread.
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

// A send buffer that the receiver copies from by itself, piece by piece.
//
//   kIdle --receiver--> kCopying --receiver--> kIdle        (acquire, release)
//   kIdle --sender----> kRevoked                            (acquire)
//
// The receiver reads `data` only while it has put the word to kCopying; so once the sender has put
// it to kRevoked, which waits for one piece at most, nobody reads `data` again.
struct LentMessage {
  enum State : uint32_t { kIdle, kCopying, kRevoked };
  std::atomic<uint32_t> state{kIdle};
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  // The sender's alone.
  Tag tag;
  Completion* done = nullptr;  // null once it has been run
  size_t at = 0;               // its place among the sender's open ones
  bool open = false;
};

// Two endpoints. Outlives both, so that each may hold pointers to what the other has lent.
struct InprocPair {
  struct Side {
    std::shared_ptr<Inbox> inbox;  // null until this side has connected
    uint32_t slot = 0;             // of its endpoint in its transport
    std::deque<LentMessage>
        lent;  // every record it ever made; grows to the most that were open at once
    std::vector<LentMessage*> free;  // the side's own thread only
    // Cost of the eager messages that the *other* side has taken from this one. Written by the
    // other side (relaxed: it is only a count), read by this one.
    std::atomic<int64_t> consumed{0};
  };
  Side side[2];
  std::string closed;  // why the first side has gone before the second came; guarded by the hub
};

class Hub {
 public:
  static Hub& OfThisProcess();

  // A new instance; its address is "TOKEN/NUMBER".
  uint64_t Enter();
  void Leave(uint64_t instance);
  std::string AddressOf(uint64_t instance) const;
  // The number in an address of this process; 0 for any other text.
  uint64_t InstanceOf(absl::string_view address) const;

  struct Joined {
    std::shared_ptr<InprocPair> link;
    int side = 0;           // mine
    bool complete = false;  // the other side is there already
    std::string closed;     // ... and why it has closed, if it has
  };
  // Opens the link between `mine` and `other`, or completes it. Null link: there is no such
  // instance (any more).
  Joined Join(uint64_t mine, uint64_t other, const std::shared_ptr<Inbox>& inbox, uint32_t slot);
  // The first side goes before the second came. False: the second has come.
  bool Abandon(InprocPair* link, absl::string_view why);

 private:
  Hub();

  const uint64_t random_;
  std::mutex mutex_;  // guards all below; std, as sanitizers see into it wherever Abseil comes from
  uint64_t next_ = 1;
  std::map<uint64_t, bool> alive_;
  // By (smaller, larger) instance: links with one side. The value's second is the instance that
  // opened it.
  std::map<std::pair<uint64_t, uint64_t>, std::pair<std::shared_ptr<InprocPair>, uint64_t>> half_;
};

}  // namespace entrain
