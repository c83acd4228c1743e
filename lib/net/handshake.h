// The first bytes on every connection. Before the handshake is done, nothing else is parsed or
// allocated. The handshake has a fixed size and a deadline. It proves that both ends speak a common
// protocol version, have the same purpose, and hold the same key.
//
//   hello   (64 bytes)  magic "ENTRAIN1", u16 version low, u16 version high, u16 purpose, u16 flags
//                       (1: key in use, 2: wants TLS, 4: TLS by certificates, 8: wants checksums),
//                       16 bytes sender's peer id, 16 bytes nonce, 16 bytes "further to": zero, or
//                       the dialer's nonce of an earlier connection to which the dialer adds this
//                       connection
//   proof   (32 bytes)  HMAC-SHA-256(K, dialer's hello || listener's hello), where
//                       K = HKDF-SHA-256(key, salt "entrain handshake 3", info "ROLE PURPOSE"),
//                       32 bytes. ROLE is the prover's: "dialer" or "listener". PURPOSE is
//                       "store", "data" or "shm".
//                       Without a key: SHA-256("ROLE PURPOSE" || both hellos). This rejects only
//                       accidental connections and port scans.
//                       32 zero bytes: the dialer's proof was wrong.
//
// Both ends send their hello at once. The dialer proves first: it sends its proof when it has
// checked the listener's hello. A listener sends nothing that depends on the key before it has
// checked the dialer's proof. So a stranger that dials gets no data to test guesses of the key. If
// the version, the purpose, the use of a key or the use of certificates differs, or if a proof is
// wrong, the connection ends. The error names the difference.
//
// TLS is used if either side wants it. TLS begins after the dialer's proof. The listener's proof is
// the first data inside TLS (handshaker.h, tls_session.h).
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

// Identifies a connection at both its ends: the dialer's nonce. All zero: no connection.
using ConnectionId = std::array<uint8_t, 16>;

// Says what a side wants for the bytes after the handshake. The side sends its Offer in its hello.
struct Offer {
  bool tls = false;           // this side refuses a connection without TLS
  bool certificates = false;  // TLS by certificates; otherwise by the pre-shared key
  bool checksums = false;     // this side wants checksums in frames if TLS is not used (for
                              // Purpose::kData)
};

// Derives a key of 32 bytes for one use from the pre-shared key, by HKDF-SHA-256. Because each use
// has its own key, a proof is useless in another role or for another purpose.
absl::StatusOr<std::string> DeriveKey(absl::string_view key, absl::string_view use);

// The state machine of one side. It has no socket: the caller passes in the bytes that arrived, and
// sends the bytes that TakeOutput returns.
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
  // Takes exactly wanted() bytes. If a listener gets a wrong proof, Consume returns an error, and
  // TakeOutput then returns the refusal. The caller must send the refusal to the dialer.
  absl::Status Consume(absl::string_view bytes);
  bool done() const;
  // Returns the other side's peer id. Valid once Consume has taken the other side's hello.
  const std::array<uint8_t, 16>& peer() const;
  // Return the id of this connection, and the id of the earlier connection that the dialer's hello
  // names. Valid once Consume has taken the other side's hello.
  ConnectionId connection() const;
  ConnectionId further_to() const;
  // tls: returns true if TLS is used. checksums: returns true if frames have checksums, that is, if
  // a side wants checksums and TLS is not used. digest: returns the SHA-256 of both hellos, to
  // which TLS is bound. Valid once Consume has taken the other side's hello.
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
