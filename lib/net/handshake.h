// The first bytes on every connection, before anything else is parsed or allocated. They have a
// fixed size and a deadline. They prove that both ends speak our protocol version, have the same
// purpose, and hold the same key.
//
//   hello   (64 bytes)  magic "ENTRAIN1", u16 version low, u16 version high, u16 purpose, u16 flags
//                       (1: key in use), 16 bytes sender's peer id, 16 bytes nonce, 16 bytes
//                       "further to": zero, or the dialer's nonce of an earlier connection of the
//                       two, beside which the dialer opens this one
//   proof   (32 bytes)  HMAC-SHA-256(K, dialer's hello || listener's hello), where
//                       K = HKDF-SHA-256(key, salt "entrain handshake 3", info "ROLE PURPOSE"),
//                       32 bytes. ROLE is the prover's: "dialer" or "listener". PURPOSE is
//                       "store", "data" or "shm".
//                       Without a key: SHA-256("ROLE PURPOSE" || both hellos), which only guards
//                       against strangers and stray scans.
//                       32 zero bytes: the dialer's proof was wrong.
//
// Both ends send their hello at once. The dialer proves first: it sends its proof when it has
// checked the listener's hello. A listener sends nothing that depends on the key before it has
// checked the dialer's proof, so that a stranger learns nothing from which to guess the key. A
// difference in version, purpose or key use, or a wrong proof, ends the connection with an error
// that names the difference.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"

namespace entrain {

enum class Purpose : uint16_t { kStore = 1, kData = 2, kShm = 3 };

// The name of a connection at both its ends: the dialer's nonce. All zero: no connection.
using ConnectionId = std::array<uint8_t, 16>;

// The state machine of one side. It has no socket: the caller passes in the bytes that arrived, and
// sends the bytes that it returns.
class Handshake {
 public:
  static constexpr size_t kHelloBytes = 64, kProofBytes = 32;

  Handshake(bool dialer, Purpose purpose, const std::array<uint8_t, 16>& self,
            absl::string_view key, const ConnectionId& further_to = {});
  // Returns the bytes to send now. Empty: there is nothing to send until more has arrived.
  std::string TakeOutput();
  // Returns how many bytes the next Consume needs, 0 when done. The caller must not read more than
  // this from the peer.
  size_t wanted() const;
  // Takes exactly wanted() bytes. After an error there may be output too: the refusal, which tells
  // the dialer the reason.
  absl::Status Consume(absl::string_view bytes);
  bool done() const;
  // Returns the other side's id. Valid once its hello was consumed.
  const std::array<uint8_t, 16>& peer() const;
  // Return this connection, and the earlier connection that the dialer's hello names. Valid once
  // the other side's hello was consumed.
  ConnectionId connection() const;
  ConnectionId further_to() const;

 private:
  absl::Status CheckHello(absl::string_view bytes) const;
  absl::Status CheckProof(absl::string_view bytes) const;
  // Computes the proof of the dialer or of the listener, whichever this side is.
  absl::StatusOr<std::string> Proof(bool dialer) const;

  bool dialer_;
  Purpose purpose_;
  std::string key_, mine_, theirs_, output_;
  int step_ = 0;  // 0: wants hello, 1: wants proof, 2: done
  std::array<uint8_t, 16> peer_{};
};

// Takes one step of the machine over a socket: sends the output, then reads and consumes the bytes
// that it wants. Blocks until that is done or `stop` ends it. A dialer's first step leaves its
// proof as output, so that the caller can send it together with what follows.
absl::Status StepHandshake(int fd, Handshake& handshake, const Stop& stop);

// Takes all steps. Returns the other side's id.
absl::StatusOr<std::array<uint8_t, 16>> RunHandshake(int fd, Handshake& handshake,
                                                     const Stop& stop);

// Fills `out` with bytes from the kernel's random source.
void RandomBytes(void* out, size_t bytes);

}  // namespace entrain
