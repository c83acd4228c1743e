// The notes that other instances have sent to one transport instance and that this instance has not
// read yet. Besides the state word of a lent buffer, this is the only place that two ranks of this
// process share.
//
// Thread safety: Push from any thread; everything else from the thread that drives the owner. Every
// instance that may still push keeps the inbox alive.
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

// One event, addressed to one endpoint of the owner.
struct Note {
  enum class Kind : uint8_t {
    kHello,     // the other side has connected
    kEager,     // a small message; payload: its bytes
    kRts,       // a large message that waits in `lent`
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

// Notes in order, and their payloads one after another. Reused, so that a warm batch allocates
// nothing.
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

  // Moves the waiting notes into `batch`, which must be clear. Returns false if there are none.
  bool Take(NoteBatch* batch);
  // Returns false if a note is waiting. If true, the next Push makes fd() readable.
  bool Arm();
  void Disarm();
  int fd() const { return fd_; }

 private:
  explicit Inbox(int fd) : fd_(fd) {}

  const int fd_;  // eventfd
  // True if notes are waiting. Written under the mutex. Take reads it without the mutex, only to
  // skip the lock: the next Poll sees a note that was missed this way, and Arm looks under the
  // mutex.
  std::atomic<bool> any_{false};
  std::mutex mutex_;  // guards all members below; std, since sanitizers understand it with any
                      // build of Abseil
  NoteBatch waiting_;
  bool armed_ = false;
  bool rung_ = false;
};

}  // namespace entrain
