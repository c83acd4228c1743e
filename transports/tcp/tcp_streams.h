// The streams of a path: further connections of its two processes that carry nothing but slices of payloads. The header
// of a payload goes by the path's first connection and names the streams; what comes by a stream are the slices in the
// order in which the headers came. So messages match in the order sent, whichever stream is the slower.
//
// Sending and receiving do not meet here: TcpSender gives payloads, TcpReceiver says where they go.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/net/socket.h"
#include "transports/rendezvous_receiver.h"
#include "transports/rendezvous_sender.h"

namespace entrain {

class TcpStreams {
 public:
  static constexpr int kMost = 16;
  // Smaller payloads are not worth another connection, nor smaller slices one more.
  static constexpr int64_t kLeastPayload = 32 << 10;

  int count() const { return static_cast<int>(streams_.size()); }
  int fd(int stream) const { return At(stream).fd.get(); }
  // kMost at most.
  void Add(Fd fd);
  void CloseAll();

  // ---- Sending.
  // The first so many carry payloads; 0: none does.
  void Use(int streams) { in_use_ = streams; }
  int in_use() const { return in_use_; }
  bool Carry(int64_t payload) const { return in_use_ > 0 && payload >= kLeastPayload; }
  // By which ones a payload of so many bytes goes now, a bit each: of those that have none to write, the ones with least
  // on their way. 0: by none yet, as too few are free, and its slices would be long on their way.
  uint16_t For(int64_t payload) const;
  // Slices of it are written once its header is (Start), for `send`, whose memory it is.
  void Give(uint16_t streams, Outgoing* send, ConstBytes payload);
  void Start(uint16_t streams);
  // Whether one has a slice to write.
  bool sending() const;
  // Writes what the sockets take; the number of bytes. `queue` hears what has been taken.
  absl::StatusOr<int64_t> Write(RendezvousSender* queue);
  // `send` is over: what is left of its payloads goes from a copy. Whether there was any.
  bool Disown(const Outgoing* send);

  // ---- Receiving.
  // `part` comes by these.
  void Expect(uint16_t streams, const PayloadPart& part);
  // Whether one has a slice to bring.
  bool receiving() const { return expected_ > 0; }
  // Reads what is there, up to a few MiB; the number of bytes. An error: a stream has ended.
  absl::StatusOr<int64_t> Read(RendezvousReceiver* queue);
  void ForgetExpected();
  // Epoll says something of this one, which brings nothing: it may have ended.
  bool IsOver(int stream) const;

  // epoll's events that are worth waking for.
  uint32_t Interest(int stream) const;
  // What epoll has been asked to watch.
  uint32_t& watched(int stream) { return At(stream).watched; }

  // Of the first so many, or of `first` if 0: bytes acknowledged since the connection began, of all; how long
  // something was on its way, of the longest. Counters, but for connections that have gone.
  struct Progress {
    int64_t bytes = 0, busy_ns = 0;
    int64_t round_trip_ns = 0;  // the longest of the connections' shortest
  };
  Progress Measure(int first, int streams) const;

 private:
  struct Stream {
    Fd fd;
    // To write. Empty: nothing.
    ConstBytes slice;
    int64_t whole = 0;         // of which that is the rest
    Outgoing* send = nullptr;  // null: nobody waits for it
    std::string owned;         // the slice, if its memory is not the caller's any more
    bool started = false;
    std::deque<PayloadPart> expected;
    uint32_t watched = 0;
  };

  Stream& At(int stream) const { return *streams_[static_cast<size_t>(stream)]; }

  std::vector<std::unique_ptr<Stream>> streams_;
  int in_use_ = 0;
  int64_t expected_ = 0;
};

}  // namespace entrain
