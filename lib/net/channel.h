// A connection after its handshake: a non-blocking socket, with or without TLS. The caller uses
// both kinds in the same way. Without TLS, the only cost is that of the system calls.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/net/socket.h"
#include "lib/net/tls_session.h"

namespace entrain {

class Channel {
 public:
  Channel() = default;
  explicit Channel(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  // Closes the connection.
  void Reset() {
    tls_.reset();
    fd_.Reset();
  }
  // Makes the connection use `tls`. Null: no TLS. With TLS, Send and Receive must not be called
  // before TlsSession::Shake has returned true.
  void Use(std::unique_ptr<TlsSession> tls) { tls_ = std::move(tls); }
  TlsSession* tls() const { return tls_.get(); }

  // Work like recv, recvmsg, send and sendmsg. Return the number of bytes, 0 at the end of the
  // connection, or -1 with errno. For TLS, tls_session.h lists the values of errno.
  ssize_t Receive(void* into, size_t bytes) {
    if (tls_ == nullptr) {
      return recv(fd_.get(), into, bytes, MSG_DONTWAIT);
    }
    const iovec part{into, bytes};
    return tls_->Receive(&part, 1);
  }
  ssize_t Receive(iovec* parts, size_t count);
  ssize_t Send(const void* from, size_t bytes) {
    if (tls_ == nullptr) {
      return send(fd_.get(), from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    const iovec part{const_cast<void*>(from), bytes};
    return tls_->Send(&part, 1);
  }
  ssize_t Send(iovec* parts, size_t count);
  // Receives up to `bytes` bytes and drops them. Returns what Receive returns.
  ssize_t Discard(size_t bytes);

  // With TLS, bytes may wait in memory. If buffered() is true, Receive may return bytes although
  // the socket is not readable. The caller must then call Receive before it waits for the socket.
  // If unsent() is true, some bytes that Send has accepted are not yet written. The caller must
  // then call Flush when the socket is writable.
  bool buffered() const { return tls_ != nullptr && tls_->buffered(); }
  bool unsent() const { return tls_ != nullptr && tls_->unsent(); }
  // Let n be the value of given() after a Send. Once taken() is at least n, the kernel has all
  // bytes of that Send.
  int64_t given() const { return tls_ == nullptr ? 0 : tls_->given(); }
  int64_t taken() const { return tls_ == nullptr ? 0 : tls_->taken(); }
  // Writes the unsent bytes as far as possible without blocking. Returns false, with errno, if the
  // connection is over.
  bool Flush() { return tls_ == nullptr || tls_->Flush(); }

 private:
  Fd fd_;
  std::unique_ptr<TlsSession> tls_;  // refers to the descriptor; null: plain
};

// Do the same as the functions of socket.h, for a Channel instead of a descriptor. When WriteFull
// succeeds, unsent() is false.
absl::StatusOr<size_t> ReadSome(Channel& from, void* out, size_t bytes);
absl::StatusOr<size_t> WriteSome(Channel& to, const void* in, size_t bytes);
absl::Status ReadFull(Channel& from, void* out, size_t bytes, const Stop& stop);
absl::Status WriteFull(Channel& to, const void* in, size_t bytes, const Stop& stop);

// Translates an error of a channel into a message for operators about the state of the peer. `doing` is, for example, "receiving". Returns kUnavailable if the connection is broken,
// kResourceExhausted if this process lacks a resource, otherwise kInternal.
absl::Status ConnectionError(int error, absl::string_view doing);
// Returns true if the error means that the connection is over. Returns false if it only means that
// no bytes can be moved now.
bool IsFatal(int error);

}  // namespace entrain
