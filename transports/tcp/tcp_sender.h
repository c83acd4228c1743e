// The sending half of a tcp path: makes frames of the messages to send, and orders them.
// RendezvousSender decides which messages are sent, and which go eagerly.
//
// Order on the wire: urgent frames (control, CTS, WITHDRAW) between any two other frames, then the
// messages whose turn it is. Nothing is copied to a staging buffer: headers and the callers' memory
// go to the kernel in one gathering write, or to TLS, which encrypts into memory of its own.
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

  // Must be called when the connection is established. `checksums`: frames have them (frame.h).
  void Begin(bool checksums) { checksums_ = checksums; }
  // Returns the messages to send. The caller posts messages there, and reports the peer's answers.
  RendezvousSender& outgoing() { return outgoing_; }
  bool awaiting() const { return outgoing_.awaiting(); }
  // See Endpoint::TrySend. Returns true if the message is copied. Returns false also if the socket
  // might take only a part, because Flush may not be called for long. If the socket takes a part
  // nevertheless (the kernel has no memory), the rest is copied for the next Flush.
  bool TrySend(Channel& to, const Envelope& envelope, ConstBytes bytes);
  void Control(absl::string_view text) { Urgent({.type = PacketType::kControl}, text); }
  void ClearToSend(uint64_t message) override {
    Urgent({.type = PacketType::kCts, .message = message}, {});
  }
  void Refuse(uint64_t message) override {
    Urgent({.type = PacketType::kRefuse, .message = message}, {});
  }
  void ReturnCredit(int64_t bytes) override { outgoing_.ReturnCredit(bytes); }
  // Packets about streams.
  void Want(int streams) {
    Urgent({.type = PacketType::kWant, .message = static_cast<uint64_t>(streams)}, {});
  }
  void Stands(int stream) {
    Urgent({.type = PacketType::kStands, .message = static_cast<uint64_t>(stream)}, {});
  }

  // Writes as much as the sockets take, up to a few MiB. Returns the bytes written.
  absl::StatusOr<int64_t> Flush(Channel& to);
  // Returns true if there is something to write.
  bool pending() const;
  // Returns true if the last Flush ended because the sockets, including `to`, take no more bytes.
  bool stuck() const { return stuck_; }
  // Returns the error of a write, or 0. The kernel reports an error once; afterwards it only
  // reports that the connection is closed.
  int error() const { return error_; }
  // Returns true if the first connection, `to`, waits until its socket takes more bytes.
  bool framed(const Channel& to) const { return count_ > 0 || to.unsent(); }
  // Returns true if a completion is due. With TLS, bytes of messages may reach the kernel later
  // than the write that took them, also when the connection is read.
  bool due(const Channel& to) const { return IsDue(to) || streams_->due(); }
  // Returns the number of payload bytes, since the path began, in payloads large enough for a
  // stream.
  int64_t large_bytes() const { return large_bytes_; }
  // Returns the number of bytes written to the first connection since the path began.
  int64_t written_bytes() const { return written_bytes_; }

  // Fails with `why` the sends that have the peer's context `theirs`. A frame that is half written
  // is finished from a copy.
  void Revoke(Context theirs, const absl::Status& why);
  // Fails everything. Only the half-written frame, from a copy, and control messages are still
  // written.
  void FailAll(const absl::Status& why);
  // Sends the CLOSE frame after FailAll. Earlier control messages are sent first.
  void Last(absl::string_view why) {
    Urgent({.type = PacketType::kClose}, why.substr(0, kMaxControlBytes));
  }

 private:
  // A frame that is to be written.
  struct Frame {
    FrameSums sums;  // with checksums, from the first attempt to write the frame
    bool summed = false;
    PacketHeader header;
    const std::byte* payload = nullptr;  // the caller's memory, unless owned
    Outgoing* send = nullptr;            // message of the payload or of the RTS
    std::string owned;
    const void* data() const {
      return owned.empty() ? static_cast<const void*>(payload) : owned.data();
    }
  };
  // Encrypted bytes of a message that may not have reached the kernel. The message is complete only
  // when the kernel has all its bytes, because nobody may call Flush after its completion.
  struct Unsent {
    Outgoing* send;  // null: the message is over
    int64_t bytes;
    int64_t mark;  // the bytes have reached the kernel when the channel has taken up to this mark
  };
  struct UrgentFrame {
    PacketHeader header;
    std::string payload;
  };
  static constexpr size_t kFrames = 32;

  int64_t SizeOf(const Frame& frame) const {
    return static_cast<int64_t>(LeadBytes(checksums_)) + PayloadOf(frame.header);
  }
  void Urgent(const PacketHeader& header, absl::string_view payload);
  Frame& NewFrame(const PacketHeader& header, Outgoing* send, const std::byte* payload);
  Frame& At(size_t i) { return frames_[(first_ + i) % kFrames]; }
  // Makes frames of the waiting messages, until the ring is full or holds a few MiB.
  void Fill();
  // Returns false if nothing can be framed now.
  bool FrameNext();
  bool FrameWaiting(Outgoing* send);
  bool FrameData(Outgoing* send);
  // Chooses the streams for the payload, if it uses any. Returns false if it must use streams but
  // none is free yet.
  bool ChooseStreams(PacketHeader* header);
  // Makes a frame with a payload of a message.
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
  // Takes the frames of `send` out of the ring. Returns true if one of them was half written; it is
  // finished from a copy.
  bool TakeFrames(Outgoing* send);

  RendezvousSender outgoing_;
  TcpStreams* const streams_;
  std::deque<UrgentFrame> urgent_;
  std::array<Frame, kFrames> frames_;  // a ring
  size_t first_ = 0, count_ = 0;
  std::deque<Unsent> unsent_;
  int64_t first_written_ = 0;  // bytes of the first frame that are written, with its header
  int64_t framed_bytes_ = 0;
  bool checksums_ = false;
  bool stuck_ = false;
  int error_ = 0;
  int64_t large_bytes_ = 0, written_bytes_ = 0;
  // A lower bound of the room in the socket: the room at the last query, less the bytes written
  // since.
  int64_t room_ = 0;
};

}  // namespace entrain
