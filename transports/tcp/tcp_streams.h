// The streams of a path: further connections of its two processes that carry only slices of
// payloads. The header of a payload uses the path's first connection and names the streams. A
// stream carries slices in the order of the headers. So messages match in the order sent, whichever
// stream is slower.
//
// Sending and receiving are independent here: TcpSender gives payloads, and TcpReceiver gives the
// places of slices.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/net/channel.h"
#include "transports/rendezvous_receiver.h"
#include "transports/rendezvous_sender.h"

namespace entrain {

class TcpStreams {
 public:
  static constexpr int kMost = 16;
  // A smaller payload is not worth a stream, and a smaller slice is not worth one more stream.
  static constexpr int64_t kLeastPayload = 32 << 10;

  int count() const { return static_cast<int>(streams_.size()); }
  int fd(int stream) const { return At(stream).channel.fd(); }
  // There must be at most kMost.
  void Add(Channel channel);
  void CloseAll();

  // ---- Sending
  // Sets the number of streams that carry payloads, counted from the first; 0: none.
  void Use(int streams) { in_use_ = streams; }
  int in_use() const { return in_use_; }
  bool Carry(int64_t payload) const { return in_use_ > 0 && payload >= kLeastPayload; }
  // Chooses streams for a payload of this many bytes. Returns one bit for each: of the streams
  // without a slice to write, those with the fewest bytes under way. Returns 0 if too few are free
  // now, because the slices would then take too long.
  uint16_t For(int64_t payload) const;
  // Gives slices of the payload to streams, and Start begins to write them. Start must be called
  // after the header was written. The message `send` owns the memory.
  void Give(uint16_t streams, Outgoing* send, ConstBytes payload);
  void Start(uint16_t streams);
  // Returns true if a stream has bytes to write, or a slice to complete (Write).
  bool sending() const;
  // Returns true if all bytes of a slice have reached the kernel since the last Write.
  bool due() const;
  // Writes as many bytes as the sockets take, and returns their number. Reports to `queue` the
  // bytes that the sockets have taken.
  absl::StatusOr<int64_t> Write(RendezvousSender* queue);
  // Must be called for a `send` that is over. The rest of its slices is sent from a copy. Returns
  // true if there was any.
  bool Disown(const Outgoing* send);

  // ---- Receiving
  // Must be called when `part` will arrive on these streams.
  void Expect(uint16_t streams, const PayloadPart& part);
  // Returns true if a stream has a slice to deliver.
  bool receiving() const { return expected_ > 0; }
  // Reads the available bytes, up to a few MiB, and returns their number. Returns an error if a
  // stream has ended.
  absl::StatusOr<int64_t> Read(RendezvousReceiver* queue);
  // Returns true if a stream has bytes to deliver that its socket does not report.
  bool buffered() const;
  void ForgetExpected();
  // Called when epoll reports a stream that has no slice to deliver: returns true if it has ended.
  bool IsOver(int stream) const;

  // Returns the epoll events for which to wait.
  uint32_t Interest(int stream) const;

  // Measures the first `streams` streams, or `first` if `streams` is 0. Returns the sum of the
  // bytes acknowledged since each connection began, and the longest time during which a connection
  // had bytes under way. The values only grow, unless connections have ended.
  struct Progress {
    int64_t bytes = 0, busy_ns = 0;
    int64_t round_trip_ns = 0;  // longest of the connections' shortest round trips
  };
  Progress Measure(int first, int streams) const;

 private:
  struct Stream {
    Channel channel;
    // The slice to write. Empty if there is none.
    ConstBytes slice;
    int64_t whole = 0;         // length of the whole slice
    Outgoing* send = nullptr;  // null if no message waits. Set until the kernel has all bytes
    std::string owned;         // copy of the slice, after the caller has got its memory back
    bool started = false;
    std::deque<PayloadPart> expected;
    bool due() const { return slice.empty() && send != nullptr && !channel.unsent(); }
  };

  Stream& At(int stream) const { return *streams_[static_cast<size_t>(stream)]; }

  std::vector<std::unique_ptr<Stream>> streams_;
  int in_use_ = 0;
  int64_t expected_ = 0;
};

}  // namespace entrain
