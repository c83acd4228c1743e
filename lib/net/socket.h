// Descriptors, addresses and sockets, with absl::Status for errors. Every descriptor is
// close-on-exec and non-blocking, and no function raises SIGPIPE. Functions that take a Stop block
// until they are done or the Stop ends them. They look at the Stop's flag at least every 20 ms. All
// other functions return at once.
//
// Codes: kUnavailable for errors of the other side or the network, kDeadlineExceeded and kAborted
// if the Stop ended the function, kInvalidArgument for malformed addresses, kFailedPrecondition for
// a port in use.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"

namespace entrain {

// Owns one descriptor; -1 is none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  // Closes the present descriptor and takes `fd`. Keeps errno.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// An IPv4 or IPv6 address with a port. A plain value type.
class Address {
 public:
  Address();  // 0.0.0.0:0
  // `raw` is an address from the kernel, of `bytes` bytes. An address that is neither IPv4 nor IPv6
  // becomes the default address.
  Address(const sockaddr* raw, socklen_t bytes);
  // Parses numeric addresses only: "10.0.0.1:80", "[fe80::1%eth0]:80", "[::1]:0".
  static absl::StatusOr<Address> Parse(absl::string_view text);
  static absl::StatusOr<Address> FromHost(absl::string_view numeric_host, uint16_t port);

  std::string ToString() const;  // in the form that Parse takes
  std::string host() const;      // without port and brackets
  uint16_t port() const;
  Address WithPort(uint16_t port) const;
  int family() const { return storage_.ss_family; }
  bool IsLoopback() const;
  bool IsAny() const;
  bool IsLinkLocal() const;
  // Returns the 4 or 16 bytes of the address, in network order.
  absl::string_view bytes() const;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t raw_bytes() const;

 private:
  sockaddr_storage storage_;
};

struct HostPort {
  std::string host;  // a name or a number, without brackets
  uint16_t port = 0;
  std::string ToString() const;  // "host:80", "[::1]:80"
};
// Parses "host:80" or "[::1]:80". The port is required, and the host must not be empty.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// Returns all addresses of a host. A numeric host needs no look-up. If the Stop ends during a
// look-up, the look-up continues on another thread, and its result is dropped. kUnavailable, with
// the host: the host is unknown now. It may become known later, because changes of DNS take time.
absl::StatusOr<std::vector<Address>> Resolve(const HostPort& where, const Stop& stop);

// Returns a listening socket. kFailedPrecondition names the address and port if the port is in use.
absl::StatusOr<Fd> Listen(const Address& address, int backlog = 1024);
// Returns the next connection, with TCP_NODELAY, or an invalid Fd if none waits. An error concerns
// the listening side (out of descriptors, ...). A later call may succeed.
absl::StatusOr<Fd> Accept(int listener, Address* from = nullptr);
// Begins a connection, with TCP_NODELAY. Once the descriptor is writable, FinishConnect returns the
// result.
absl::StatusOr<Fd> StartConnect(const Address& to);
absl::Status FinishConnect(int fd, const Address& to);
// Runs StartConnect and FinishConnect. Calls ProbeWhenIdle with KeepAliveSetting() (keep_alive.h),
// because the caller will wait for answers.
absl::StatusOr<Fd> Connect(const Address& to, const Stop& stop);

absl::StatusOr<Address> LocalAddress(int fd);
absl::StatusOr<Address> RemoteAddress(int fd);

// Receive or send as many bytes as possible now. Return the number of bytes, or 0 if the socket
// would block. If the other side has closed, return kUnavailable ("closed by the other side").
absl::StatusOr<size_t> ReadSome(int fd, void* out, size_t bytes);
absl::StatusOr<size_t> WriteSome(int fd, const void* in, size_t bytes);

// Returns the status for an error of a transfer: kUnavailable, or another code if this process
// lacks a resource. EBADMSG comes from a connection with TLS (tls_session.h): bytes were altered on
// the way.
absl::Status TransferError(int error, absl::string_view what);
inline constexpr absl::string_view kAltered =
    "a record failed its authentication: its bytes were altered on the way";

// Blocks until one of `events` (POLLIN, POLLOUT) or an error has occurred. Error messages begin
// with `what`.
absl::Status WaitFd(int fd, short events, const Stop& stop, absl::string_view what);
// Receive or send all bytes, or return an error.
absl::Status ReadFull(int fd, void* out, size_t bytes, const Stop& stop);
absl::Status WriteFull(int fd, const void* in, size_t bytes, const Stop& stop);

// Returns kAborted or kDeadlineExceeded ("`what`: ...") if `stop` has ended, else OK.
absl::Status CheckStop(const Stop& stop, absl::string_view what);
// Returns the number of milliseconds that the caller may sleep before it looks at `stop` again:
// 0..20, rounded up.
int StopSliceMs(const Stop& stop);
// Returns a Stop that ends when `stop` ends, but after `ns` nanoseconds at the latest.
Stop Sooner(const Stop& stop, int64_t ns);
// Sleeps for `ms` milliseconds. Returns false if `stop` ended the sleep.
bool Pause(int ms, const Stop& stop);

// Returns the text of net.ipv4.`name` of this host, or an empty text if it cannot be read.
std::string ReadIpSetting(absl::string_view name);

}  // namespace entrain
