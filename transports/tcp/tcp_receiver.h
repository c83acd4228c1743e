// The receiving half of a tcp path: the first connection's bytes cut into frames, payloads to where they belong.
//
// What says that everything before it has come (control, the end) waits until the streams have brought it.
//
// A read asks for the rest of the payload that is under way, straight into the receive's buffer,
// and with the same system call for what follows it, into a buffer from which small frames are
// parsed: of 4 KiB, and twice as much each time that a read has filled it, up to 64 KiB.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "transports/rendezvous_receiver.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/stream_keeper.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/transport.h"

namespace entrain {

class TcpReceiver {
 public:
  // `sender`: the other half, which gets credit and CTS; `keeper` what is said of streams.
  TcpReceiver(Endpoint* endpoint, Events* events, CompletionList* completions, TcpSender* sender,
              StreamKeeper* keeper);

  void Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint) {
    queue_.Post(envelope, into, done, hint);
  }
  bool HasEarly(Tag tag) const { return queue_.matching().HasEarly(tag); }
  void Revoke(Context mine, const absl::Status& why) { queue_.Revoke(mine, why); }
  void FailAll(const absl::Status& why);

  // Reads what is there, up to a few MiB; the number of bytes. An error: the connection is over
  // (the peer's CLOSE, its end, a breach of protocol). Calls Events; when one of them closed the
  // path, stops at once.
  absl::StatusOr<int64_t> Read(int fd);
  // As Endpoint::TryRecv without `where`. Reads, and takes the one message; whatever else it has read stays in the
  // buffer until Read, which must be called soon while there is something.
  Endpoint::Next TryRecv(int fd, const Envelope& envelope, Bytes into);
  bool unparsed() const { return unparsed_; }
  // Frames wait for streams; until these have brought what they carry, nothing more is read from `fd`.
  bool held_back() const { return held_back_ || !ended_.ok(); }
  // Whether somebody here waits for something that can be read.
  bool expecting() const { return queue_.matching().expecting(); }

 private:
  static constexpr size_t kFirstBuffer = 4 << 10, kBuffer = 64 << 10;

  // The first connection, and what was read from it before.
  absl::StatusOr<int64_t> ReadFrames(int fd);
  absl::StatusOr<int64_t> ReadStreams(int fd);
  absl::StatusOr<int64_t> ReadOnce(int fd, bool* drained);
  void AcknowledgeUnlessSent(int fd);
  absl::Status Parse();
  void Compact();
  // The buffer is full, or has less room than that.
  void GrowBuffer(size_t least);
  // Header and payload so far; false: more must be read first, or come by streams.
  absl::StatusOr<bool> ParseFrame();
  absl::Status OnMessage(const PacketHeader& header);
  absl::Status OnData(const PacketHeader& header);
  // The payload of a frame whose header was the last that was parsed.
  absl::Status Expect(const PacketHeader& header, const PayloadPart& part);
  absl::Status OnText(const PacketHeader& header);
  // `bytes` of the payload under way are at their place.
  void Moved(int64_t bytes);

  Endpoint* const endpoint_;
  Events* const events_;
  TcpSender* const sender_;
  RendezvousReceiver queue_;
  StreamKeeper* const keeper_;
  PayloadPart current_;     // the payload under way; no message: none
  int64_t last_bytes_ = 0;  // of the message that came last
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_ = kFirstBuffer;  // of it
  size_t begin_ = 0, end_ = 0;      // what is in it and not parsed
  bool unparsed_ = false;           // Parse has not seen it all
  int looks_ = 0;                   // until what came at once is acknowledged, when
  int64_t written_ = 0;             // so much had been sent
  bool held_back_ = false;          // Parse waits for streams
  int error_ = 0;                   // how a read of TryRecv failed
  absl::Status ended_;              // how the connection has, while streams bring the rest
};

}  // namespace entrain
