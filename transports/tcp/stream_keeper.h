// Keeps the streams of a path and the number in use. The two processes of the path agree on the
// streams.
//
// The dialer of the path dials the streams, one after another. It begins when the other side has
// sent WANT, and dials the larger of the numbers that the two sides want. The other side sends
// STANDS for a stream when it can read from it, and the dialer answers with STANDS. A side that has
// received STANDS may send on that stream. A stream that cannot be dialled is omitted. Each process
// decides how many streams it sends on: a configured number, or StreamChoice's.
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
  // Must be called when the path's connection is established. `setting` comes from ParseTcpStreams.
  // Between processes of one host there are only as many streams as configured.
  void Begin(bool dialer, int setting, bool one_host);
  // Must be called from time to time while there is traffic. `first` is the socket of the path's
  // first connection. Returns true if one more stream must be dialled; the result must then be
  // reported.
  bool Tend(int first);

  // ---- Functions for the peer's packets.
  void OnWant(uint64_t streams);
  absl::Status OnStands(uint64_t stream);
  // Report the result of dialling. OnDialled: the stream is established at this end. OnNotDialled:
  // it is not, and no further streams are tried.
  void OnDialled(Channel stream);
  void OnNotDialled() { gave_up_ = true; }
  // Takes a stream that the peer has dialled. Returns false if the stream is not wanted.
  bool OnAccepted(Channel stream);

 private:
  void Measure(int first);
  void AddDialled();

  TcpStreams& streams_;
  TcpSender& sender_;
  StreamChoice choice_;
  bool enabled_ = false, dialer_ = false;
  int set_ = 0;  // the configured number, or 0
  // The dialer's state.
  bool invited_ = false, dialling_ = false, gave_up_ = false;
  int asked_ = 0;
  Channel dialled_;      // the new stream, established at this end
  bool stands_ = false;  // the peer has sent STANDS for dialled_
  // The other side's state.
  int said_ = -1;
  int sendable_ = 0;  // this side may send on the first `sendable_` streams
  // The last measurement: number of streams, and progress and bytes at that time.
  int measured_ = 0;
  TcpStreams::Progress last_;
  int64_t last_large_ = 0;
};

}  // namespace entrain
