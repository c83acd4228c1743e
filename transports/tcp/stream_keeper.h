// Manages the streams of a path (tcp_streams.h). The two processes of the path agree on the streams
// that exist. Each process chooses how many of these streams it uses.
//
// The dialer of the path dials the streams, all that are wanted at the same time. It begins when the
// other side has sent WANT. WANT carries the number of streams that the other side wants. The
// dialer dials the larger of this number and its own. The other side numbers the streams in the
// order in which they arrive. When it can read from a stream, it sends STANDS with the number and
// with the stream's id, and the dialer answers with STANDS. A side may send on a stream after it
// has received STANDS for this stream. If a stream cannot be dialled, the dialer dials no more
// streams. The number of streams on which a process sends is configured, or chosen by StreamChoice,
// or follows from the round trip of a long path (StreamsOfLongPath).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "lib/net/channel.h"
#include "lib/net/handshake.h"
#include "transports/tcp/stream_choice.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/tcp/tcp_streams.h"

namespace entrain {

// Returns the number of streams with which a long path of this round trip begins, if `paths` paths
// share the link of this host: as many as its part of a link of 1 Gbit/s needs. A connection counts
// with a window of 3 MiB, which is about what the usual net.ipv4.tcp_wmem allows. StreamChoice tries
// more if something holds the streams back. Not more than needed, because many slow connections
// cost more work than few fast ones.
int StreamsOfLongPath(int64_t round_trip_ns, int paths);

class StreamKeeper {
 public:
  // Both arguments must outlive the object.
  StreamKeeper(TcpStreams* streams, TcpSender* sender) : streams_(*streams), sender_(*sender) {}

  TcpStreams& streams() { return streams_; }
  // Must be called when the path is connected. `setting` is the result of ParseTcpStreams. With
  // `one_host`, the number of streams is never chosen by measurement. `long_path`: the number of streams
  // of a long path; 0: the path is not long.
  void Begin(bool dialer, int setting, bool one_host, int long_path);
  // Must be called from time to time while there is traffic. `first` is the socket of the path's
  // first connection. Returns the number of further streams that the caller must dial, and whose
  // results it must report (OnDialled, OnNotDialled).
  int Tend(int first);

  // ---- Functions for the peer's packets.
  void OnWant(uint64_t streams);
  absl::Status OnStands(uint64_t stream, uint64_t id);
  // Report the result of dialling. OnDialled: the stream is established on this side. OnNotDialled:
  // the dial has failed, so no more streams will be dialled.
  void OnDialled(Channel stream, const ConnectionId& id);
  void OnNotDialled();
  // Takes a stream that the peer has dialled. Returns false if this side does not want the stream.
  bool OnAccepted(Channel stream, const ConnectionId& id);

 private:
  void Measure(int first);
  void AddDialled();

  TcpStreams& streams_;
  TcpSender& sender_;
  StreamChoice choice_;
  bool enabled_ = false, dialer_ = false;
  int set_ = 0;             // the number of streams; 0: chosen by measurement
  bool long_path_ = false;  // the path is long, and no number is configured
  // The dialer's state. dialling_: number of streams that were dialled and not added. dialled_: of
  // these, the streams that are established on this side. standing_: the ids of the streams for
  // which the peer has sent STANDS, in the order of their numbers.
  bool invited_ = false, gave_up_ = false;
  int asked_ = 0, dialling_ = 0;
  std::vector<std::pair<uint64_t, Channel>> dialled_;
  std::vector<uint64_t> standing_;
  // The other side's state.
  int said_ = -1;
  int sendable_ = 0;  // this side may send on the first `sendable_` streams
  // The last measurement: the number of streams, and the progress and the large bytes
  // (TcpSender::large_bytes) at that time.
  int measured_ = 0;
  TcpStreams::Progress last_;
  int64_t last_large_ = 0;
};

}  // namespace entrain
