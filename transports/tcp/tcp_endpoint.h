// A tcp path to one peer: waiting for its connection, connected, ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/net/handshake.h"
#include "lib/net/socket.h"
#include "transports/matching.h"
#include "transports/tcp/stream_keeper.h"
#include "transports/tcp/tcp_receiver.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/tcp/tcp_streams.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"

namespace entrain {

class TcpEndpoint;

// What endpoints share, and what they tell their transport. Outlives them.
class TcpShared {
 public:
  TcpShared(Events* its_engine, std::unique_ptr<TimedWait> its_waiter)
      : engine(its_engine), waiter(std::move(its_waiter)) {}
  virtual ~TcpShared() = default;
  // The endpoint's connection stands, greeted and ready for frames.
  virtual void OnConnected(TcpEndpoint* endpoint, Fd fd, const ConnectionId& connection) = 0;
  // A further connection that the peer has dialled beside `connection`.
  virtual void OnFurther(const PeerId& peer, const ConnectionId& connection, Fd fd) = 0;
  // The endpoint wants one more stream dialled; OnStreamDialled says what became of it.
  virtual void DialStream(TcpEndpoint* endpoint) = 0;
  // Epoll watches one more socket of the endpoint's.
  virtual void OnStream(TcpEndpoint* endpoint, int fd) = 0;
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
              int streams, Deadline connect_by);
  ~TcpEndpoint() override;

  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override;
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done) override;
  bool TrySend(const Envelope& envelope, ConstBytes bytes) override;
  Next TryRecv(const Envelope& envelope, Bytes into) override;
  void SendControl(absl::string_view message) override;
  void Revoke(Context mine, Context theirs, const absl::Status& why) override;
  void Close(const absl::Status& why) override;
  std::string peer_address() const override { return "tcp " + address_.ToString(); }

  // For the transport, from Poll.
  void Attach(Fd fd, const ConnectionId& connection);  // the handshake is done
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
  const TcpStreams& streams() const { return streams_; }
  const Address& address() const { return address_; }
  const ConnectionId& connection() const { return connection_; }
  bool connected() const { return fd_.valid(); }
  // Whether a read may bring what somebody waits for.
  bool expecting() const { return connected() && (receiver_.expecting() || sender_.awaiting()); }
  // Something was read that only Read can handle.
  bool unparsed() const { return connected() && receiver_.unparsed(); }
  bool pending() const { return connected() && sender_.pending(); }
  bool reporting() const { return !failed_.ok(); }
  // Before sleeping. False: Flush can go on now.
  bool Arm();

 private:
  bool ended() const { return !end_.ok(); }
  void End(const absl::Status& why);
  void Disconnect();
  // As TcpSender::Flush; calls nobody.
  absl::StatusOr<int64_t> Write();
  void TendStreams();
  // Asks epoll for what this waits for; `only` that, or also for what it was asked for before.
  void Watch(bool only);
  void Watch(int fd, uint32_t events, uint32_t* watched);

  TcpShared* const shared_;
  const PeerId peer_;
  const Address address_;
  const bool dials_;
  const int stream_setting_;
  const Deadline connect_by_;
  Fd fd_;
  ConnectionId connection_{};
  uint32_t watched_ = 0;     // what epoll has been asked about fd_
  int watched_streams_ = 0;  // so many are known to epoll
  absl::Status end_;         // why it has ended
  absl::Status failed_;      // to be reported as OnLost
  TcpStreams streams_;
  TcpSender sender_;
  StreamKeeper keeper_;
  TcpReceiver receiver_;
};

// Ends a connection that has no endpoint (any more), telling the peer why if that needs no waiting.
void SayGoodbye(Fd fd, absl::string_view why);

}  // namespace entrain
