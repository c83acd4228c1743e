// The sending half of a tcp path. Makes frames of the messages to send, and decides the order of
// the frames. RendezvousSender decides the order of the messages, and counts the credit for eager
// messages.
//
// Order on the wire: first the urgent frames (control messages, CTS, REFUSE, WITHDRAW, CLOSE, and
// frames about streams), then the messages, in the order of RendezvousSender::Next. Payloads are
// not copied into a staging buffer. One write passes several headers and parts of the callers'
// memory to the kernel, or to TLS. (TLS encrypts into memory of its own.)
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"

#include "lib/net/channel.h"
#include "transports/rendezvous_receiver.h"
#include "transports/rendezvous_sender.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/tcp_streams.h"
#include "transports/transport.h"

namespace entrain {

class TcpSender final : public Answers {
 public:
  // `streams` must outlive the object.
  TcpSender(CompletionList* completions, TcpStreams* streams)
      : outgoing_(completions), streams_(streams) {}

  // Must be called when the connection is established. `checksums`: true if frames have checksums
  // (frame.h).
  void Begin(bool checksums) { checksums_ = checksums; }
  // Returns the queue of messages to send. The caller posts messages to the queue, and reports the
  // peer's answers to it.
  RendezvousSender& outgoing() { return outgoing_; }
  bool awaiting() const { return outgoing_.awaiting(); }
  // See Endpoint::TrySend. Sends at most 32 KiB. Returns true if the message was copied. Returns false if the socket
  // might take only a part of the message, because the next Flush may be long after this call. If
  // the socket nevertheless takes only a part (the kernel lacks memory), copies the rest for the
  // next Flush.
  bool TrySend(Channel& to, const Envelope& envelope, ConstBytes bytes);
  void Control(absl::string_view text) { BeforeData({.type = PacketType::kControl}, text); }
  void ClearToSend(uint64_t message) override {
    BeforeData({.type = PacketType::kCts, .message = message}, {});
  }
  void Refuse(uint64_t message) override {
    BeforeData({.type = PacketType::kRefuse, .message = message}, {});
  }
  void ReturnCredit(int64_t bytes) override { outgoing_.ReturnCredit(bytes); }
  // Packets about streams.
  void Want(int streams) {
    BeforeData({.type = PacketType::kWant, .message = static_cast<uint64_t>(streams)}, {});
  }
  void Stands(int stream, uint64_t id) {
    BeforeData({.type = PacketType::kStands, .tag = id, .message = static_cast<uint64_t>(stream)},
               {});
  }
  // Lends credit to the peer (RendezvousSender).
  void Lend(int64_t bytes) {
    BeforeData({.type = PacketType::kLend, .message = static_cast<uint64_t>(bytes)}, {});
  }

  // Writes as much as the sockets take, up to about 1 MiB. Returns the number of bytes written.
  absl::StatusOr<int64_t> Flush(Channel& to);
  // Returns true if there is something to write.
  bool pending() const;
  // Returns true if the last Flush ended because the sockets, including `to`, take no more bytes.
  bool stuck() const { return stuck_; }
  // Returns the error of the last failed write, or 0. The kernel reports an error only once. Later
  // it only reports that the connection is closed.
  int error() const { return error_; }
  // Returns true if the first connection, `to`, waits until its socket takes more bytes.
  bool framed(const Channel& to) const { return count_ > 0 || to.unsent(); }
  // Returns true if a payload waits for room in the streams. No event of epoll reports the room.
  bool waits_for_streams() const { return stuck_ && outgoing_.ready() && streams_->full(); }
  // Returns true if Flush will complete a message. With TLS, the last bytes of a message may reach
  // the kernel later than in the write that took them. That may even happen during a read.
  bool due(const Channel& to) const { return IsDue(to) || streams_->due(); }
  // Returns the sum of the lengths of all payloads, since the path began, that were large enough
  // for a stream.
  int64_t large_bytes() const { return large_bytes_; }
  // Returns the number of bytes written to the first connection since the path began.
  int64_t written_bytes() const { return written_bytes_; }

  // Fails the sends to the peer's context `theirs` with `why`. If a frame is half written, the rest
  // is written from a copy.
  void Revoke(Context theirs, const absl::Status& why);
  // Fails all messages. Afterwards only the rest of a half-written frame (from a copy) and control
  // messages are still written.
  void FailAll(const absl::Status& why);
  // Sends the CLOSE frame, after the control messages that still wait. Must be called after
  // FailAll.
  void Last(absl::string_view why) {
    BeforeData({.type = PacketType::kClose}, why.substr(0, kMaxControlBytes));
  }

 private:
  // A frame that is to be written.
  struct Frame {
    FrameSums sums;  // with checksums: set at the first attempt to write the frame
    bool summed = false;
    PacketHeader header;
    const std::byte* payload = nullptr;  // the caller's memory; not used if `owned` is not empty
    Outgoing* send = nullptr;            // message of the payload or of the RTS
    std::string owned;
    const void* data() const {
      return owned.empty() ? static_cast<const void*>(payload) : owned.data();
    }
  };
  // With TLS: bytes of a message that are encrypted but may not have reached the kernel. A message
  // completes only when the kernel has all its bytes, because the caller may stop calling Flush
  // after the completion.
  struct Unsent {
    Outgoing* send;  // null: the message is over
    int64_t bytes;
    int64_t mark;  // the kernel has the bytes once Channel::taken() is at least this mark
  };
  struct FrameBeforeData {
    PacketHeader header;
    std::string payload;
  };
  static constexpr size_t kFrames = 32;

  int64_t SizeOf(const Frame& frame) const {
    return static_cast<int64_t>(LeadBytes(checksums_)) + PayloadOf(frame.header);
  }
  void BeforeData(const PacketHeader& header, absl::string_view payload);
  Frame& NewFrame(const PacketHeader& header, Outgoing* send, const std::byte* payload);
  Frame& At(size_t i) { return frames_[(first_ + i) % kFrames]; }
  // Makes frames of the waiting messages, until frames_ is full or holds about 1 MiB.
  void Fill();
  // Returns false if nothing can be framed now.
  bool FrameNext();
  bool FrameWaiting(Outgoing* send);
  bool FrameData(Outgoing* send);
  // Takes back the messages that the peer has refused after a part of them was sent.
  void WithdrawRefused();
  // Chooses the streams for a payload that is large enough for streams. May make the payload smaller,
  // unless it is a whole message. Returns false if too few streams are free now; the payload must
  // then wait.
  bool ChooseStreams(PacketHeader* header);
  // Makes a frame whose payload is a part of a message, or the whole message.
  void FramePayload(const PacketHeader& header, Outgoing* send, const std::byte* payload);
  int64_t WriteFrames(Channel& to, int64_t* asked);
  int64_t WriteFrame(Channel& to, const Frame& frame);
  void Written(int64_t bytes, const Channel& to);
  void FrameDone(const Frame& frame, const Channel& to);
  bool IsDue(const Channel& to) const {
    return !unsent_.empty() && unsent_.front().mark <= to.taken();
  }
  // Completes the messages whose bytes have reached the kernel.
  void Settle(const Channel& to);
  void TakeBack(Outgoing* send, const absl::Status& why);
  // Removes the frames of `send` from frames_. Returns true if one of them was half written, or if
  // streams were sending a slice; the rest is then sent from a copy.
  bool TakeFrames(Outgoing* send);

  RendezvousSender outgoing_;
  TcpStreams* const streams_;
  std::deque<FrameBeforeData> before_data_;
  std::array<Frame, kFrames> frames_;  // a ring
  size_t first_ = 0, count_ = 0;
  std::deque<Unsent> unsent_;
  int64_t first_written_ = 0;  // number of bytes of the first frame, with its header, that are
                               // already written
  int64_t framed_bytes_ = 0;
  bool checksums_ = false;
  bool stuck_ = false;
  int error_ = 0;
  int64_t large_bytes_ = 0, written_bytes_ = 0;
  // A lower bound of the room in the socket's send buffer: the room at the last query, minus the
  // bytes written since then.
  int64_t room_ = 0;
};

}  // namespace entrain
