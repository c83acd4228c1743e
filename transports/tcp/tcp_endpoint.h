// A tcp path to one peer: waiting for its connection, connected, ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/net/handshake.h"
#include "lib/net/keep_alive.h"
#include "lib/net/socket.h"
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

// The connections that a path begins with, with their handshakes done.
struct PathSockets {
  ConnectionId id{};  // the first one's
  Fd first, line;
  bool whole() const { return first.valid() && line.valid(); }
};

// What was set for all paths.
struct PathSettings {
  int streams = 0;  // as ParseTcpStreams gives it
  KeepAlive keep_alive;
};

// What endpoints share, and what they tell their transport. Outlives them.
class TcpShared {
 public:
  TcpShared(Events* its_engine, std::unique_ptr<TimedWait> its_waiter)
      : engine(its_engine), waiter(std::move(its_waiter)) {}
  virtual ~TcpShared() = default;
  // The endpoint's connections stand.
  virtual void OnConnected(TcpEndpoint* endpoint, PathSockets sockets) = 0;
  // A further connection that the peer has dialled beside `connection`. False: there is no such path; `fd` is left.
  virtual bool OnFurther(const PeerId& peer, const ConnectionId& connection, Fd* fd) = 0;
  // The endpoint wants one more stream dialled; OnStreamDialled says what became of it.
  virtual void DialStream(TcpEndpoint* endpoint) = 0;
  // Epoll watches one more socket of the endpoint's, or one less.
  virtual void OnWatched(TcpEndpoint* endpoint, int fd) = 0;
  virtual void OnUnwatched(int fd) = 0;
  // The endpoint closes before its connection stood: the peer should be told when it does.
  virtual void OnClosedEarly(TcpEndpoint* endpoint, const absl::Status& why) = 0;
  // The endpoint's sockets are about to be closed; the endpoint is about to be destroyed.
  virtual void OnDisconnected(TcpEndpoint* endpoint) = 0;
  virtual void OnDestroyed(TcpEndpoint* endpoint) = 0;

  Events* const engine;
  const std::unique_ptr<TimedWait> waiter;
  CompletionList completions;
};

class TcpEndpoint final : public Endpoint {
 public:
  // `dials`: this process dials, to `address`; else the peer does.
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

  // For the transport, from Poll.
  void Attach(PathSockets sockets);  // the handshakes are done
  // Of a further connection: dialled from here, or from there.
  void OnStreamDialled(absl::StatusOr<Fd> fd);
  void OnStreamAccepted(Fd fd);
  void Lose(const absl::Status& why);  // reported as OnLost by the next Report
  int Report();
  int Flush();
  int Read();
  // Epoll says something of `fd`, one of its sockets.
  int OnReady(int fd);

  const PeerId& peer() const { return peer_; }
  Deadline connect_by() const { return connect_by_; }
  int fd() const { return fd_.get(); }
  int line() const { return line_.fd(); }
  const TcpStreams& streams() const { return streams_; }
  const Address& address() const { return address_; }
  const ConnectionId& connection() const { return connection_; }
  bool connected() const { return fd_.valid(); }
  // Whether a read may bring what somebody waits for.
  bool expecting() const { return connected() && (receiver_.expecting() || sender_.awaiting()); }
  // Something was read that only Read can handle.
  bool unparsed() const { return connected() && receiver_.unparsed(); }
  bool pending() const { return connected() && (sender_.pending() || line_.pending()); }
  bool reporting() const { return !failed_.ok(); }
  // Before sleeping. False: Flush can go on now.
  bool Arm();

 private:
  bool ended() const { return !end_.ok(); }
  void End(const absl::Status& why);
  void Disconnect();
  // As TcpSender::Flush; calls nobody.
  absl::StatusOr<int64_t> Write();
  // Of the control line. False, or 0 messages: also when it is over, or the path.
  bool WriteLine();
  int ReadLine();
  bool OnLine(const absl::StatusOr<ControlLine::State>& state);
  void CloseLine();
  // What has not left by the control line goes by the first connection.
  void TakeOver();
  void LoseAfterReading(const absl::Status& why);
  void TendStreams();
  // Asks epoll for what this waits for; `only` that, or also for what it was asked for before.
  void Watch(bool only);
  void Watch(int fd, uint32_t events, uint32_t* watched);

  TcpShared* const shared_;
  const PeerId peer_;
  const Address address_;
  const bool dials_;
  const PathSettings settings_;
  const Deadline connect_by_;
  Fd fd_;
  ConnectionId connection_{};
  bool one_host_ = false;    // both ends are of it
  uint32_t watched_ = 0;     // what epoll has been asked about fd_
  int watched_streams_ = 0;  // so many are known to epoll
  absl::Status end_;         // why it has ended
  absl::Status failed_;      // to be reported as OnLost
  ControlLine line_;
  uint32_t watched_line_ = 0;
  bool line_over_ = false;  // what is urgent waits with the rest from now on
  TcpStreams streams_;
  TcpSender sender_;
  StreamKeeper keeper_;
  TcpReceiver receiver_;
};

// Ends a connection that has no endpoint (any more), telling the peer why if that needs no waiting.
void SayGoodbye(Fd fd, absl::string_view why);

}  // namespace entrain
