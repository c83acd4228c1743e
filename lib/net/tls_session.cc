#include "lib/net/tls_session.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr unsigned char kSuiteId[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

bool WouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

TlsSession* Of(const SSL* ssl) {
  return static_cast<TlsSession*>(SSL_get_app_data(ssl));
}

// Returns a session of TLS that stands for the pre-shared key.
SSL_SESSION* SessionOf(SSL* ssl, const std::string& key) {
  SSL_SESSION* const session = SSL_SESSION_new();
  const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl, kSuiteId);
  const bool made =
      session != nullptr && suite != nullptr && !key.empty() &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()),
                                  key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, suite) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, reinterpret_cast<const unsigned char*>(kTlsName.data()),
                                  static_cast<unsigned int>(kTlsName.size())) == 1;
  if (!made) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

}  // namespace

// OpenSSL calls these functions to read and write encrypted bytes.
struct TlsSession::Basic {
  static BIO_METHOD* Method() {
    // One object for the process. It is never freed, because OpenSSL keeps pointers to it.
    static BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "entrain connection");
      BIO_meth_set_read(made, Read);
      BIO_meth_set_write(made, Write);
      BIO_meth_set_ctrl(made, Control);
      return made;
    }();
    return method;
  }

  static int Read(BIO* bio, char* into, int bytes) {
    auto* const session = static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (session->in_begin_ == session->in_end_) {
      const ssize_t got = session->Fill();
      if (got <= 0) {
        if (got < 0 && session->read_error_ == 0) {
          BIO_set_retry_read(bio);
        }
        return static_cast<int>(got);
      }
    }
    const size_t taken =
        std::min(static_cast<size_t>(bytes), session->in_end_ - session->in_begin_);
    std::memcpy(into, session->in_.get() + session->in_begin_, taken);
    session->in_begin_ += taken;
    return static_cast<int>(taken);
  }

  static int Write(BIO* bio, const char* from, int bytes) {
    auto* const session = static_cast<TlsSession*>(BIO_get_data(bio));
    session->out_.append(from, static_cast<size_t>(bytes));
    session->given_ += bytes;
    return bytes;
  }

  // NOLINTNEXTLINE(runtime/int): OpenSSL's type
  static long Control(BIO* bio, int what, long, void*) {
    if (what == BIO_CTRL_EOF) {
      return static_cast<TlsSession*>(BIO_get_data(bio))->ended_ ? 1 : 0;
    }
    return what == BIO_CTRL_FLUSH ? 1 : 0;
  }

  // ---- OpenSSL calls these functions during the handshake, to get the key and the text to which
  // the handshake is bound.

  static int KeyOfDialer(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes,
                         SSL_SESSION** session) {
    *session = SessionOf(ssl, Of(ssl)->context_->psk());
    *identity = reinterpret_cast<const unsigned char*>(kTlsName.data());
    *bytes = kTlsName.size();
    return *session != nullptr ? 1 : 0;
  }

  static int KeyOfListener(SSL* ssl, const unsigned char* identity, size_t bytes,
                           SSL_SESSION** session) {
    const absl::string_view given(reinterpret_cast<const char*>(identity), bytes);
    *session = given == kTlsName ? SessionOf(ssl, Of(ssl)->context_->psk()) : nullptr;
    return 1;  // with a null session the handshake fails, because there is no key of this name
  }

  static int ChooseBinding(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_bytes,
                           const unsigned char* offered, unsigned int offered_bytes, void*) {
    const std::string& binding = Of(ssl)->binding_;
    if (offered_bytes != binding.size() + 1 || offered[0] != binding.size() ||
        std::memcmp(offered + 1, binding.data(), binding.size()) != 0) {
      return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *chosen = offered + 1;
    *chosen_bytes = offered[0];
    return SSL_TLSEXT_ERR_OK;
  }
};

void TlsSession::PrepareContext(SSL_CTX* context) {
  SSL_CTX_set_alpn_select_cb(context, Basic::ChooseBinding, nullptr);
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int fd, absl::string_view binding,
                       std::string first)
    : context_(std::move(context)),
      fd_(fd),
      binding_(binding),
      out_(std::move(first)),
      given_(static_cast<int64_t>(out_.size())) {}

TlsSession::~TlsSession() {
  SSL_free(ssl_);
}

absl::StatusOr<std::unique_ptr<TlsSession>> TlsSession::Create(
    std::shared_ptr<const TlsContext> context, bool dialer, int fd, absl::string_view binding,
    std::string first) {
  if (context == nullptr) {
    return absl::InternalError("handshake: TLS is not available");
  }
  std::unique_ptr<TlsSession> session(
      new TlsSession(std::move(context), fd, binding, std::move(first)));
  ENTRAIN_RETURN_IF_ERROR(session->Prepare(dialer));
  return session;
}

absl::Status TlsSession::Prepare(bool dialer) {
  ERR_clear_error();
  ssl_ = SSL_new(context_->get());
  BIO* const bio = ssl_ != nullptr ? BIO_new(Basic::Method()) : nullptr;
  const std::string offered = static_cast<char>(binding_.size()) + binding_;
  if (bio == nullptr ||
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(offered.data()),
                          static_cast<unsigned int>(offered.size())) != 0) {
    BIO_free(bio);
    return absl::InternalError(absl::StrCat("handshake: TLS: ", TakeTlsReason()));
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  if (!context_->psk().empty()) {
    SSL_set_psk_use_session_callback(ssl_, Basic::KeyOfDialer);
    SSL_set_psk_find_session_callback(ssl_, Basic::KeyOfListener);
  }
  if (dialer) {
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TlsSession::Shake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  if (done != 1) {
    Note(SSL_get_error(ssl_, done));
  }
  const bool flushed = Flush();  // also sends an alert, which tells the other side the reason
  if (error_ != 0 || ended_) {
    return ShakeError();
  }
  if (!flushed) {
    return absl::UnavailableError(absl::StrCat("handshake: sending: ", std::strerror(errno)));
  }
  if (done != 1) {
    return false;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckShaken());
  more_ = true;  // data may have come with the last message
  return true;
}

// OpenSSL also completes two kinds of handshakes that this function refuses: a handshake by a
// certificate although a key was offered, and a handshake without ALPN.
absl::Status TlsSession::CheckShaken() const {
  const unsigned char* bound = nullptr;
  unsigned int bytes = 0;
  SSL_get0_alpn_selected(ssl_, &bound, &bytes);
  if (absl::string_view(reinterpret_cast<const char*>(bound), bytes) != binding_) {
    return absl::FailedPreconditionError("handshake: TLS: the two sides read different hellos");
  }
  if (!context_->psk().empty() && SSL_session_reused(ssl_) != 1) {
    return absl::FailedPreconditionError("handshake: TLS: the other side did not use the key");
  }
  return absl::OkStatus();
}

absl::Status TlsSession::ShakeError() const {
  if (error_ == EBADMSG) {
    return absl::FailedPreconditionError(absl::StrCat("handshake: TLS: ", why_));
  }
  return absl::UnavailableError(
      ended_ ? "handshake: closed by the other side"
             : absl::StrCat("handshake: receiving: ", std::strerror(error_)));
}

void TlsSession::Note(int what) {
  if (what == SSL_ERROR_WANT_READ) {
    return;
  }
  if (read_error_ != 0) {
    error_ = read_error_;
  } else if (!ended_) {
    const long verified = SSL_get_verify_result(ssl_);  // NOLINT(runtime/int): OpenSSL's type
    why_ = TakeTlsReason();
    if (verified != X509_V_OK && context_->psk().empty()) {
      why_ = absl::StrCat("the other side's certificate is refused: ",
                          X509_verify_cert_error_string(verified));
    }
    error_ = EBADMSG;
  }
  ERR_clear_error();
}

// Reads from the socket into in_, which must be empty. Returns the result of recv. Sets read_error_
// only if the error ends the connection.
ssize_t TlsSession::Fill() {
  if (ended_ || read_error_ != 0) {
    return ended_ ? 0 : -1;
  }
  if (in_size_ == 0 || (in_end_ == in_size_ && in_size_ < kMostIn)) {  // the last read filled it
    in_size_ = in_size_ == 0 ? kFirstIn : 2 * in_size_;
    in_ = std::make_unique_for_overwrite<char[]>(in_size_);
  }
  in_begin_ = in_end_ = 0;
  const ssize_t got = recv(fd_, in_.get(), in_size_, MSG_DONTWAIT);
  if (got > 0) {
    in_end_ = static_cast<size_t>(got);
  } else if (got == 0 && write_error_ != 0 && write_error_ != EPIPE) {
    // The kernel has reported this error to the failed send, and reports an error only once.
    read_error_ = errno = write_error_;
    return -1;
  } else if (got == 0) {
    ended_ = true;
  } else if (!WouldBlock(errno)) {
    read_error_ = errno;
  }
  return got;
}

size_t TlsSession::ReadRecord(char* into, size_t bytes) {
  size_t got = 0;
  if (error_ == 0) {
    ERR_clear_error();
    const int done = SSL_read_ex(ssl_, into, bytes, &got);
    if (done != 1) {
      got = 0;
      Note(SSL_get_error(ssl_, done));
    }
  }
  more_ = got > 0;
  return got;
}

ssize_t TlsSession::Receive(const iovec* parts, int count) {
  size_t total = 0;
  more_ = true;
  for (int i = 0; i < count && more_; ++i) {
    auto* const into = static_cast<char*>(parts[i].iov_base);
    for (size_t at = 0; at < parts[i].iov_len && more_;) {
      const size_t got = ReadRecord(into + at, parts[i].iov_len - at);
      at += got;
      total += got;
    }
  }
  if (unsent()) {
    (void)Flush();  // an alert, or the answer to a new key
  }
  if (total > 0) {
    more_ = more_ || error_ != 0 || ended_;  // the next call reports the end
    return static_cast<ssize_t>(total);
  }
  if (error_ == 0 && ended_) {
    return 0;
  }
  errno = error_ != 0 ? error_ : EAGAIN;
  return -1;
}

bool TlsSession::WriteRecord(const char* from, size_t bytes) {
  ERR_clear_error();
  if (++records_ >= records_per_key_) {
    records_ = 0;
    SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  size_t put = 0;
  const int done = SSL_write_ex(ssl_, from, bytes, &put);
  if (done != 1 && error_ == 0) {
    Note(SSL_get_error(ssl_, done));
  }
  return done == 1;
}

ssize_t TlsSession::Send(const iovec* parts, int count) {
  if (!Flush()) {
    return -1;
  }
  size_t total = 0, at = 0;  // position in parts[i]
  for (int i = 0; i < count;) {
    if (out_.size() - sent_ >= kMostOut && (!Flush() || out_.size() - sent_ >= kMostOut)) {
      break;
    }
    const char* record = static_cast<const char*>(parts[i].iov_base) + at;
    size_t bytes = std::min(parts[i].iov_len - at, kRecord);
    at += bytes;
    if (bytes < kRecord && i + 1 < count) {
      gathered_.assign(record, bytes);
      while (gathered_.size() < kRecord && i + 1 < count) {
        ++i;
        at = std::min(parts[i].iov_len, kRecord - gathered_.size());
        gathered_.append(static_cast<const char*>(parts[i].iov_base), at);
      }
      record = gathered_.data();
      bytes = gathered_.size();
    }
    if (at == parts[i].iov_len) {
      ++i;
      at = 0;
    }
    if (bytes > 0 && !WriteRecord(record, bytes)) {
      errno = error_ != 0 ? error_ : EPIPE;  // OpenSSL sends nothing after the other side's end
      return -1;
    }
    total += bytes;
  }
  if (!Flush() && total == 0) {
    return -1;
  }
  errno = EAGAIN;
  return total > 0 ? static_cast<ssize_t>(total) : -1;
}

bool TlsSession::Flush() {
  while (unsent()) {
    const ssize_t put =
        send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && !WouldBlock(errno)) {
      write_error_ = write_error_ != 0 ? write_error_ : errno;
      return false;
    }
    if (put < 0) {
      break;
    }
    sent_ += static_cast<size_t>(put);
    taken_ += put;
  }
  if (!unsent() || sent_ >= kMostOut / 2) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  return true;
}

}  // namespace entrain
