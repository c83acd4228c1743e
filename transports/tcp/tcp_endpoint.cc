#include "transports/tcp/tcp_endpoint.h"

#include <algorithm>
#include <utility>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
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

// Marks a stream that has ended and is no longer registered with epoll.
constexpr uint32_t kNoMore = ~uint32_t{0};

// The number of reads of the peer's last messages after a write has failed.
constexpr int kLastReads = 64;

// Longer measured round trips are caused by a queue or by losses, not by the path.
constexpr int64_t kLongestRoundTrip = kSecond;

// On one host there is no other traffic to share with. A congestion control that paces (BBR, the
// default of some hosts) doubles the time. Every kernel has Reno, and lets every user choose it.
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

// Closing the socket resets the connection. Without a reset the peer would assume that this process
// has ended, but this process goes on without the peer.
void ResetWhenClosed(int fd) {
  const linger none{.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

// Ends the sending direction. First reads and discards the peer's bytes, because closing a socket
// with unread bytes resets the connection, and the peer could lose the last message.
void Shut(int fd) {
  shutdown(fd, SHUT_WR);
  char nowhere[4096];
  for (int i = 0; i < 1024 && recv(fd, nowhere, sizeof(nowhere), MSG_DONTWAIT) > 0; ++i) {
  }
}

}  // namespace

void SayGoodbye(PathSockets sockets, absl::string_view why) {
  CompletionList none;
  TcpStreams no_streams;
  TcpSender sender(&none, &no_streams);
  sender.Begin(sockets.checksums);
  sender.Last(why);
  if (sender.Flush(sockets.first).ok()) {
    Shut(sockets.first.fd());
  }
}

TcpEndpoint::TcpEndpoint(TcpShared* shared, const PeerId& peer, const Address& address, bool dials,
                         const PathSettings& settings, Deadline connect_by)
    : shared_(shared),
      peer_(peer),
      address_(address),
      dials_(dials),
      settings_(settings),
      connect_by_(connect_by),
      sender_(&shared->completions, &streams_),
      keeper_(&streams_, &sender_),
      receiver_(this, shared->engine, &shared->completions, &sender_, &keeper_) {}

TcpEndpoint::~TcpEndpoint() {
  Close(absl::AbortedError("endpoint destroyed"));
  shared_->OnDestroyed(this);
}

void TcpEndpoint::PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  if (ended()) {
    shared_->completions.Add(done, end_, 0);
  } else {
    sender_.outgoing().Post(envelope, bytes, done);
  }
}

void TcpEndpoint::PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) {
  // also called after the end: messages that had arrived are kept
  receiver_.Post(envelope, bytes, done, hint);
}

Endpoint::Sent TcpEndpoint::TrySend(const Envelope& envelope, ConstBytes bytes, SendRequest*) {
  const bool sent = connected() && !ended() && sender_.TrySend(first_, envelope, bytes);
  return sent ? Sent::kCopied : Sent::kNo;
}

Endpoint::Next TcpEndpoint::TryRecv(const Envelope& envelope, Bytes into, const std::byte** where) {
  if (where != nullptr) {
    *where = into.data();
  }
  if (!connected() || ended()) {
    return Next::kOther;
  }
  // Writes the rest of an earlier message, or credit, because the caller does not poll meanwhile.
  // An error is left to Poll, which will get the error too.
  if (writing() && !Write().ok()) {
    return Next::kOther;
  }
  return connected() ? receiver_.TryRecv(first_, envelope, into) : Next::kOther;
}

void TcpEndpoint::SendControl(absl::string_view message) {
  if (!ended()) {
    sender_.Control(message);
  }
}

bool TcpEndpoint::SendUrgent(absl::string_view message) {
  if (ended() || line_over_) {
    return false;
  }
  line_.Send(message);
  return true;
}

void TcpEndpoint::Revoke(Context mine, Context theirs, const absl::Status& why) {
  if (!ended()) {
    receiver_.Revoke(mine, why);
    sender_.Revoke(theirs, why);
  }
}

// Returns the shortest round trip that the kernel has measured lately. Longer measured ones include
// a wait behind data. On one host the kernel only measures how long segments were left
// unacknowledged.
int64_t TcpEndpoint::round_trip_ns() const {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (!connected() || one_host_ || getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
    return 0;
  }
  return std::min(int64_t{info.tcpi_min_rtt} * kMicrosecond, kLongestRoundTrip);
}

void TcpEndpoint::End(const absl::Status& why) {
  end_ = why;
  receiver_.FailAll(why);
  sender_.FailAll(why);
}

void TcpEndpoint::Disconnect() {
  if (first_.valid()) {
    shared_->OnDisconnected(this);
    for (int i = 0; i < watched_streams_; ++i) {
      shared_->waiter->Remove(streams_.fd(i));
    }
    streams_.CloseAll();
    CloseLine();
    shared_->waiter->Remove(fd());
    first_.Reset();
  }
}

void TcpEndpoint::CloseLine() {
  if (line_.attached()) {
    shared_->OnUnwatched(line_.fd());
    shared_->waiter->Remove(line_.fd());
    line_.Close();
  }
}

void TcpEndpoint::TakeOver() {
  for (const std::string& text : line_.TakeUnsent()) {
    sender_.Control(text);
  }
}

void TcpEndpoint::Close(const absl::Status& why) {
  failed_ = absl::OkStatus();  // no OnLost after Close
  if (ended()) {
    return;
  }
  const absl::Status reason = why.ok() ? absl::AbortedError("closed") : why;
  const bool early = !first_.valid();
  End(reason);
  if (early) {
    shared_->OnClosedEarly(this, reason);
    return;
  }
  if (line_.attached() && line_.Write().ok()) {
    Shut(line_.fd());
  }
  TakeOver();
  sender_.Last(reason.message());
  if (sender_.Flush(first_).ok()) {
    for (int i = 0; i < streams_.count(); ++i) {
      Shut(streams_.fd(i));
    }
    Shut(fd());
  }
  Disconnect();
}

void TcpEndpoint::Lose(const absl::Status& why) {
  if (!ended()) {
    End(why);
    failed_ = why;
    if (connected() && !IsPeerEnded(why)) {
      ResetWhenClosed(fd());
    }
    Disconnect();
  }
}

int TcpEndpoint::Report() {
  if (failed_.ok()) {
    return 0;
  }
  const absl::Status why = std::exchange(failed_, absl::OkStatus());
  ENTRAIN_LOG(kInfo, "lost ", peer_address(), ": ", why.message());
  shared_->engine->OnLost(*this, why);
  return 1;
}

void TcpEndpoint::Attach(PathSockets sockets) {
  first_ = std::move(sockets.first);
  connection_ = sockets.id;
  line_.Attach(std::move(sockets.line), sockets.checksums, settings_.keep_alive);
  sender_.Begin(sockets.checksums);
  receiver_.Begin(sockets.checksums);
  // Without this, a setting of the host may limit unsent bytes, and the socket takes fewer bytes
  // than it has room for.
  SetOption(fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, -1);
  one_host_ = OfOneHost(fd());
  if (one_host_) {
    SetOption(fd(), SOL_SOCKET, SO_SNDBUF, kSendBuffer);
    PaceNothing(fd());
    PaceNothing(line_.fd());
  }
  watched_ = watched_line_ = EPOLLIN;
  for (const int fd : {fd(), line_.fd()}) {
    if (const absl::Status status = shared_->waiter->Add(fd, EPOLLIN); !status.ok()) {
      Lose(status);
      return;
    }
    shared_->OnWatched(this, fd);
  }
  keeper_.Begin(dials_, sockets.checksums ? 1 : settings_.streams, one_host_);
  TendStreams();
}

void TcpEndpoint::OnStreamDialled(absl::StatusOr<Channel> stream) {
  if (stream.ok()) {
    keeper_.OnDialled(*std::move(stream));
    TendStreams();
  } else {
    ENTRAIN_LOG(kInfo, peer_address(), ": no further connection: ", stream.status().message());
    keeper_.OnNotDialled();
  }
}

void TcpEndpoint::OnStreamAccepted(Channel stream) {
  if (keeper_.OnAccepted(std::move(stream))) {
    TendStreams();
  }
}

void TcpEndpoint::TendStreams() {
  if (!connected()) {
    return;
  }
  for (; watched_streams_ < streams_.count(); ++watched_streams_) {
    const int fd = streams_.fd(watched_streams_);
    SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentInAStream);
    if (one_host_) {
      PaceNothing(fd);
    }
    if (const absl::Status status = shared_->waiter->Add(fd, 0); !status.ok()) {
      Lose(status);
      return;
    }
    shared_->OnWatched(this, fd);
  }
  const int before = streams_.in_use();
  const bool dial = keeper_.Tend(fd());
  if (const int now = streams_.in_use(); now != before) {
    ENTRAIN_LOG(kInfo, peer_address(), ": large payloads by ", std::max(now, 1), " connections");
  }
  if (dial) {
    shared_->DialStream(this);
  }
}

// Returns true if the control line stays open. If the control line has ended, the first connection
// takes over. If the path has ended, the first connection reports the reason. Only the control line
// detects that the peer's host is gone.
bool TcpEndpoint::OnLine(const absl::StatusOr<ControlLine::State>& state) {
  if (state.ok() && *state == ControlLine::State::kGood) {
    return true;
  }
  const absl::Status why = state.status();
  TakeOver();
  CloseLine();
  line_over_ = true;
  if (!why.ok()) {
    LoseAfterReading(why);
  } else {
    ProbeWhenIdle(fd(), settings_.keep_alive);
  }
  return false;
}

bool TcpEndpoint::WriteLine() {
  return line_.attached() && OnLine(line_.Write());
}

int TcpEndpoint::ReadLine() {
  int events = 0;
  std::string text;
  while (line_.attached() && OnLine(line_.Read(&text)) && !text.empty()) {
    shared_->engine->OnControl(*this, text);
    ++events;
  }
  return events;
}

// The peer's last message explains the loss better than the error that revealed it.
void TcpEndpoint::LoseAfterReading(const absl::Status& why) {
  for (int i = 0; i < kLastReads && connected() && Read() > 0; ++i) {
  }
  Lose(why);
}

int TcpEndpoint::Flush() {
  if (line_.pending()) {
    WriteLine();
  }
  if (!connected() || !writing()) {
    return 0;
  }
  const absl::StatusOr<int64_t> written = Write();
  if (!written.ok()) {
    LoseAfterReading(written.status());
    return 1;
  }
  TendStreams();
  return *written > 0 ? 1 : 0;
}

absl::StatusOr<int64_t> TcpEndpoint::Write() {
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t written, sender_.Flush(first_));
  if (!framed() && (watched_ & EPOLLOUT) != 0) {
    Watch(/*only=*/true);
  }
  return written;
}

int TcpEndpoint::Read() {
  const int messages = line_.buffered() ? ReadLine() : 0;
  if (!connected()) {
    return messages + 1;
  }
  const absl::StatusOr<int64_t> bytes = receiver_.Read(first_);
  if (!bytes.ok()) {
    ReadLine();  // the peer's last message there may give the reason
    Lose(bytes.status());
    return 1;
  }
  TendStreams();
  Watch(/*only=*/false);
  return messages + (*bytes > 0 ? 1 : 0);
}

int TcpEndpoint::OnReady(int fd) {
  if (fd == line_.fd()) {
    const int events = ReadLine();
    return WriteLine() ? events : events + 1;
  }
  const int events = Read();
  for (int i = 0; i < watched_streams_ && connected(); ++i) {
    // A peer that closes reports this soon on the first connection. Otherwise the next payload
    // notices the end.
    if (streams_.fd(i) == fd && streams_.Interest(i) == 0 && streams_.IsOver(i)) {
      shared_->waiter->Remove(fd);
      streams_.watched(i) = kNoMore;
    }
  }
  return events;
}

bool TcpEndpoint::Arm() {
  if (!connected()) {
    return true;
  }
  if (unparsed() || sender_.due(first_) || (writing() && !sender_.stuck()) ||
      (line_.pending() && !line_.stuck())) {
    return false;
  }
  Watch(/*only=*/true);
  return connected();
}

void TcpEndpoint::Watch(bool only) {
  if (!connected()) {
    return;
  }
  const uint32_t in = receiver_.held_back() ? 0 : static_cast<uint32_t>(EPOLLIN);
  const uint32_t out = framed() ? static_cast<uint32_t>(EPOLLOUT) : 0;
  Watch(fd(), in | (only ? out : watched_), &watched_);
  if (line_.attached()) {
    const uint32_t line_out = line_.pending() ? static_cast<uint32_t>(EPOLLOUT) : 0;
    Watch(line_.fd(), EPOLLIN | line_out, &watched_line_);
  }
  for (int i = 0; i < watched_streams_ && connected(); ++i) {
    uint32_t& watched = streams_.watched(i);
    Watch(streams_.fd(i), streams_.Interest(i) | (only ? 0 : watched), &watched);
  }
}

void TcpEndpoint::Watch(int fd, uint32_t events, uint32_t* watched) {
  if (events == *watched || *watched == kNoMore) {
    return;
  }
  *watched = events;
  if (const absl::Status status = shared_->waiter->Change(fd, events); !status.ok()) {
    Lose(status);
  }
}

}  // namespace entrain
