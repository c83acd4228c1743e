// A queue of notes for one transport instance, the owner. Other instances push notes into it. Apart
// from inboxes, two ranks of this process share only their InprocPair.
//
// Thread safety: Push from any thread; all other functions only from the driver of the owner's
// engine. Each instance that may push into the inbox owns a reference to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "transports/transport.h"

namespace entrain {

struct LentMessage;

// One event for one endpoint of the owner.
struct Note {
  enum class Kind : uint8_t {
    kHello,     // the other side has connected
    kEager,     // a small message; payload: its bytes
    kRts,       // a large message, which waits in `lent`
    kFinished,  // the receiver does not need `lent` any more
    kWithdraw,  // the sender has revoked `lent`
    kControl,   // payload: the text
    kClosed,    // payload: the reason
  };
  Kind kind = Kind::kHello;
  uint32_t slot = 0;  // slot of the endpoint
  uint32_t payload_bytes = 0;
  Envelope envelope{};
  LentMessage* lent = nullptr;
};

// Notes in order, and their payloads one after another. Batches are reused, so that in the long run
// they allocate nothing.
struct NoteBatch {
  std::vector<Note> notes;
  std::vector<std::byte> payloads;

  void Add(const Note& note, ConstBytes payload);
  void Clear();
};

class Inbox {
 public:
  static absl::StatusOr<std::shared_ptr<Inbox>> Create();
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  void Push(const Note& note, ConstBytes payload);

  // Moves the waiting notes into `*batch`, which must be empty. Returns false if no notes are
  // waiting.
  bool Take(NoteBatch* batch);
  // Returns false if a note is waiting. If true, the next Push makes fd() readable.
  bool Arm();
  void Disarm();
  int fd() const { return fd_; }

 private:
  explicit Inbox(int fd) : fd_(fd) {}

  const int fd_;  // eventfd
  // True if notes are waiting. Written under the mutex. Take reads it without the mutex, to avoid
  // the lock if there are no notes. So Take may miss a note, but the next Poll finds that note. Arm
  // reads under the mutex, so it misses none.
  std::atomic<bool> any_{false};
  // Guards all members below. A std::mutex, because sanitizers understand it with any build of
  // Abseil.
  std::mutex mutex_;
  NoteBatch waiting_;
  bool armed_ = false;
  bool rung_ = false;
};

}  // namespace entrain
