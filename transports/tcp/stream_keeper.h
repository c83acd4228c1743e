// Manages the streams of a path (tcp_streams.h). The two processes of the path agree on the streams
// that exist. Each process chooses how many of these streams it uses.
//
// The dialer of the path dials the streams, one after another. It begins when the other side has
// sent WANT. WANT carries the number of streams that the other side wants. The dialer dials the
// larger of this number and its own. When the other side can read from a stream, it sends STANDS,
// and the dialer answers with STANDS. A side may send on a stream after it has received STANDS for
// this stream. If a stream cannot be dialled, the dialer dials no more streams. The number of
// streams on which a process sends is configured, or chosen by StreamChoice.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "lib/net/channel.h"
#include "transports/tcp/stream_choice.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/tcp/tcp_streams.h"

namespace entrain {

class StreamKeeper {
 public:
  // Both arguments must outlive the object.
  StreamKeeper(TcpStreams* streams, TcpSender* sender) : streams_(*streams), sender_(*sender) {}

  TcpStreams& streams() { return streams_; }
  // Must be called when the path is connected. `setting` is the result of ParseTcpStreams. With
  // `one_host`, the number of streams is never chosen by measurement.
  void Begin(bool dialer, int setting, bool one_host);
  // Must be called from time to time while there is traffic. `first` is the socket of the path's
  // first connection. Returns true if the caller must dial one more stream and report the result
  // (OnDialled, OnNotDialled).
  bool Tend(int first);

  // ---- Functions for the peer's packets.
  void OnWant(uint64_t streams);
  absl::Status OnStands(uint64_t stream);
  // Report the result of dialling. OnDialled: the stream is established on this side. OnNotDialled:
  // the dial has failed, so no more streams will be dialled.
  void OnDialled(Channel stream);
  void OnNotDialled() { gave_up_ = true; }
  // Takes a stream that the peer has dialled. Returns false if this side does not want the stream.
  bool OnAccepted(Channel stream);

 private:
  void Measure(int first);
  void AddDialled();

  TcpStreams& streams_;
  TcpSender& sender_;
  StreamChoice choice_;
  bool enabled_ = false, dialer_ = false;
  int set_ = 0;  // the configured number of streams; 0: chosen by measurement
  // The dialer's state.
  bool invited_ = false, dialling_ = false, gave_up_ = false;
  int asked_ = 0;
  Channel dialled_;      // the new stream, established on this side
  bool stands_ = false;  // the peer has sent STANDS for dialled_
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
