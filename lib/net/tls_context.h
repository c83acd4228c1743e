// The settings of TLS 1.3 that many connections share (an SSL_CTX of OpenSSL): one cipher suite
// (AES-128-GCM with SHA-256), fresh Diffie-Hellman keys for each connection, and no resumption.
//
// Thread safety: const after creation; any thread.
#pragma once

#include <memory>
#include <string>

#include <openssl/types.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // this process's certificate, then intermediate certificates
  std::string key;          // the certificate's private key
  std::string authorities;  // the authorities that sign the certificates of this job
  bool empty() const { return certificate.empty() && key.empty() && authorities.empty(); }
  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

class TlsContext {
 public:
  // Both sides prove that they hold the pre-shared key.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> ForKey(absl::string_view key);
  // Both sides prove that they have a certificate of an authority in the file `files.authorities`.
  // The name in a certificate does not matter. kInvalidArgument: a path is missing.
  // kFailedPrecondition names a file that cannot be used, and OpenSSL's reason.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> ForCertificates(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* get() const { return context_; }
  // Returns the key for TLS, 32 bytes. Empty: TLS uses certificates.
  const std::string& psk() const { return psk_; }

 private:
  TlsContext() = default;
  absl::Status Prepare();

  SSL_CTX* context_ = nullptr;
  std::string psk_;
};

// The identity of the pre-shared key in the TLS handshake, and the context of its sessions.
inline constexpr absl::string_view kTlsName = "entrain";

// Returns the reason of OpenSSL's oldest error in this thread, and clears all errors of this
// thread.
std::string TakeTlsReason();

}  // namespace entrain
