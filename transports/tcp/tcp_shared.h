// The state that the paths of one tcp transport share, and the interface from a path to its
// transport.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "lib/net/channel.h"
#include "lib/net/handshake.h"
#include "lib/net/keep_alive.h"
#include "transports/matching.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"

namespace entrain {

class TcpEndpoint;

// The first two connections of a path, with their handshakes done.
struct PathSockets {
  ConnectionId id{};  // id of the first connection
  Channel first, line;
  bool checksums = false;  // frames on both connections have checksums
  bool whole() const { return first.valid() && line.valid(); }
};

// Settings of all paths.
struct PathSettings {
  int streams = 0;         // result of ParseTcpStreams
  std::string congestion;  // congestion control of long paths; empty: the host's
  KeepAlive keep_alive;
  int64_t least_round_trip_ns = 0;  // TransportConfig::least_round_trip_ns
};

// The state that endpoints share, and the interface to their transport. Must outlive them.
class TcpShared {
 public:
  TcpShared(Events* its_engine, std::unique_ptr<TimedWait> its_waiter)
      : engine(its_engine), waiter(std::move(its_waiter)) {}
  virtual ~TcpShared() = default;
  // Called when the endpoint's connections are established.
  virtual void OnConnected(TcpEndpoint* endpoint, PathSockets sockets) = 0;
  // Called when the peer has dialled a further connection of the path whose first connection is
  // `connection`. Returns false, and leaves `channel` alone, if this path is not connected.
  // `id` is the id of the further connection.
  virtual bool OnFurther(const PeerId& peer, const ConnectionId& connection, const ConnectionId& id,
                         Channel* channel) = 0;
  // Called when the endpoint needs one more stream. OnStreamDialled must report the result.
  virtual void DialStream(TcpEndpoint* endpoint) = 0;
  // OnWatched is called when epoll begins to watch a socket of the endpoint, OnUnwatched before the
  // socket is closed.
  virtual void OnWatched(TcpEndpoint* endpoint, int fd) = 0;
  virtual void OnUnwatched(int fd) = 0;
  // Called when the endpoint closes before its connection is established. The peer must be told
  // when it arrives.
  virtual void OnClosedEarly(TcpEndpoint* endpoint, const absl::Status& why) = 0;
  // OnDisconnected is called just before the endpoint's sockets are closed, OnDestroyed just before
  // the endpoint is destroyed.
  virtual void OnDisconnected(TcpEndpoint* endpoint) = 0;
  virtual void OnDestroyed(TcpEndpoint* endpoint) = 0;

  Events* const engine;
  const std::unique_ptr<TimedWait> waiter;
  CompletionList completions;  // run by the transport at the end of its Poll
  int paths = 0;  // number of paths, connected or not; they share the link of this host
  // The memory of this process that its peers on long paths may still borrow for early messages, in
  // bytes. A path takes its part when it is connected, and gives it back when it ends.
  int64_t lendable = int64_t{512} << 20;
};

}  // namespace entrain
