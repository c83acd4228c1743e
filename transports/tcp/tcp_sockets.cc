#include "transports/tcp/tcp_sockets.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/socket.h"

namespace entrain {
namespace {

void ResetAtClose(int fd) {
  const linger none{.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

void SetOption(int fd, int level, int option, int value) {
  // If this fails, the kernel's default stays.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// Between processes of one host, bytes wait in kernel memory. If fewer bytes wait at a time, more
// of them are still in a cache. (The kernel doubles this value.) Across a network the kernel makes
// the better choice.
constexpr int kSendBuffer = 512 << 10;

// If fewer unsent bytes wait in each stream, the streams are used more evenly.
constexpr int kUnsentInAStream = 128 << 10;
constexpr int kUnsentOnLongPath = 512 << 10;

// Marks a stream that has ended and is no longer registered with epoll.
constexpr uint32_t kNoMore = ~uint32_t{0};

// Longer measured round trips are caused by a queue or by losses, not by the path.
constexpr int64_t kLongestRoundTrip = kSecond;

// From this round trip on, the start after a pause takes a time that counts.
constexpr int64_t kPausesCount = 20 * kMillisecond;

// On one host, no other traffic needs a share of the bandwidth, and a congestion control that paces
// (BBR, the default of some hosts) doubles the time. Reno does not pace. Every kernel has Reno, and
// lets every user choose it.
constexpr absl::string_view kCongestionControl = "reno";

bool SetCongestion(int fd, absl::string_view name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size())) == 0;
}

void PaceNothing(int fd) {
  (void)SetCongestion(fd, kCongestionControl);
}

// After a pause of some round trips, a connection sends only ten segments at first if the host says
// so. BBR is an exception.
void WarnOfPauses(int fd, int64_t round_trip_ns) {
  char control[16] = "";
  socklen_t bytes = sizeof(control);
  static std::atomic<bool> warned{false};
  if (round_trip_ns < kPausesCount ||
      getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &bytes) != 0 ||
      absl::StartsWith(control, "bbr") || ReadIpSetting("tcp_slow_start_after_idle") != "1" ||
      warned.exchange(true)) {
    return;
  }
  ENTRAIN_LOG(kWarning, "tcp: after each pause, paths with a long round trip (",
              round_trip_ns / kMillisecond, " ms) start slowly, because of ", control,
              " and net.ipv4.tcp_slow_start_after_idle=1; set that to 0 on all hosts, or ",
              "ENTRAIN_TCP_CONGESTION=bbr (docs/tcp.md)");
}

bool OfOneHost(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) == 0 &&
         Address(reinterpret_cast<sockaddr*>(&here), here_bytes).bytes() ==
             Address(reinterpret_cast<sockaddr*>(&there), there_bytes).bytes();
}

// With this option the kernel spreads the segments of a window over the round trip. Without it, a
// congestion control that does not pace (Cubic, Reno) sends a window as one burst when its
// acknowledgements come. The bursts of all streams meet in a queue, and slow start ends because the
// round trip seems longer. The rate itself is no limit.
constexpr uint64_t kPacingRate = uint64_t{1} << 40;

// Prepares a connection that carries data on a long path. If `congestion` cannot be set
// (CheckTcpCongestion has found that it can), the host's congestion control stays.
void PrepareForLongPath(int fd, const std::string& congestion) {
  (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &kPacingRate, sizeof(kPacingRate));
  if (!congestion.empty()) {
    (void)SetCongestion(fd, congestion);
  }
}

uint32_t If(bool wanted, uint32_t events) {
  return wanted ? events : 0;
}

}  // namespace

absl::Status CheckTcpCongestion(absl::string_view name) {
  if (name.empty()) {
    return absl::OkStatus();
  }
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return absl::ErrnoToStatus(errno, "socket");
  }
  if (SetCongestion(socket.get(), name)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      errno == EPERM ? absl::StrCat("\"", name, "\": this process may only choose one of ",
                                    ReadIpSetting("tcp_allowed_congestion_control"))
                     : absl::StrCat("\"", name, "\": expected one of ",
                                    ReadIpSetting("tcp_available_congestion_control")));
}

void EndSending(int fd) {
  shutdown(fd, SHUT_WR);
  char nowhere[4096];
  for (int i = 0; i < 1024 && recv(fd, nowhere, sizeof(nowhere), MSG_DONTWAIT) > 0; ++i) {
  }
}

absl::Status TcpSockets::Open(PathSockets sockets, const KeepAlive& keep_alive) {
  first_ = std::move(sockets.first);
  id_ = sockets.id;
  line_.Attach(std::move(sockets.line), sockets.checksums, keep_alive);
  // Without this option, a setting of the host may limit unsent bytes. The socket would then take
  // fewer bytes than it has room for.
  SetOption(first_.fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, -1);
  one_host_ = OfOneHost(first_.fd());
  if (one_host_) {
    SetOption(first_.fd(), SOL_SOCKET, SO_SNDBUF, kSendBuffer);
    PaceNothing(first_.fd());
    PaceNothing(line_.fd());
  }
  watched_first_ = watched_line_ = EPOLLIN;
  ENTRAIN_RETURN_IF_ERROR(Add(first_.fd(), watched_first_));
  return Add(line_.fd(), watched_line_);
}

void TcpSockets::Close() {
  for (size_t i = 0; i < watched_streams_.size(); ++i) {
    Remove(streams_.fd(static_cast<int>(i)));
  }
  watched_streams_.clear();
  streams_.CloseAll();
  CloseLine();
  if (open()) {
    Remove(first_.fd());
    first_.Reset();
  }
}

void TcpSockets::CloseLine() {
  if (line_.attached()) {
    Remove(line_.fd());
    line_.Close();
  }
}

// Uses the minimum, because the kernel's other values include waits behind data. Returns 0 on one
// host, because the kernel there only measures how long segments were left unacknowledged.
int64_t TcpSockets::round_trip_ns() const {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (!open() || one_host_ || getsockopt(first_.fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
    return 0;
  }
  return std::min(int64_t{info.tcpi_min_rtt} * kMicrosecond, kLongestRoundTrip);
}

// On a long path the first connection should not hold many unsent bytes, because CTS and control
// messages would wait behind them.
void TcpSockets::SetLongPath(const std::string& congestion) {
  congestion_ = congestion;
  SetOption(first_.fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentOnLongPath);
  PrepareForLongPath(first_.fd(), congestion);
  WarnOfPauses(first_.fd(), round_trip_ns());
  streams_.SetLongPath();
}

absl::Status TcpSockets::TakeStreams() {
  while (watched_streams_.size() < static_cast<size_t>(streams_.count())) {
    const int fd = streams_.fd(static_cast<int>(watched_streams_.size()));
    SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentInAStream);
    if (one_host_) {
      PaceNothing(fd);
    }
    if (streams_.long_path()) {
      PrepareForLongPath(fd, congestion_);
    }
    ENTRAIN_RETURN_IF_ERROR(Add(fd, 0));
    watched_streams_.push_back(0);
  }
  return absl::OkStatus();
}

absl::Status TcpSockets::Watch(bool input, bool room) {
  return Register(If(input, EPOLLIN) | If(room, EPOLLOUT), /*kept=*/0);
}

absl::Status TcpSockets::WatchAlso(bool input) {
  return Register(If(input, EPOLLIN), /*kept=*/~uint32_t{0});
}

absl::Status TcpSockets::Register(uint32_t first, uint32_t kept) {
  ENTRAIN_RETURN_IF_ERROR(Change(first_.fd(), first | (kept & watched_first_), &watched_first_));
  if (line_.attached()) {
    ENTRAIN_RETURN_IF_ERROR(
        Change(line_.fd(), EPOLLIN | If(line_.pending(), EPOLLOUT), &watched_line_));
  }
  for (size_t i = 0; i < watched_streams_.size(); ++i) {
    const int stream = static_cast<int>(i);
    uint32_t& watched = watched_streams_[i];
    ENTRAIN_RETURN_IF_ERROR(
        Change(streams_.fd(stream), streams_.Interest(stream) | (kept & watched), &watched));
  }
  return absl::OkStatus();
}

bool TcpSockets::watches_room() const {
  return (watched_first_ & EPOLLOUT) != 0;
}

void TcpSockets::DropEndedStream(int fd) {
  for (size_t i = 0; i < watched_streams_.size(); ++i) {
    const int stream = static_cast<int>(i);
    if (streams_.fd(stream) == fd && streams_.Interest(stream) == 0 && streams_.IsOver(stream)) {
      shared_.waiter->Remove(fd);
      watched_streams_[i] = kNoMore;
    }
  }
}

void TcpSockets::EndSendingAll() {
  for (int i = 0; i < streams_.count(); ++i) {
    EndSending(streams_.fd(i));
  }
  EndSending(first_.fd());
}

void TcpSockets::ResetWhenClosed() {
  ResetAtClose(first_.fd());
  ResetLineWhenClosed();
}

void TcpSockets::ResetLineWhenClosed() {
  if (line_.attached()) {
    ResetAtClose(line_.fd());
  }
}

absl::Status TcpSockets::Add(int fd, uint32_t events) {
  ENTRAIN_RETURN_IF_ERROR(shared_.waiter->Add(fd, events));
  shared_.OnWatched(owner_, fd);
  return absl::OkStatus();
}

absl::Status TcpSockets::Change(int fd, uint32_t events, uint32_t* watched) {
  if (events == *watched || *watched == kNoMore) {
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(shared_.waiter->Change(fd, events));
  *watched = events;
  return absl::OkStatus();
}

void TcpSockets::Remove(int fd) {
  shared_.OnUnwatched(fd);
  shared_.waiter->Remove(fd);
}

}  // namespace entrain
