#include "transports/tcp/tcp_sockets.h"

#include <algorithm>
#include <utility>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/strings/string_view.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

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
constexpr int kUnsentFar = 512 << 10;

// Marks a stream that has ended and is no longer registered with epoll.
constexpr uint32_t kNoMore = ~uint32_t{0};

// Longer measured round trips are caused by a queue or by losses, not by the path.
constexpr int64_t kLongestRoundTrip = kSecond;

// On one host, no other traffic needs a share of the bandwidth, and a congestion control that paces
// (BBR, the default of some hosts) doubles the time. Reno does not pace. Every kernel has Reno, and
// lets every user choose it.
constexpr absl::string_view kCongestionControl = "reno";

void PaceNothing(int fd) {
  (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCongestionControl.data(),
                   kCongestionControl.size());
}

bool OfOneHost(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) == 0 &&
         Address(reinterpret_cast<sockaddr*>(&here), here_bytes).bytes() ==
             Address(reinterpret_cast<sockaddr*>(&there), there_bytes).bytes();
}

// Makes the kernel spread the segments of a window over the round trip. Without that, a congestion
// control that does not pace (Cubic, Reno) sends a window as one burst when its acknowledgements
// come. The bursts of all streams meet in a queue, and slow start ends because the round trip seems
// longer. The rate itself is no limit.
constexpr uint64_t kPacingRate = uint64_t{1} << 40;

void Pace(int fd) {
  (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &kPacingRate, sizeof(kPacingRate));
}

uint32_t If(bool wanted, uint32_t events) {
  return wanted ? events : 0;
}

}  // namespace

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
void TcpSockets::SetFar() {
  SetOption(first_.fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentFar);
  Pace(first_.fd());
  streams_.SetFar();
}

absl::Status TcpSockets::TakeStreams() {
  while (watched_streams_.size() < static_cast<size_t>(streams_.count())) {
    const int fd = streams_.fd(static_cast<int>(watched_streams_.size()));
    SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentInAStream);
    if (one_host_) {
      PaceNothing(fd);
    }
    if (streams_.far()) {
      Pace(fd);
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
  const linger none{.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(first_.fd(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
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
