// TLS 1.3 on one connection (an SSL object of OpenSSL). It moves bytes between the caller and a
// non-blocking socket, like recvmsg and sendmsg, and encrypts and authenticates them on the way.
//
// One system call reads or writes many records. So bytes may wait in this object, in both
// directions, and poll() on the socket does not show this. See buffered and unsent.
//
// The handshake is bound to a text: it fails if the two sides have different texts. (The text is
// the ALPN protocol name, which the transcript of TLS covers.) There is no close_notify: the
// protocols inside TLS announce their end themselves. If the connection ends without such an
// announcement, it has failed.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <openssl/types.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/tls_context.h"

namespace entrain {

class TlsSession {
 public:
  // `fd` must be open during all calls. `binding` is the text to which the handshake is bound, at
  // most 255 bytes. `first` is sent before the handshake, without encryption.
  static absl::StatusOr<std::unique_ptr<TlsSession>> Create(
      std::shared_ptr<const TlsContext> context, bool dialer, int fd, absl::string_view binding,
      std::string first);
  // Installs the settings that all sessions of a new context share. For TlsContext.
  static void PrepareContext(SSL_CTX* context);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Continues the handshake as far as possible. Returns true once the other side has proved its
  // identity and the keys exist. kFailedPrecondition: the handshake failed, for the reason in the
  // message. kUnavailable: the connection is over.
  absl::StatusOr<bool> Shake();

  // Receive works like recvmsg, Send like sendmsg: they return the number of bytes, 0 at the end of
  // the connection, or -1 with errno. EAGAIN: no byte can be received or sent now. EBADMSG: bytes
  // were altered on the way, or the other side reports that bytes were altered. Received bytes are
  // authentic. Receive returns as many bytes as have arrived and fit into the parts.
  ssize_t Receive(const iovec* parts, int count);
  // Sends bytes. The caller may change the memory afterwards. Some of the bytes may still wait in
  // this object (unsent).
  ssize_t Send(const iovec* parts, int count);
  // Sends the bytes that wait in this object, as far as possible without blocking. Returns false,
  // with errno, if the connection is over.
  bool Flush();
  bool unsent() const { return sent_ < out_.size(); }
  // Count encrypted bytes since the beginning. given: bytes that were encrypted. taken: bytes that
  // the socket has accepted.
  int64_t given() const { return given_; }
  int64_t taken() const { return taken_; }
  // Returns true if Receive may return something although the socket is not readable.
  bool buffered() const { return more_; }

  // Returns OpenSSL's reason for EBADMSG, or an empty text.
  const std::string& why() const { return why_; }

  // Sets the number of records that are sent with one key. For tests.
  void set_records_per_key(int64_t records) { records_per_key_ = records; }

 private:
  struct Basic;  // the functions of the BIO, by which OpenSSL reads and writes

  static constexpr size_t kRecord = 16 << 10;                       // the most plain bytes in a
                                                                    // record
  static constexpr size_t kFirstIn = 4 << 10, kMostIn = 128 << 10;  // bytes read at once
  static constexpr size_t kMostOut = 128 << 10;                     // bytes that wait to be sent
  // AES-GCM is safe for 2^24.5 full records with one key (RFC 8446, 5.5).
  static constexpr int64_t kRecordsPerKey = int64_t{1} << 22;

  TlsSession(std::shared_ptr<const TlsContext> context, int fd, absl::string_view binding,
             std::string first);
  absl::Status Prepare(bool dialer);
  absl::Status CheckShaken() const;
  absl::Status ShakeError() const;
  size_t ReadRecord(char* into, size_t bytes);
  // Encrypts bytes, at most one record, into out_.
  bool WriteRecord(const char* from, size_t bytes);
  // Records the reason why OpenSSL's last function failed.
  void Note(int what);
  ssize_t Fill();

  const std::shared_ptr<const TlsContext> context_;
  const int fd_;
  const std::string binding_;
  SSL* ssl_ = nullptr;
  // in_[in_begin_..in_end_): encrypted bytes that were read from the socket and that OpenSSL has
  // not yet taken.
  std::unique_ptr<char[]> in_;
  size_t in_size_ = 0, in_begin_ = 0, in_end_ = 0;
  // Encrypted bytes to write, and the number of these bytes that are already written.
  std::string out_;
  size_t sent_ = 0;
  int64_t given_ = 0, taken_ = 0;
  std::string gathered_;  // plain bytes of one record, from several parts
  bool more_ = false;
  bool ended_ = false;   // the socket's end was read
  int read_error_ = 0;   // errno of the first recv that failed
  int write_error_ = 0;  // errno of the first send that failed
  int error_ = 0;        // errno for Receive; final
  std::string why_;      // OpenSSL's reason for EBADMSG
  int64_t records_ = 0, records_per_key_ = kRecordsPerKey;
};

}  // namespace entrain
