// The receiving half of a tcp path: cuts the first connection's bytes into frames, and puts
// payloads into their places.
//
// Frames that imply that everything before them has arrived (control messages, the end) wait until
// the streams have delivered the payloads before them.
//
// A read gets the rest of the payload under way directly into the receive's buffer and, with the
// same system call, the following bytes into a buffer from which small frames are parsed. This
// buffer has 4 KiB, and doubles each time that a read has filled it, up to 64 KiB.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/base/crc32c.h"
#include "lib/net/channel.h"
#include "transports/rendezvous_receiver.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/stream_keeper.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/transport.h"

namespace entrain {

class TcpReceiver {
 public:
  // `sender`, the other half, gets credit and CTS; `keeper` gets packets about streams.
  TcpReceiver(Endpoint* endpoint, Events* events, CompletionList* completions, TcpSender* sender,
              StreamKeeper* keeper);

  // Must be called when the connection is established. `checksums`: frames have them (frame.h).
  void Begin(bool checksums) { checksums_ = checksums; }
  void Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint) {
    queue_.Post(envelope, into, done, hint);
  }
  bool HasEarly(Tag tag) const { return queue_.matching().HasEarly(tag); }
  void Revoke(Context mine, const absl::Status& why) { queue_.Revoke(mine, why); }
  void FailAll(const absl::Status& why);

  // Reads the available bytes, up to a few MiB, and returns their number. Returns an error if the
  // connection is over (the peer's CLOSE, its end, a breach of protocol). Calls Events; if an event
  // closes the path, stops at once.
  absl::StatusOr<int64_t> Read(Channel& from);
  // See Endpoint::TryRecv, without `where`. Reads, and takes only this message. Other bytes stay in
  // the buffer until Read. Read must be called soon while `unparsed` is true, because the socket
  // does not report these bytes.
  Endpoint::Next TryRecv(Channel& from, const Envelope& envelope, Bytes into);
  bool unparsed(const Channel& from) const {
    return unparsed_ || (from.buffered() && !held_back()) || keeper_->streams().buffered();
  }
  // Returns true if frames wait for streams. Nothing more is read from the connection until these have
  // delivered their slices.
  bool held_back() const { return held_back_ || !ended_.ok(); }
  // Returns true if a receive waits for something that can be read.
  bool expecting() const { return queue_.matching().expecting(); }

 private:
  static constexpr size_t kFirstBuffer = 4 << 10, kBuffer = 64 << 10;

  // ReadFrames handles the first connection and the bytes read from it before; ReadStreams the
  // streams.
  absl::StatusOr<int64_t> ReadFrames(Channel& from);
  absl::StatusOr<int64_t> ReadStreams(Channel& from);
  absl::StatusOr<int64_t> ReadOnce(Channel& from, bool* drained);
  void AcknowledgeUnlessSent(int fd);
  absl::Status Parse();
  void Compact();
  // Enlarges the buffer, which is full, to at least `least` bytes.
  void GrowBuffer(size_t least);
  // Parses a frame: its header, and the part of its payload that has arrived. Returns false if more
  // must be read first, or must arrive on streams.
  absl::StatusOr<bool> ParseFrame();
  absl::Status OnMessage(const PacketHeader& header);
  absl::Status OnData(const PacketHeader& header);
  // Begins the payload of the frame whose header was parsed last.
  absl::Status Expect(const PacketHeader& header, const PayloadPart& part);
  absl::Status OnText(const PacketHeader& header);
  // Records that `bytes` bytes of the payload under way are in their place. With checksums, the
  // last bytes count only if the checksum of the whole payload is right.
  absl::Status Moved(int64_t bytes);
  // Returns true if these bytes are the payload of the frame whose header was parsed last.
  bool HasSum(const void* payload, size_t bytes) const {
    return !checksums_ || Crc32c(payload, bytes) == sums_.payload;
  }
  // Copies the header at begin_, and its sums. Returns false if the header's checksum is wrong.
  bool ParseHeader(PacketHeader* header);

  Endpoint* const endpoint_;
  Events* const events_;
  TcpSender* const sender_;
  RendezvousReceiver queue_;
  StreamKeeper* const keeper_;
  bool checksums_ = false;
  FrameSums sums_;          // sums of the frame whose header was parsed last
  PayloadPart current_;     // payload under way; none if without message
  PayloadPart whole_;       // the whole payload, of which current_ is the rest
  int64_t last_bytes_ = 0;  // length of the last message
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_ = kFirstBuffer;  // size of the buffer
  size_t begin_ = 0, end_ = 0;      // bytes in it that are not parsed
  bool unparsed_ = false;           // Parse has not seen all bytes
  int looks_ = 0;                   // failed polls left before arrived bytes are acknowledged
  int64_t written_ = 0;             // bytes that this side had sent when bytes arrived last
  bool held_back_ = false;          // Parse waits for streams
  int error_ = 0;                   // error of a read in TryRecv
  // the error of the connection's end, while streams deliver the rest
  absl::Status ended_;
};

}  // namespace entrain
