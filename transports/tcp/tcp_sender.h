// The sending half of a tcp path: frames of what is to be written, in which order. Which messages,
// and what may go eagerly: RendezvousSender.
//
// Order on the wire: urgent frames (control, CTS, WITHDRAW) between any two others, then the
// messages whose turn it is. Nothing is staged: headers and the callers' memory go to the kernel in
// one gathering write.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"

#include "transports/rendezvous_receiver.h"
#include "transports/rendezvous_sender.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/tcp_streams.h"
#include "transports/transport.h"

namespace entrain {

class TcpSender final : public Answers {
 public:
  // `streams` outlives this.
  TcpSender(CompletionList* completions, TcpStreams* streams)
      : outgoing_(completions), streams_(streams) {}

  // Messages: to post, and for what the peer says of them.
  RendezvousSender& outgoing() { return outgoing_; }
  bool awaiting() const { return outgoing_.awaiting(); }
  // As Endpoint::TrySend: true if the message is copied. False also where the socket might take a part only, as nobody may flush the
  // rest for long. Should it do so all the same (the kernel has no memory), the rest is copied, for
  // the next Flush.
  bool TrySend(int fd, const Envelope& envelope, ConstBytes bytes);
  void Control(absl::string_view text) { Urgent({.type = PacketType::kControl}, text); }
  void ClearToSend(uint64_t message) override {
    Urgent({.type = PacketType::kCts, .message = message}, {});
  }
  void Refuse(uint64_t message) override {
    Urgent({.type = PacketType::kRefuse, .message = message}, {});
  }
  void ReturnCredit(int64_t bytes) override { outgoing_.ReturnCredit(bytes); }
  // Of streams.
  void Want(int streams) {
    Urgent({.type = PacketType::kWant, .message = static_cast<uint64_t>(streams)}, {});
  }
  void Stands(int stream) {
    Urgent({.type = PacketType::kStands, .message = static_cast<uint64_t>(stream)}, {});
  }

  // Writes as much as the sockets take, up to a few MiB; returns bytes written.
  absl::StatusOr<int64_t> Flush(int fd);
  // Whether there is something to write.
  bool pending() const;
  // Whether the last Flush ended because the sockets take no more, and `fd` among them.
  bool stuck() const { return stuck_; }
  // How writing failed, if it did: the kernel says so once, and then that the connection is closed.
  int error() const { return error_; }
  bool framed() const { return count_ > 0; }
  // Payloads that are worth a stream, since the path began.
  int64_t large_bytes() const { return large_bytes_; }
  // By the first connection, likewise.
  int64_t written_bytes() const { return written_bytes_; }

  // Sends with the peer's number `theirs` fail with `why`; what is half written is finished from a
  // copy.
  void Revoke(Context theirs, const absl::Status& why);
  // Everything fails. What is left to write is the frame half written, from a copy, and control.
  void FailAll(const absl::Status& why);
  // After FailAll: the CLOSE frame. Control handed in before still goes first.
  void Last(absl::string_view why) {
    Urgent({.type = PacketType::kClose}, why.substr(0, kMaxControlBytes));
  }

 private:
  // A frame that is going to be written next.
  struct Frame {
    PacketHeader header;
    const std::byte* payload = nullptr;  // the caller's memory, unless owned
    Outgoing* send = nullptr;            // whose payload or RTS it is
    std::string owned;
    const void* data() const {
      return owned.empty() ? static_cast<const void*>(payload) : owned.data();
    }
    int64_t size() const { return static_cast<int64_t>(sizeof(header)) + PayloadOf(header); }
  };
  struct UrgentFrame {
    PacketHeader header;
    std::string payload;
  };
  static constexpr size_t kFrames = 32;

  void Urgent(const PacketHeader& header, absl::string_view payload);
  Frame& NewFrame(const PacketHeader& header, Outgoing* send, const std::byte* payload);
  Frame& At(size_t i) { return frames_[(first_ + i) % kFrames]; }
  // Makes frames of what is to be sent, until the ring is full or holds a few MiB.
  void Fill();
  // False: nothing goes now.
  bool FrameNext();
  bool FrameWaiting(Outgoing* send);
  bool FrameData(Outgoing* send);
  // By which streams its payload goes, if by some; false: by some, and not yet.
  bool ChooseStreams(PacketHeader* header);
  // A frame with a payload of a message.
  void FramePayload(const PacketHeader& header, Outgoing* send, const std::byte* payload);
  int64_t WriteFrames(int fd, int64_t* asked);
  int64_t WriteFrame(int fd, const Frame& frame);
  void Written(int64_t bytes);
  void FrameDone(const Frame& frame);
  void TakeBack(Outgoing* send, const absl::Status& why);
  // Takes the frames of `send` out of the ring; one that is half written is finished from a copy
  // (true).
  bool TakeFrames(Outgoing* send);

  RendezvousSender outgoing_;
  TcpStreams* const streams_;
  std::deque<UrgentFrame> urgent_;
  std::array<Frame, kFrames> frames_;  // a ring
  size_t first_ = 0, count_ = 0;
  int64_t first_written_ = 0;  // of the first frame, header included
  int64_t framed_bytes_ = 0;
  bool stuck_ = false;
  int error_ = 0;
  int64_t large_bytes_ = 0, written_bytes_ = 0;
  int64_t room_ = 0;  // in the socket, at least: what it was when last asked, less what was written
};

}  // namespace entrain
