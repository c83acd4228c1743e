// The first bytes on every connection, before anything else is parsed or allocated: fixed size, capped, with a
// deadline. Proves that both ends speak our protocol version, mean the same purpose, and hold the same key.
//
//   hello   (64 bytes)  magic "ENTRAIN1", u16 version low, u16 version high, u16 purpose, u16 flags (1: key in use),
//                       16 bytes sender's peer id, 16 bytes nonce, 16 bytes "further to": zero, or the dialer's nonce
//                       of an earlier connection of the two, beside which the dialer opens this one
//   proof   (32 bytes)  HMAC-SHA-256(key, "entrain" ‖ role ‖ dialer's hello ‖ listener's hello); role of the
//                       prover: 'd' dialer, 'l' listener.
//                       Without a key: SHA-256 of the same, which only guards against strangers and stray scans.
// Both ends send hello at once, then, having read and checked the other's, proof. A difference in version, purpose or
// key use, or a wrong proof, ends the connection with a sentence naming what differs.
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

// A connection as both its ends name it: the dialer's nonce. All zero: none.
using ConnectionId = std::array<uint8_t, 16>;

// A pure machine: no socket inside. Feed it what arrived, send what it gives.
class Handshake {
 public:
  static constexpr size_t kHelloBytes = 64, kProofBytes = 32;

  Handshake(bool dialer, Purpose purpose, const std::array<uint8_t, 16>& self,
            absl::string_view key, const ConnectionId& further_to = {});
  // What to send now; empty when there is nothing to send until more has arrived.
  std::string TakeOutput();
  // How many more bytes to read from the peer before the next Consume; 0 when done. Never read more than this.
  size_t wanted() const;
  // Exactly wanted() bytes.
  absl::Status Consume(absl::string_view bytes);
  bool done() const;
  // The other side's id; valid once its hello was consumed.
  const std::array<uint8_t, 16>& peer() const;
  // This connection, and that to which the dialer says it is further; valid likewise.
  ConnectionId connection() const;
  ConnectionId further_to() const;

 private:
  absl::Status CheckHello(absl::string_view bytes) const;

  bool dialer_;
  Purpose purpose_;
  std::string key_, mine_, theirs_, output_;
  int step_ = 0;  // 0: wants hello, 1: wants proof, 2: done
  std::array<uint8_t, 16> peer_{};
};

// Runs the machine over a socket; returns the other side's id. Blocks until done or `stop`.
absl::StatusOr<std::array<uint8_t, 16>> RunHandshake(int fd, Handshake& handshake,
                                                     const Stop& stop);

// Fills with bytes from the kernel's random source.
void RandomBytes(void* out, size_t bytes);

}  // namespace entrain
