// The receiving half of a tcp path: cuts the first connection's bytes into frames, and copies
// payloads to the receives' buffers.
//
// CONTROL, WITHDRAW and CLOSE frames imply that all earlier messages have arrived. So these frames
// wait until the streams have delivered the earlier payloads.
//
// While a payload is arriving, one system call reads the rest of this payload directly into the
// receive's buffer, and the bytes after the payload into the object's own buffer. Small frames are
// parsed from the own buffer. The own buffer has 4 KiB at first. Each time that a read fills it, it
// doubles, up to 64 KiB.
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
  // `sender`, the sending half, gets the peer's credit and CTS. `keeper` gets packets about
  // streams.
  TcpReceiver(Endpoint* endpoint, Events* events, CompletionList* completions, TcpSender* sender,
              StreamKeeper* keeper);

  // Must be called when the connection is established. `checksums`: true if frames have checksums
  // (frame.h).
  void Begin(bool checksums) { checksums_ = checksums; }
  void Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint) {
    queue_.Post(envelope, into, done, hint);
  }
  bool HasEarly(Tag tag) const { return queue_.matching().HasEarly(tag); }
  void Revoke(Context mine, const absl::Status& why) { queue_.Revoke(mine, why); }
  void FailAll(const absl::Status& why);
  // Lends credit to the peer: so many more bytes may come before they are asked for.
  void Lend(int64_t bytes) {
    queue_.Lend(bytes);
    sender_->Lend(bytes);
  }

  // Reads the available bytes, up to a few MiB, and returns their number. Returns an error if the
  // connection is over: the peer has sent CLOSE, the connection has ended, or the peer broke the
  // protocol. Calls Events. If an event closes the path, stops at once.
  // With `frames` false, reads only the streams.
  absl::StatusOr<int64_t> Read(Channel& from, bool frames);
  // See Endpoint::TryRecv, without `where`. Reads from the socket, but takes only this message.
  // Other bytes stay in the buffer until Read. If `unparsed` then returns true, the caller must
  // call Read soon, because epoll does not report these bytes.
  Endpoint::Next TryRecv(Channel& from, const Envelope& envelope, Bytes into);
  bool unparsed(const Channel& from) const {
    return unparsed_ || (from.buffered() && !held_back()) || keeper_->streams().buffered();
  }
  // Returns true if frames wait for streams. Until the streams have delivered their slices, nothing
  // more is read from the first connection.
  bool held_back() const { return held_back_ || !ended_.ok(); }
  // Returns true if a receive waits for a message, or a message is arriving.
  bool expecting() const { return queue_.matching().expecting(); }

 private:
  static constexpr size_t kFirstBuffer = 4 << 10, kBuffer = 64 << 10;

  // ReadFrames handles the first connection, and bytes that TryRecv has read from it. ReadStreams
  // handles the streams.
  absl::StatusOr<int64_t> ReadFrames(Channel& from);
  absl::StatusOr<int64_t> ReadStreams(Channel& from);
  absl::StatusOr<int64_t> ReadOnce(Channel& from, bool* drained);
  void AcknowledgeUnlessSent(int fd);
  absl::Status Parse();
  void Compact();
  // Enlarges the buffer to at least `least` bytes, but at most kBuffer.
  void GrowBuffer(size_t least);
  // Parses a frame: its header, and the part of its payload that has arrived. Returns false if more
  // bytes must be read first, or if the frame must wait for streams.
  absl::StatusOr<bool> ParseFrame();
  absl::Status OnMessage(const PacketHeader& header);
  // Handles DATA and AHEAD.
  absl::Status OnData(const PacketHeader& header);
  // Begins the payload of the frame whose header was parsed last.
  absl::Status Expect(const PacketHeader& header, const PayloadPart& part);
  absl::Status OnText(const PacketHeader& header);
  // Records that `bytes` more bytes of the arriving payload are in the receive's buffer. After the
  // last bytes, checks the checksum of the whole payload, and returns an error if it is wrong.
  absl::Status Moved(int64_t bytes);
  // Returns true if the checksum of these bytes is that of the payload in the header that was
  // parsed last, or if there are no checksums.
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
  PayloadPart current_;     // the missing part of the arriving payload. No payload is arriving if
                            // `incoming` is null
  PayloadPart whole_;       // the whole payload, of which current_ is the rest
  int64_t last_bytes_ = 0;  // length of the last payload
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_ = kFirstBuffer;  // size of the buffer
  size_t begin_ = 0, end_ = 0;      // positions in the buffer: the bytes between them are not
                                    // parsed
  bool unparsed_ = false;           // TryRecv has read bytes that Parse has not yet seen
  int looks_ = 0;                   // arrived bytes are acknowledged after this many more failed
                                    // polls
  int64_t written_ = 0;             // number of bytes that this side had sent when the last bytes
                                    // arrived
  bool held_back_ = false;          // Parse waits for streams
  int error_ = 0;                   // error of a read in TryRecv
  // the error with which the first connection has ended, while streams still deliver payloads
  absl::Status ended_;
};

}  // namespace entrain
