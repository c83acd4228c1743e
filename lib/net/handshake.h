// The first bytes on every connection, before anything else is parsed or allocated. They have a
// fixed size and a deadline. They prove that both ends speak our protocol version, have the same
// purpose, and hold the same key.
//
//   hello   (64 bytes)  magic "ENTRAIN1", u16 version low, u16 version high, u16 purpose, u16 flags
//                       (1: key in use, 2: wants TLS, 4: TLS by certificates, 8: wants checksums),
//                       16 bytes sender's peer id, 16 bytes nonce, 16 bytes "further to": zero, or
//                       the dialer's nonce of an earlier connection of the two, beside which the
//                       dialer opens this one
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
// difference in version, purpose, key use or certificate use, or a wrong proof, ends the connection
// with an error that names the difference.
//
// TLS is used if either side wants it. It begins behind the dialer's proof, and the listener's
// proof is the first data inside it (handshaker.h, tls_session.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"

namespace entrain {

enum class Purpose : uint16_t { kStore = 1, kData = 2, kShm = 3 };

// The name of a connection at both its ends: the dialer's nonce. All zero: no connection.
using ConnectionId = std::array<uint8_t, 16>;

// A side's wish for the bytes behind the handshake, as its hello states it.
struct Offer {
  bool tls = false;           // this side refuses a connection without TLS
  bool certificates = false;  // TLS by certificates; otherwise by the pre-shared key
  bool checksums = false;     // without TLS, frames have checksums (for Purpose::kData)
};

// Derives a key for one use from the pre-shared key by HKDF-SHA-256: 32 bytes. So a proof is
// useless in another role or for another purpose, and no text that is sent contains the key itself.
absl::StatusOr<std::string> DeriveKey(absl::string_view key, absl::string_view use);

// The state machine of one side. It has no socket: the caller passes in the bytes that arrived, and
// sends the bytes that it returns.
class Handshake {
 public:
  static constexpr size_t kHelloBytes = 64, kProofBytes = 32;

  Handshake(bool dialer, Purpose purpose, const std::array<uint8_t, 16>& self,
            absl::string_view key, const ConnectionId& further_to = {}, Offer offer = {});
  // Returns the bytes to send now. Empty: there is nothing to send until more bytes have arrived.
  std::string TakeOutput();
  // Returns the number of bytes that the next Consume needs, 0 when done. The caller must not read
  // more bytes than this from the peer.
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
  // Return whether TLS is used; whether frames have checksums, which either side may want, and
  // which are not needed with TLS; and the digest of both hellos, to which TLS is bound. Valid once
  // the other side's hello was consumed.
  bool tls() const { return tls_; }
  bool checksums() const { return checksums_ && !tls_; }
  std::string digest() const;

 private:
  absl::Status CheckHello(absl::string_view bytes) const;
  absl::Status CheckTls(uint16_t theirs) const;
  std::string BothHellos() const { return dialer_ ? mine_ + theirs_ : theirs_ + mine_; }
  absl::Status CheckProof(absl::string_view bytes) const;
  // Computes the proof of the dialer or of the listener, independently of this side's role.
  absl::StatusOr<std::string> Proof(bool dialer) const;

  bool dialer_;
  Purpose purpose_;
  Offer offer_;
  bool checksums_ = false;
  bool tls_ = false;
  std::string key_, mine_, theirs_, output_;
  int step_ = 0;  // 0: wants hello, 1: wants proof, 2: done
  std::array<uint8_t, 16> peer_{};
};

// Fills `out` with bytes from the kernel's random source.
void RandomBytes(void* out, size_t bytes);

}  // namespace entrain
