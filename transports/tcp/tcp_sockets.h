// The sockets of a connected path: its first connection, its control line and its streams. Sets the
// options of the sockets, and registers with epoll the events for which each socket waits.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/net/channel.h"
#include "lib/net/handshake.h"
#include "lib/net/keep_alive.h"
#include "transports/tcp/control_line.h"
#include "transports/tcp/tcp_shared.h"
#include "transports/tcp/tcp_streams.h"

namespace entrain {

class TcpSockets {
 public:
  // `shared` must outlive the object. `owner` is only passed to `shared`.
  TcpSockets(TcpShared* shared, TcpEndpoint* owner) : shared_(*shared), owner_(owner) {}
  ~TcpSockets() { Close(); }
  TcpSockets(const TcpSockets&) = delete;
  TcpSockets& operator=(const TcpSockets&) = delete;

  // Must be called once, when the handshakes are done. Watches both connections for input. The
  // sockets are open even if this call returns an error.
  absl::Status Open(PathSockets sockets, const KeepAlive& keep_alive);
  // Closes all sockets.
  void Close();
  // Closes the control line alone.
  void CloseLine();
  // Returns true between Open and Close.
  bool open() const { return first_.valid(); }

  Channel& first() { return first_; }
  const Channel& first() const { return first_; }
  ControlLine& line() { return line_; }
  const ControlLine& line() const { return line_; }
  TcpStreams& streams() { return streams_; }
  const TcpStreams& streams() const { return streams_; }
  const ConnectionId& id() const { return id_; }
  // Returns true if both ends are on one host.
  bool one_host() const { return one_host_; }
  // Returns the shortest round trip that the kernel has measured lately, or 0 if there is none.
  int64_t round_trip_ns() const;

  // Must be called after Open if the path is long. `congestion`: the congestion control of its
  // connections; empty: the host's.
  void SetLongPath(const std::string& congestion);
  // Sets the options of streams that were added since the last call, and registers them with epoll.
  absl::Status TakeStreams();
  // Registers exactly the events for which the sockets wait. For the first connection, these are
  // input if `input`, and room in its send buffer if `room`. The control line and the streams know
  // their events themselves.
  absl::Status Watch(bool input, bool room);
  // Adds the events for which the sockets wait, except room in the first connection. Events that
  // are not wanted any more stay registered, because a change costs a system call.
  absl::Status WatchAlso(bool input);
  // Returns true if epoll reports room in the first connection.
  bool watches_room() const;
  // Must be called when epoll has reported `fd`. If `fd` is a stream that has ended and has nothing
  // to deliver, removes it from epoll.
  void DropEndedStream(int fd);

  // Ends the sending direction of the first connection and the streams (EndSending).
  void EndSendingAll();
  // Makes Close reset the first connection and the control line, or the control line alone. Without a
  // reset the peer would assume that this process has ended, but this process goes on.
  void ResetWhenClosed();
  void ResetLineWhenClosed();

 private:
  absl::Status Add(int fd, uint32_t events);
  // Registers the events of all sockets. `first` are the events of the first connection. Events
  // that were registered before and are in `kept` stay registered, except on the control line.
  absl::Status Register(uint32_t first, uint32_t kept);
  absl::Status Change(int fd, uint32_t events, uint32_t* watched);
  void Remove(int fd);

  TcpShared& shared_;
  TcpEndpoint* const owner_;
  Channel first_;
  ConnectionId id_{};
  ControlLine line_;
  TcpStreams streams_;
  bool one_host_ = false;
  std::string congestion_;  // of a long path; empty: the host's
  // Registered events of the first connection, the control line, and each stream.
  uint32_t watched_first_ = 0, watched_line_ = 0;
  std::vector<uint32_t> watched_streams_;
};

// Returns an error if this process cannot choose the congestion control `name`. The error names those
// that it can choose. An empty name is always right.
absl::Status CheckTcpCongestion(absl::string_view name);

// Ends the sending direction of a connection. Then reads and discards bytes that the peer has sent:
// closing a socket with unread bytes would reset the connection, and the peer could lose this
// side's last message.
void EndSending(int fd);

}  // namespace entrain
