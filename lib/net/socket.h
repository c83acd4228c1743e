// Descriptors, addresses and sockets as absl::Status. Every descriptor is close-on-exec and
// non-blocking; nothing here raises SIGPIPE. Functions that take a Stop block until it ends them
// and look at its flag every 20 ms or oftener; all others return at once.
//
// Codes: kUnavailable for whatever the other side or the network did, kDeadlineExceeded and
// kAborted by the Stop, kInvalidArgument for malformed addresses, kFailedPrecondition for a port in
// use.
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
  // Closes what it held; errno is kept.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// An IPv4 or IPv6 address with a port. A value.
class Address {
 public:
  Address();  // 0.0.0.0:0
  // `bytes` as the kernel gave it; anything but IPv4 and IPv6 becomes the default.
  Address(const sockaddr* raw, socklen_t bytes);
  // Numbers only: "10.0.0.1:80", "[fe80::1%eth0]:80", "[::1]:0".
  static absl::StatusOr<Address> Parse(absl::string_view text);
  static absl::StatusOr<Address> FromHost(absl::string_view numeric_host, uint16_t port);

  std::string ToString() const;  // what Parse takes
  std::string host() const;      // without port and brackets
  uint16_t port() const;
  Address WithPort(uint16_t port) const;
  int family() const { return storage_.ss_family; }
  bool IsLoopback() const;
  bool IsAny() const;
  bool IsLinkLocal() const;
  // The 4 or 16 bytes of the address, network order.
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
// "host:80", "[::1]:80". The port is required, the host may not be empty.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// All addresses of a host; numbers are not looked up. A look-up that outlives the Stop is left to
// end by itself. kUnavailable names the host when it is not known (it may be later: DNS lags).
absl::StatusOr<std::vector<Address>> Resolve(const HostPort& where, const Stop& stop);

// A listening socket. Port in use: kFailedPrecondition naming address and port.
absl::StatusOr<Fd> Listen(const Address& address, int backlog = 1024);
// The next connection, with TCP_NODELAY; an invalid Fd when there is none now. An error is about
// the listening side (out of descriptors, ...) and may pass.
absl::StatusOr<Fd> Accept(int listener, Address* from = nullptr);
// Begins a connection, with TCP_NODELAY; when the descriptor is writable, FinishConnect says how it
// went.
absl::StatusOr<Fd> StartConnect(const Address& to);
absl::Status FinishConnect(int fd, const Address& to);
// Both; and ProbeWhenIdle as the environment says (keep_alive.h), as its user waits for answers.
absl::StatusOr<Fd> Connect(const Address& to, const Stop& stop);

absl::StatusOr<Address> LocalAddress(int fd);
absl::StatusOr<Address> RemoteAddress(int fd);

// What can be moved now: 0 when the socket would block. The other side's end is kUnavailable
// ("closed by the other side").
absl::StatusOr<size_t> ReadSome(int fd, void* out, size_t bytes);
absl::StatusOr<size_t> WriteSome(int fd, const void* in, size_t bytes);

// Waits until `events` (POLLIN, POLLOUT) or an error is there. `what` names the wait in errors.
absl::Status WaitFd(int fd, short events, const Stop& stop, absl::string_view what);
// All of it, or an error.
absl::Status ReadFull(int fd, void* out, size_t bytes, const Stop& stop);
absl::Status WriteFull(int fd, const void* in, size_t bytes, const Stop& stop);

// kAborted or kDeadlineExceeded ("`what`: ...") when `stop` has ended, OK otherwise.
absl::Status CheckStop(const Stop& stop, absl::string_view what);
// Milliseconds to sleep at most before looking at `stop` again, 0..20, rounded up.
int StopSliceMs(const Stop& stop);

}  // namespace entrain
