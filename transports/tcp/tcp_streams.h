// The streams of a path: further connections between the two processes, which carry only slices of
// payloads. The header of a payload goes on the path's first connection and names the streams. A
// stream carries slices in the order of the headers. So messages are matched in the order sent,
// even if one stream is slower than another.
//
// Sending and receiving are independent of each other. TcpSender provides the payloads, and
// TcpReceiver provides the memory for received slices.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/net/channel.h"
#include "transports/rendezvous_receiver.h"
#include "transports/rendezvous_sender.h"
#include "transports/tcp/flight_limit.h"

namespace entrain {

class TcpStreams {
 public:
  static constexpr int kMost = 16;
  // A payload smaller than this does not use streams, and no slice is smaller than this.
  static constexpr int64_t kLeastPayload = 32 << 10;

  int count() const { return static_cast<int>(streams_.size()); }
  int fd(int stream) const { return At(stream).channel.fd(); }
  // Adds a stream. The caller must not add more than kMost.
  void Add(Channel channel);
  void CloseAll();

  // Must be called before the first stream is added if the path is long. For then chooses streams by
  // the room in their windows.
  void SetLongPath() { long_path_ = true; }
  bool long_path() const { return long_path_; }

  // ---- Sending
  // Makes the first `streams` streams carry payloads; 0: none.
  void Use(int streams) { in_use_ = streams; }
  int in_use() const { return in_use_; }
  bool Carry(int64_t payload) const { return in_use_ > 0 && payload >= kLeastPayload; }
  // Chooses streams for a payload of this many bytes, in slices of equal length. Returns a mask with
  // one bit for each chosen stream. A stream is free if it has no slice to write. Chooses the free
  // streams with the fewest bytes under way. If fewer than half of the wanted streams are free,
  // returns 0, because too few streams would take too long.
  //
  // On a long path, a slow stream would hold back the end of a message. So For chooses streams that
  // have room in their windows for their slices. Returns 0 also if FlightLimit allows no more bytes
  // under way. No event reports the end of this state, so the caller must try again after a short
  // time (full).
  //
  // Unless the payload must be sent `whole`, For makes it smaller on a long path, so that it fits in
  // the windows of the streams.
  uint16_t For(int64_t* payload, bool whole);
  // Returns true if the last For has returned 0 because windows or the limit were full.
  bool full() const { return full_; }
  // Give assigns slices of the payload to `streams`. Start allows Write to write these slices, and
  // must be called after the payload's header was written. The memory belongs to the message
  // `send`.
  void Give(uint16_t streams, Outgoing* send, ConstBytes payload);
  void Start(uint16_t streams);
  // Returns true if a stream has bytes to write, or a written slice that Write must still report.
  bool sending() const;
  // Returns true if the kernel has all bytes of a slice that Write has not yet reported.
  bool due() const;
  // Writes as many bytes as the sockets take, and returns their number. When the kernel has all
  // bytes of a slice, reports the slice to `queue` (RendezvousSender::Taken).
  absl::StatusOr<int64_t> Write(RendezvousSender* queue);
  // Must be called for a `send` that is over. Copies the unsent rest of its slices; later writes
  // use the copy. Returns true if there was such a rest.
  bool Disown(const Outgoing* send);

  // ---- Receiving
  // Must be called when the payload `part` will arrive on these streams.
  void Expect(uint16_t streams, const PayloadPart& part);
  // Returns true if a slice is still to arrive on a stream.
  bool receiving() const { return expected_ > 0; }
  // Reads the available bytes, up to a few MiB, and returns their number. Returns an error if a
  // stream has ended.
  absl::StatusOr<int64_t> Read(RendezvousReceiver* queue);
  // On a long path, Read and Write try a socket only once between two reports of this function,
  // because a try of all streams in each turn would cost more than the data. Must be called when
  // epoll reports `fd`; ignores other descriptors.
  void SetReady(int fd);
  // Returns true if bytes of an expected slice wait in a TLS session, where epoll does not report
  // them.
  bool buffered() const;
  void ForgetExpected();
  // Must be called when epoll reports a stream on which no slice is expected. Returns true if the
  // stream has ended.
  bool IsOver(int stream) const;

  // Returns the epoll events for which to wait.
  uint32_t Interest(int stream) const;

  // Measures the first `streams` streams. If `streams` is 0, measures the connection `first`.
  // bytes: the sum of the bytes acknowledged since the connections began. busy_ns: the time during
  // which a connection had bytes under way; of several connections, the longest time. A value
  // becomes smaller only if a connection has ended. window_ns: the longest time in which the
  // receiver's window held a connection back. segments, repeated: data segments, and those sent again.
  struct Progress {
    int64_t bytes = 0, busy_ns = 0, window_ns = 0;
    int64_t segments = 0, repeated = 0;
    int64_t round_trip_ns = 0;  // each connection's shortest round trip; of several, the longest
    bool full = false;          // the send buffer of each connection is full now
    bool queue = false;         // bytes wait in a queue on the way of each connection now
  };
  Progress Measure(int first, int streams) const;

 private:
  // What the kernel reports of a stream, for sending on a long path.
  struct Window {
    int64_t under_way = 0;  // bytes sent and not acknowledged
    int64_t unsent = 0;     // bytes in the socket that the kernel has not sent
    int64_t given = 0;      // bytes given to the stream since the kernel was asked
    int64_t window = 0;     // the congestion window, in bytes
  };
  struct Stream {
    Channel channel;
    bool readable = true;  // a read may find bytes
    bool writable = true;  // a write may find room
    Window now;
    // The slice to write. Empty if there is none.
    ConstBytes slice;
    int64_t whole = 0;         // length of the whole slice
    Outgoing* send = nullptr;  // the message of the slice, until the kernel has all bytes of the
                               // slice; else null
    std::string owned;         // a copy of the slice's rest, if the caller has got its memory back
    bool started = false;
    std::deque<PayloadPart> expected;
    bool due() const { return slice.empty() && send != nullptr && !channel.unsent(); }
  };

  uint16_t ForLongPath(int64_t* payload, bool whole);
  void MeasureWindows();
  static bool Idle(const Stream& stream) {
    return stream.slice.empty() && stream.send == nullptr && !stream.channel.unsent();
  }

  Stream& At(int stream) const { return *streams_[static_cast<size_t>(stream)]; }

  std::vector<std::unique_ptr<Stream>> streams_;
  int in_use_ = 0;
  int64_t expected_ = 0;
  bool long_path_ = false, full_ = false;
  FlightLimit limit_;
  int64_t measured_ns_ = 0;  // the time of the last MeasureWindows
};

}  // namespace entrain
