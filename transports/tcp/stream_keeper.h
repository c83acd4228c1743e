// Which streams a path has, as its two processes agree, and how many it uses.
//
// Who dialled the path dials them, one after another, once the other has said WANT: as many as either wants. The other
// says STANDS of each when it can read from it, and the dialer answers with the same: whoever has heard it may send by
// that stream. One that cannot be dialled is done without. Either process decides for itself by how many it sends: a
// number that was set, or StreamChoice's.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "lib/net/socket.h"
#include "transports/tcp/stream_choice.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/tcp/tcp_streams.h"

namespace entrain {

class StreamKeeper {
 public:
  // Both outlive this.
  StreamKeeper(TcpStreams* streams, TcpSender* sender) : streams_(*streams), sender_(*sender) {}

  TcpStreams& streams() { return streams_; }
  // The path's connection stands. `setting`: as ParseTcpStreams gives it. Between processes of one host there are only
  // as many as are set.
  void Begin(bool dialer, int setting, bool one_host);
  // From time to time while there is traffic. `first`: the path's first connection. True: dial one more, and say what
  // became of it.
  bool Tend(int first);

  // What the peer says.
  void OnWant(uint64_t streams);
  absl::Status OnStands(uint64_t stream);
  // One that was to be dialled stands at this end; or not, and no more are tried.
  void OnDialled(Fd fd);
  void OnNotDialled() { gave_up_ = true; }
  // One that the peer has dialled. False: it is not wanted.
  bool OnAccepted(Fd fd);

 private:
  void Measure(int first);
  void AddDialled();

  TcpStreams& streams_;
  TcpSender& sender_;
  StreamChoice choice_;
  bool enabled_ = false, dialer_ = false;
  int set_ = 0;  // how many, if somebody said
  // Of who dials.
  bool invited_ = false, dialling_ = false, gave_up_ = false;
  int asked_ = 0;
  Fd dialled_;           // the one under way stands at this end,
  bool stands_ = false;  // and at the other
  // Of the other.
  int said_ = -1;
  int sendable_ = 0;  // of the streams, the first so many
  // The last measurement: of how many, and when how much had been sent.
  int measured_ = 0;
  TcpStreams::Progress last_;
  int64_t last_large_ = 0;
};

}  // namespace entrain
