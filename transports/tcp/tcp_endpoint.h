// A tcp path to one peer. It waits for its connections, is connected, or has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/net/channel.h"
#include "lib/net/handshake.h"
#include "lib/net/keep_alive.h"
#include "transports/matching.h"
#include "transports/tcp/control_line.h"
#include "transports/tcp/stream_keeper.h"
#include "transports/tcp/tcp_receiver.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/tcp/tcp_streams.h"
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
  int streams = 0;  // result of ParseTcpStreams
  KeepAlive keep_alive;
};

// The state that endpoints share, and the interface to their transport. Must outlive them.
class TcpShared {
 public:
  TcpShared(Events* its_engine, std::unique_ptr<TimedWait> its_waiter)
      : engine(its_engine), waiter(std::move(its_waiter)) {}
  virtual ~TcpShared() = default;
  // Called when the endpoint's connections are established.
  virtual void OnConnected(TcpEndpoint* endpoint, PathSockets sockets) = 0;
  // Called when the peer has dialled a further connection beside `connection`. Returns false, and
  // leaves `channel` alone, if there is no such path.
  virtual bool OnFurther(const PeerId& peer, const ConnectionId& connection, Channel* channel) = 0;
  // Called when the endpoint needs one more stream. OnStreamDialled must report the result.
  virtual void DialStream(TcpEndpoint* endpoint) = 0;
  // OnWatched is called when epoll begins to watch a socket of the endpoint, OnUnwatched when it
  // stops.
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
  CompletionList completions;
};

class TcpEndpoint final : public Endpoint {
 public:
  // `dials`: this process dials `address`. Otherwise the peer dials.
  TcpEndpoint(TcpShared* shared, const PeerId& peer, const Address& address, bool dials,
              const PathSettings& settings, Deadline connect_by);
  ~TcpEndpoint() override;

  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override;
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) override;
  bool HasEarly(Tag tag) const override { return receiver_.HasEarly(tag); }
  Sent TrySend(const Envelope& envelope, ConstBytes bytes, SendRequest* request) override;
  Next TryRecv(const Envelope& envelope, Bytes into, const std::byte** where) override;
  void SendControl(absl::string_view message) override;
  bool SendUrgent(absl::string_view message) override;
  void Revoke(Context mine, Context theirs, const absl::Status& why) override;
  void Close(const absl::Status& why) override;
  std::string peer_address() const override { return "tcp " + address_.ToString(); }
  int64_t round_trip_ns() const override;

  // ---- For the transport, from Poll.
  void Attach(PathSockets sockets);  // called when the handshakes are done
  // Report a further connection, dialled by this side or by the peer.
  void OnStreamDialled(absl::StatusOr<Channel> stream);
  void OnStreamAccepted(Channel stream);
  void Lose(const absl::Status& why);  // reported as OnLost by the next Report
  int Report();
  int Flush();
  int Read();
  // Handles an event of `fd`, one of the endpoint's sockets.
  int OnReady(int fd);

  const PeerId& peer() const { return peer_; }
  Deadline connect_by() const { return connect_by_; }
  int fd() const { return first_.fd(); }
  int line() const { return line_.fd(); }
  const TcpStreams& streams() const { return streams_; }
  const Address& address() const { return address_; }
  const ConnectionId& connection() const { return connection_; }
  bool connected() const { return first_.valid(); }
  // Returns true if a read may bring a message for which a caller waits.
  bool expecting() const { return connected() && (receiver_.expecting() || sender_.awaiting()); }
  // Returns true if bytes were read that only Read can handle.
  bool unparsed() const { return connected() && (receiver_.unparsed(first_) || line_.buffered()); }
  bool pending() const { return connected() && (writing() || line_.pending()); }
  bool reporting() const { return !failed_.ok(); }
  // Must be called before sleeping. Returns false if Flush can continue now.
  bool Arm();

 private:
  bool ended() const { return !end_.ok(); }
  // Returns true if the sender has something to write.
  bool writing() const { return sender_.pending() || first_.unsent(); }
  // Returns true if the first connection waits until its socket is writable.
  bool framed() const { return sender_.framed() || first_.unsent(); }
  void End(const absl::Status& why);
  void Disconnect();
  // Calls TcpSender::Flush. Causes no events.
  absl::StatusOr<int64_t> Write();
  // Handle the control line. WriteLine also returns false, and ReadLine 0 messages, if the line or
  // the path is over.
  bool WriteLine();
  int ReadLine();
  bool OnLine(const absl::StatusOr<ControlLine::State>& state);
  void CloseLine();
  // Moves the unsent messages of the control line to the first connection.
  void TakeOver();
  void LoseAfterReading(const absl::Status& why);
  void TendStreams();
  // Registers with epoll the events for which the endpoint waits. If `only` is false, those
  // registered before stay registered.
  void Watch(bool only);
  void Watch(int fd, uint32_t events, uint32_t* watched);

  TcpShared* const shared_;
  const PeerId peer_;
  const Address address_;
  const bool dials_;
  const PathSettings settings_;
  const Deadline connect_by_;
  Channel first_;
  ConnectionId connection_{};
  bool one_host_ = false;    // both ends are on one host
  uint32_t watched_ = 0;     // events registered for the first connection
  int watched_streams_ = 0;  // number of streams registered with epoll
  absl::Status end_;         // reason of the end
  absl::Status failed_;      // error that the next Report passes to OnLost
  ControlLine line_;
  uint32_t watched_line_ = 0;
  bool line_over_ = false;  // urgent messages use the first connection from now on
  TcpStreams streams_;
  TcpSender sender_;
  StreamKeeper keeper_;
  TcpReceiver receiver_;
};

// Closes a connection that has no endpoint (any more). Tells the peer the reason if that needs no
// waiting.
void SayGoodbye(PathSockets sockets, absl::string_view why);

}  // namespace entrain
