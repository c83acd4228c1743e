// Runs the handshake (handshake.h) over a non-blocking connection. If a side wants TLS, also runs
// the handshake of TLS.
//
//   dialer                                         listener
//     | hello ------------------\ /----------------- hello |   plain
//     | proof, TLS: ClientHello --------------------------> |   the listener checks the proof, then
//     | <------------------ TLS: ServerHello ... Finished   |   reads the bytes behind it
//     | TLS: Finished  -----------------------------------> |
//     | <----------------------- in TLS: proof              |
//
// TLS is bound to both hellos (tls_session.h). Until a listener has checked the dialer's proof, it
// reads only the bytes of the handshake, and creates no object of TLS.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/net/channel.h"
#include "lib/net/handshake.h"
#include "lib/net/security.h"
#include "lib/net/socket.h"

namespace entrain {

class Handshaker {
 public:
  // `peer`: the address of the other end, or the default address for a local socket.
  Handshaker(Fd fd, const Address& peer, bool dialer, Purpose purpose,
             const std::array<uint8_t, 16>& self, const Security& security,
             const ConnectionId& further_to = {});

  // Continues as far as possible without blocking. Returns true once the handshake is done. An
  // error is final. If `until_proved` is true, Progress reads nothing more once proved() returns
  // true. If the connection ends after that, the caller's next operation returns the error.
  absl::StatusOr<bool> Progress(bool until_proved = false);
  // Returns true if Progress can continue once the socket is writable. Progress can always continue
  // once the socket is readable.
  bool unsent() const { return !output_.empty() || channel_.unsent(); }
  // Returns true if nothing has been received.
  bool silent() const { return !heard_; }
  // Returns true if this side is the dialer and only the listener's proof is missing. The dialer
  // may then send by channel(). Without TLS, the listener has then not yet proved that it holds the
  // key.
  bool proved() const;
  const Handshake& handshake() const { return handshake_; }
  int fd() const { return channel_.fd(); }
  Channel& channel() { return channel_; }
  // Returns the connection after the handshake.
  Channel Take() { return std::move(channel_); }

 private:
  // Reads the bytes that the handshake needs next. Returns false if not all of them have arrived.
  absl::StatusOr<bool> Read();
  absl::Status Write();
  absl::Status Consume();
  absl::Status BeginTls();
  absl::StatusOr<bool> Shake();

  const bool dialer_;
  Handshake handshake_;
  Channel channel_;
  std::shared_ptr<const TlsContext> tls_;
  bool answered_ = false;  // the first byte of the listener's answer has come
  bool shaken_ = false;    // the handshake of TLS is done
  bool heard_ = false;
  std::string output_;
  char input_[Handshake::kHelloBytes];
  size_t have_ = 0;
};

// Blocks until the handshake is done, or `stop` ends it.
absl::Status RunHandshake(Handshaker& handshaker, const Stop& stop);
// Blocks until the dialer may send: Handshaker::proved returns true, or the handshake is done.
absl::Status RunUntilProved(Handshaker& handshaker, const Stop& stop);

}  // namespace entrain
