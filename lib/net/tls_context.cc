#include "lib/net/tls_context.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/net/handshake.h"
#include "lib/net/tls_session.h"

namespace entrain {
namespace {

constexpr char kSuite[] = "TLS_AES_128_GCM_SHA256";

absl::Status Unusable(absl::string_view setting, absl::string_view path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(setting, " \"", path, "\": ", why));
}

absl::Status CheckComplete(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty() || files.authorities.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TLS by certificates needs three files: ENTRAIN_TLS_CERT is \"", files.certificate,
        "\", ENTRAIN_TLS_KEY \"", files.key, "\", ENTRAIN_TLS_CA \"", files.authorities, "\""));
  }
  struct stat info {};
  if (stat(files.key.c_str(), &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Unusable(
        "ENTRAIN_TLS_KEY", files.key,
        absl::StrFormat("others may use it (mode %03o); make it 600", info.st_mode & 0777));
  }
  return absl::OkStatus();
}

// Returns true if a rank may use the certificate. OpenSSL itself asks only for the usage of the
// certificate's side in this connection. But each rank listens and dials, and which rank dials is
// chance. So a certificate for servers alone would be refused in some runs only. A certificate
// without extended key usage serves for both sides.
bool ServesBothSides(X509* certificate, bool of_authority) {
  const int authority = of_authority ? 1 : 0;
  return X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, authority) != 0 &&
         X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, authority) != 0;
}

// Called for each certificate of the other side's chain. Depth 0 is the other side's own.
int CheckBothSides(int accepted, X509_STORE_CTX* chain) {
  const bool of_authority = X509_STORE_CTX_get_error_depth(chain) > 0;
  if (accepted == 1 && !ServesBothSides(X509_STORE_CTX_get_current_cert(chain), of_authority)) {
    X509_STORE_CTX_set_error(chain, X509_V_ERR_INVALID_PURPOSE);
    return 0;
  }
  return accepted;
}

}  // namespace

std::string TakeTlsReason() {
  const unsigned long code = ERR_get_error();  // NOLINT(runtime/int): OpenSSL's type
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(code);
  if (reason == nullptr) {
    return absl::StrCat("OpenSSL's error ", code);
  }
  const bool told = ERR_GET_REASON(code) >= SSL_AD_REASON_OFFSET;  // an alert
  return absl::StrCat(told ? "the other side says: " : "", reason);
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
  OPENSSL_cleanse(psk_.data(), psk_.size());
}

absl::Status TlsContext::Prepare() {
  // Without this option OpenSSL frees its tables when main returns, while a thread of the library
  // may still use a connection.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  ERR_clear_error();
  context_ = SSL_CTX_new(TLS_method());
  if (context_ == nullptr || SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context_, kSuite) != 1 ||
      SSL_CTX_set_num_tickets(context_, 0) != 1) {
    return absl::InternalError(absl::StrCat("OpenSSL cannot use TLS 1.3: ", TakeTlsReason()));
  }
  // Without this callback OpenSSL would ask on the terminal for the password of an encrypted
  // private key.
  SSL_CTX_set_default_passwd_cb(context_, [](char*, int, int, void*) { return 0; });
  // OpenSSL treats a pre-shared key as a session, and requires this name if the peer is verified.
  SSL_CTX_set_session_id_context(context_, reinterpret_cast<const unsigned char*>(kTlsName.data()),
                                 static_cast<unsigned int>(kTlsName.size()));
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  // With a pre-shared key, no side asks for a certificate, and no certificate would be accepted.
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, CheckBothSides);
  TlsSession::PrepareContext(context_);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::ForKey(absl::string_view key) {
  std::shared_ptr<TlsContext> made(new TlsContext);
  ENTRAIN_RETURN_IF_ERROR(made->Prepare());
  ENTRAIN_ASSIGN_OR_RETURN(made->psk_, DeriveKey(key, "tls"));
  return std::shared_ptr<const TlsContext>(std::move(made));
}

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::ForCertificates(
    const TlsFiles& files) {
  ENTRAIN_RETURN_IF_ERROR(CheckComplete(files));
  std::shared_ptr<TlsContext> made(new TlsContext);
  ENTRAIN_RETURN_IF_ERROR(made->Prepare());
  SSL_CTX* const context = made->context_;
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return Unusable("ENTRAIN_TLS_CERT", files.certificate, TakeTlsReason());
  }
  if (!ServesBothSides(SSL_CTX_get0_certificate(context), false)) {
    return Unusable("ENTRAIN_TLS_CERT", files.certificate,
                    "its key usage does not allow both sides of a connection; its extended key "
                    "usage needs serverAuth and clientAuth");
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Unusable("ENTRAIN_TLS_KEY", files.key, TakeTlsReason());
  }
  if (SSL_CTX_load_verify_file(context, files.authorities.c_str()) != 1) {
    return Unusable("ENTRAIN_TLS_CA", files.authorities, TakeTlsReason());
  }
  return std::shared_ptr<const TlsContext>(std::move(made));
}

}  // namespace entrain
