// A tcp path to one peer. It waits for its connections, is connected, or has ended.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "lib/net/channel.h"
#include "lib/net/handshake.h"
#include "transports/matching.h"
#include "transports/tcp/control_line.h"
#include "transports/tcp/stream_keeper.h"
#include "transports/tcp/tcp_receiver.h"
#include "transports/tcp/tcp_sender.h"
#include "transports/tcp/tcp_shared.h"
#include "transports/tcp/tcp_sockets.h"
#include "transports/transport.h"

namespace entrain {

// The peer of a path, and how it is reached.
struct PathTarget {
  PeerId peer{};
  Address address;      // the peer's address
  bool dials = false;   // true: this process dials `address`. false: the peer dials
  Deadline connect_by;  // the path is lost if it is not connected by then
};

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(TcpShared* shared, const PathTarget& target, const PathSettings& settings);
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
  std::string peer_address() const override { return "tcp " + target_.address.ToString(); }
  int64_t round_trip_ns() const override;
  uint64_t received() const override { return received_; }

  // ---- For the transport, from Poll.
  void Attach(PathSockets sockets);  // called when the handshakes are done
  // Report a stream, dialled by this side or by the peer.
  // `id` is the id of the stream's connection.
  void OnStreamDialled(absl::StatusOr<Channel> stream, const ConnectionId& id);
  void OnStreamAccepted(Channel stream, const ConnectionId& id);
  void Lose(const absl::Status& why);  // reported as OnLost by the next Report
  int Report();
  int Flush();
  // With `frames` false, reads only the streams.
  int Read(bool frames = true);
  // Handles an event of `fd`, one of the endpoint's sockets.
  int OnReady(int fd);

  const PathTarget& target() const { return target_; }
  const ConnectionId& connection() const { return sockets_.id(); }
  bool connected() const { return sockets_.open(); }
  // Returns true if the path is long. Then only epoll knows which of its sockets to read.
  bool long_path() const { return sockets_.streams().long_path(); }
  // Returns true if a read may bring a message for which a caller waits.
  bool expecting() const { return connected() && (receiver_.expecting() || sender_.awaiting()); }
  // Returns true if bytes that were already read from a socket wait for Read.
  bool unparsed() const {
    return connected() && (receiver_.unparsed(sockets_.first()) || sockets_.line().buffered());
  }
  bool pending() const { return connected() && (writing() || sockets_.line().pending()); }
  // Returns true if Flush should be called again soon, although no event will ask for it.
  bool waits_for_streams() const { return connected() && sender_.waits_for_streams(); }
  // Must be called before sleeping. Returns false if Flush or Report can continue now.
  bool Arm();

 private:
  bool ended() const { return !end_.ok(); }
  // Returns true if the sender has something to write.
  bool writing() const { return sender_.pending() || sockets_.first().unsent(); }
  void End(const absl::Status& why);
  void Disconnect();
  // Calls TcpSender::Flush. Causes no events.
  absl::StatusOr<int64_t> Write();
  // Write and read the control line. WriteLine returns false if the line or the path is over.
  // ReadLine returns the number of messages.
  bool WriteLine();
  int ReadLine();
  bool OnLine(const absl::StatusOr<ControlLine::State>& state);
  // Moves the unsent messages of the control line to the first connection.
  void TakeOver();
  void LoseAfterReading(const absl::Status& why);
  // Returns true if `why`, the end of the first connection, comes from the end of the peer's process.
  bool ProvesEnd(const absl::Status& why) const;
  void TendStreams();
  // Adapts a new path to a round trip of this length. Returns the number of streams that the path
  // needs because it is long, or 0.
  int SetLongPath(int64_t round_trip_ns);

  TcpShared* const shared_;
  const PathTarget target_;
  const PathSettings settings_;
  absl::Status end_;            // reason of the end
  absl::Status failed_;         // error that the next Report passes to OnLost
  int64_t lent_ = 0;            // part of TcpShared::lendable
  uint64_t received_ = 0;       // bytes that Read has got
  int64_t line_closed_ns_ = 0;  // when the peer has closed the control line; 0: it has not
  bool line_over_ = false;      // urgent messages use the first connection from now on
  TcpSockets sockets_;
  TcpSender sender_;
  StreamKeeper keeper_;
  TcpReceiver receiver_;
};

// Closes the connections of a path that has no endpoint (any more). Tells the peer the reason, if
// that is possible without waiting.
void SayGoodbye(PathSockets sockets, absl::string_view why);

}  // namespace entrain
