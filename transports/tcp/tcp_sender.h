// The sending half of a tcp path: what is to be written, in which order, and what may be written
// eagerly.
//
//   PostSend --> waiting --(small, credit)--> EAGER ---------------------------------> done
//                   \------(otherwise)------> ANNOUNCE --> announced
//                                                             |GRANT
//                                                          granted --> DATA, ... ----> done
//
// Order on the wire: urgent frames (control, grants, withdrawals) between any two others; then what
// waits, in the order posted (invariant 1); then the data of granted messages, one message after
// another. Nothing is staged: headers and the callers' memory go to the kernel in one gathering
// write.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "transports/matching.h"
#include "transports/tcp/frame.h"
#include "transports/transport.h"

namespace entrain {

class TcpSender {
 public:
  explicit TcpSender(CompletionList* completions) : completions_(completions) {}

  void Post(const Envelope& envelope, ConstBytes bytes, Completion* done);
  // As Endpoint::TrySend. False also where the socket might take a part only, as nobody may flush the
  // rest for long. Should it do so all the same (the kernel has no memory), the rest is copied, for
  // the next Flush.
  bool TrySend(int fd, const Envelope& envelope, ConstBytes bytes);
  void Control(absl::string_view text) { Urgent({.type = FrameType::kControl}, text); }
  void Grant(uint64_t message) { Urgent({.type = FrameType::kGrant, .message = message}, {}); }
  void Refuse(uint64_t message) { Urgent({.type = FrameType::kRefuse, .message = message}, {}); }
  // Credit to give back to the peer, with the next frame or, when it is much, in one of its own.
  void ReturnCredit(int64_t bytes) { credit_to_return_ += bytes; }

  // What the peer said. Errors are breaches of protocol.
  absl::Status OnCredit(int64_t bytes);
  absl::Status OnGrant(uint64_t message);
  absl::Status OnRefuse(uint64_t message);

  // Writes as much as the socket takes, up to a few MiB; returns bytes written.
  absl::StatusOr<int64_t> Flush(int fd);
  // Whether there is something to write.
  bool pending() const;
  // Whether a message waits for the peer's word.
  bool awaiting() const { return announced_ > 0; }

  // Sends with the peer's number `theirs` fail with `why`; what is half written is finished from a
  // copy.
  void Revoke(Context theirs, const absl::Status& why);
  // Everything fails. What is left to write is the frame half written, from a copy, and control.
  void FailAll(const absl::Status& why);
  // After FailAll: the CLOSE frame. Control handed in before still goes first.
  void Last(absl::string_view why) {
    Urgent({.type = FrameType::kClose}, why.substr(0, kMaxControlBytes));
  }

 private:
  // kFramed: all of it is in the ring of frames. kDead: revoked while in a queue, freed when its
  // turn comes.
  enum class State : uint8_t { kFree, kWaiting, kFramed, kAnnouncing, kAnnounced, kGranted, kDead };
  struct Send {
    Envelope envelope;
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t framed = 0, written = 0;  // of its data
    Completion* done = nullptr;
    uint64_t message = 0;  // generation * kPlaces + place, so that a stale number is recognised
    State state = State::kFree;
    bool queued = false;  // in waiting_ or granted_
  };
  // A frame that is going to be written next.
  struct Frame {
    FrameHeader header;
    const std::byte* payload = nullptr;  // the caller's memory, unless owned
    Send* send = nullptr;                // whose payload or announcement it is
    std::string owned;
    const void* data() const {
      return owned.empty() ? static_cast<const void*>(payload) : owned.data();
    }
    int64_t size() const { return static_cast<int64_t>(sizeof(header)) + PayloadOf(header); }
  };
  struct UrgentFrame {
    FrameHeader header;
    std::string payload;
  };
  static constexpr size_t kFrames = 32;
  static constexpr uint64_t kPlaces = 1 << 24;

  void Urgent(const FrameHeader& header, absl::string_view payload);
  Frame& NewFrame(const FrameHeader& header, Send* send, const std::byte* payload);
  Frame& At(size_t i) { return frames_[(first_ + i) % kFrames]; }
  // Makes frames of what is to be sent, until the ring is full or holds a few MiB.
  void Fill();
  bool FrameNext();
  void FrameWaiting(Send* send);
  void FrameData(Send* send);
  int64_t WriteFrames(int fd, int64_t* asked);
  int64_t WriteFrame(int fd, const Frame& frame);
  void Written(int64_t bytes);
  void FrameDone(const Frame& frame);
  Send* Find(uint64_t message);
  void Complete(Send* send, const absl::Status& status);
  void Free(Send* send);
  void TakeBack(Send* send, const absl::Status& why);
  // Takes the frames of `send` out of the ring; one that is half written is finished from a copy
  // (true).
  bool TakeFrames(Send* send);

  CompletionList* const completions_;
  std::deque<Send> sends_;
  std::vector<Send*> free_;
  std::deque<Send*> waiting_, granted_;  // may hold dead ones
  std::deque<UrgentFrame> urgent_;
  std::array<Frame, kFrames> frames_;  // a ring
  size_t first_ = 0, count_ = 0;
  int64_t first_written_ = 0;  // of the first frame, header included
  int64_t framed_bytes_ = 0;
  int64_t credit_used_ = 0, credit_to_return_ = 0;
  int64_t announced_ = 0;
  int64_t room_ = 0;  // in the socket, at least: what it was when last asked, less what was written
};

}  // namespace entrain
