// What one transport instance has been sent by the others and has not looked at: the only place
// where two ranks of this process meet, besides the state word of a lent buffer.
//
// Thread safety: Push from any thread; everything else from the thread that drives the owner. Kept
// alive by whoever may still push to it.
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

// One thing that happened, addressed to one endpoint of the owner.
struct Note {
  enum class Kind : uint8_t {
    kHello,     // the other side has connected
    kEager,     // a small message; payload: its bytes
    kAnnounce,  // a large one, waiting in `lent`
    kFinished,  // the receiver needs `lent` no more
    kWithdraw,  // the sender has revoked `lent`
    kControl,   // payload: the text
    kClosed,    // payload: why
  };
  Kind kind = Kind::kHello;
  uint32_t slot = 0;  // of the endpoint it is for
  uint32_t payload_bytes = 0;
  Envelope envelope{};
  LentMessage* lent = nullptr;
};

// Notes with their payloads one after another, in order. Reused, so that a warm one allocates
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

  // Exchanges what has come for `batch`, which must be clear. False when nothing has.
  bool Take(NoteBatch* batch);
  // False: something is there. True: the next Push makes fd() readable.
  bool Arm();
  void Disarm();
  int fd() const { return fd_; }

 private:
  explicit Inbox(int fd) : fd_(fd) {}

  const int fd_;  // eventfd
  // Whether notes are waiting. Written under the mutex; read without it only to skip taking it: a
  // note that is missed this way is seen by the next Poll, and Arm looks under the mutex.
  std::atomic<bool> any_{false};
  std::mutex mutex_;  // guards all below; std, as sanitizers see into it wherever Abseil comes from
  NoteBatch waiting_;
  bool armed_ = false;
  bool rung_ = false;
};

}  // namespace entrain
