#include "transports/tcp/tcp_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <poll.h>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

// The number of reads of the peer's last messages after a write has failed.
constexpr int kLastReads = 64;
// The longest wait for the end of the control line after the first connection was reset.
constexpr int kLineEndMs = 20;

// A path with at least this round trip is long. On such a path the peer may send up to kMostLent
// bytes before it is asked for them, and payloads use several connections from the beginning. 64
// MiB are what a link of 1 Gbit/s carries in half a second.
constexpr int64_t kLongRoundTrip = kMillisecond;
constexpr int64_t kMostLentToPath = 64 << 20, kLeastLentToPath = 1 << 20;

}  // namespace

void SayGoodbye(PathSockets sockets, absl::string_view why) {
  CompletionList none;
  TcpStreams no_streams;
  TcpSender sender(&none, &no_streams);
  sender.Begin(sockets.checksums);
  sender.Last(why);
  if (sender.Flush(sockets.first).ok()) {
    EndSending(sockets.first.fd());
  }
}

TcpEndpoint::TcpEndpoint(TcpShared* shared, const PathTarget& target, const PathSettings& settings)
    : shared_(shared),
      target_(target),
      settings_(settings),
      sockets_(shared, this),
      sender_(&shared->completions, &sockets_.streams()),
      keeper_(&sockets_.streams(), &sender_),
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
  // also called after the end, because messages that had arrived before are kept
  receiver_.Post(envelope, bytes, done, hint);
}

Endpoint::Sent TcpEndpoint::TrySend(const Envelope& envelope, ConstBytes bytes, SendRequest*) {
  const bool sent = connected() && !ended() && sender_.TrySend(sockets_.first(), envelope, bytes);
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
  // Poll will get and report the same error.
  if (writing() && !Write().ok()) {
    return Next::kOther;
  }
  return connected() ? receiver_.TryRecv(sockets_.first(), envelope, into) : Next::kOther;
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
  sockets_.line().Send(message);
  return true;
}

void TcpEndpoint::Revoke(Context mine, Context theirs, const absl::Status& why) {
  if (!ended()) {
    receiver_.Revoke(mine, why);
    sender_.Revoke(theirs, why);
  }
}

int64_t TcpEndpoint::round_trip_ns() const {
  return std::max(sockets_.round_trip_ns(), settings_.least_round_trip_ns);
}

void TcpEndpoint::End(const absl::Status& why) {
  end_ = why;
  receiver_.FailAll(why);
  sender_.FailAll(why);
}

void TcpEndpoint::Disconnect() {
  if (connected()) {
    shared_->OnDisconnected(this);
    sockets_.Close();
    shared_->lendable += std::exchange(lent_, 0);
  }
}

void TcpEndpoint::TakeOver() {
  for (const std::string& text : sockets_.line().TakeUnsent()) {
    sender_.Control(text);
  }
}

void TcpEndpoint::Close(const absl::Status& why) {
  failed_ = absl::OkStatus();  // no OnLost after Close
  if (ended()) {
    return;
  }
  const absl::Status reason = why.ok() ? absl::AbortedError("closed") : why;
  const bool early = !connected();
  End(reason);
  if (early) {
    shared_->OnClosedEarly(this, reason);
    return;
  }
  if (ControlLine& line = sockets_.line(); line.attached() && line.Write().ok()) {
    EndSending(line.fd());
  }
  TakeOver();
  sender_.Last(reason.message());
  if (sender_.Flush(sockets_.first()).ok()) {
    sockets_.EndSendingAll();
  }
  Disconnect();
}

// When a process dies, its kernel resets the connections on which bytes wait that the process has not
// read, and closes the others. So the first connection may be reset although the process has died,
// while the control line, on which bytes rarely wait, is closed: a process that lives resets both
// (TcpSockets::ResetWhenClosed), and so does a network that resets connections. Both ends arrive at
// the same time.
bool TcpEndpoint::ProvesEnd(const absl::Status& why) const {
  const int error = BlameOf(why).sys_errno;
  if ((error != ECONNRESET && error != EPIPE) || !connected()) {
    return false;
  }
  if (!sockets_.line().attached()) {
    return line_closed_ns_ != 0 && Clock::Real().Now() - line_closed_ns_ < kSecond;
  }
  pollfd line = {.fd = sockets_.line().fd(), .events = POLLRDHUP, .revents = 0};
  return poll(&line, 1, kLineEndMs) == 1 && (line.revents & POLLRDHUP) != 0 &&
         (line.revents & POLLERR) == 0;
}

void TcpEndpoint::Lose(const absl::Status& lost) {
  if (!ended()) {
    const absl::Status why =
        ProvesEnd(lost)
            ? AsPeerEnded(WithBlame(
                  absl::UnavailableError("the connection was reset (its process has ended)"),
                  BlameOf(lost)))
            : lost;
    End(why);
    failed_ = why;
    if (connected() && !IsPeerEnded(why)) {
      sockets_.ResetWhenClosed();
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
  const bool checksums = sockets.checksums;
  sender_.Begin(checksums);
  receiver_.Begin(checksums);
  if (const absl::Status status = sockets_.Open(std::move(sockets), settings_.keep_alive);
      !status.ok()) {
    Lose(status);
    return;
  }
  const int long_path = SetLongPath(round_trip_ns());
  keeper_.Begin(target_.dials, checksums ? 1 : settings_.streams, sockets_.one_host(), long_path);
  TendStreams();
}

int TcpEndpoint::SetLongPath(int64_t round_trip_ns) {
  if (round_trip_ns < kLongRoundTrip) {
    return 0;
  }
  sockets_.SetLongPath(settings_.congestion);
  // Half of the rest, so that each further path gets something.
  lent_ = std::min(kMostLentToPath, shared_->lendable / 2);
  if (lent_ < kLeastLentToPath) {
    lent_ = 0;
  } else {
    shared_->lendable -= lent_;
    receiver_.Lend(lent_);
  }
  return StreamsOfLongPath(round_trip_ns, shared_->paths);
}

void TcpEndpoint::OnStreamDialled(absl::StatusOr<Channel> stream, const ConnectionId& id) {
  if (stream.ok()) {
    keeper_.OnDialled(*std::move(stream), id);
    TendStreams();
  } else {
    const std::string why =
        absl::StrCat(peer_address(), ": no further connection: ", stream.status().message());
    if (long_path()) {
      ENTRAIN_LOG(kWarning, why, "; this long path will be slow");
    } else {
      ENTRAIN_LOG(kInfo, why);
    }
    keeper_.OnNotDialled();
  }
}

void TcpEndpoint::OnStreamAccepted(Channel stream, const ConnectionId& id) {
  if (keeper_.OnAccepted(std::move(stream), id)) {
    TendStreams();
  }
}

void TcpEndpoint::TendStreams() {
  if (!connected()) {
    return;
  }
  if (const absl::Status status = sockets_.TakeStreams(); !status.ok()) {
    Lose(status);
    return;
  }
  const int before = sockets_.streams().in_use();
  int dial = keeper_.Tend(sockets_.first().fd());
  if (const int now = sockets_.streams().in_use(); now != before) {
    ENTRAIN_LOG(kInfo, peer_address(), ": large payloads by ", std::max(now, 1), " connections");
  }
  for (; dial > 0 && connected(); --dial) {
    shared_->DialStream(this);
  }
}

// Returns true if the control line stays open. If only the control line has ended, the first
// connection carries its messages from now on. If the path has ended, the first connection reports
// the reason. An error means that the peer's host is gone: only the control line detects this.
bool TcpEndpoint::OnLine(const absl::StatusOr<ControlLine::State>& state) {
  if (state.ok() && *state == ControlLine::State::kGood) {
    return true;
  }
  const absl::Status why = state.status();
  if (state.ok() && *state == ControlLine::State::kClosed) {
    line_closed_ns_ = Clock::Real().Now();
  }
  TakeOver();
  sockets_.ResetLineWhenClosed();  // this process lives (ProvesEnd)
  sockets_.CloseLine();
  line_over_ = true;
  if (!why.ok()) {
    LoseAfterReading(why);
  } else {
    ProbeWhenIdle(sockets_.first().fd(), settings_.keep_alive);
  }
  return false;
}

bool TcpEndpoint::WriteLine() {
  return sockets_.line().attached() && OnLine(sockets_.line().Write());
}

int TcpEndpoint::ReadLine() {
  int events = 0;
  std::string text;
  while (sockets_.line().attached() && OnLine(sockets_.line().Read(&text)) && !text.empty()) {
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
  if (sockets_.line().pending()) {
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
  Channel& first = sockets_.first();
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t written, sender_.Flush(first));
  if (sockets_.watches_room() && !sender_.framed(first)) {
    ENTRAIN_RETURN_IF_ERROR(sockets_.Watch(!receiver_.held_back(), /*room=*/false));
  } else if (long_path() && sender_.stuck()) {  // only epoll knows when the streams take more bytes
    ENTRAIN_RETURN_IF_ERROR(sockets_.WatchAlso(!receiver_.held_back()));
  }
  return written;
}

int TcpEndpoint::Read(bool frames) {
  const int messages = sockets_.line().buffered() ? ReadLine() : 0;
  if (!connected()) {
    return messages + 1;
  }
  const absl::StatusOr<int64_t> bytes = receiver_.Read(sockets_.first(), frames);
  if (!bytes.ok()) {
    ReadLine();  // the peer's last message on the control line may give the reason
    Lose(bytes.status());
    return 1;
  }
  received_ += static_cast<uint64_t>(*bytes);
  TendStreams();
  if (connected()) {
    if (const absl::Status status = sockets_.WatchAlso(!receiver_.held_back()); !status.ok()) {
      Lose(status);
    }
  }
  return messages + (*bytes > 0 ? 1 : 0);
}

int TcpEndpoint::OnReady(int fd) {
  if (fd == sockets_.line().fd()) {
    const int events = ReadLine();
    return WriteLine() ? events : events + 1;
  }
  sockets_.streams().SetReady(fd);
  const int events = Read(/*frames=*/!long_path() || fd == sockets_.first().fd());
  // If the peer is closing the path, CLOSE comes soon on the first connection. If not, the next
  // payload on this stream notices the end.
  sockets_.DropEndedStream(fd);
  return events;
}

bool TcpEndpoint::Arm() {
  if (!connected()) {
    return failed_.ok();
  }
  const Channel& first = sockets_.first();
  const ControlLine& line = sockets_.line();
  if (unparsed() || sender_.due(first) || (writing() && !sender_.stuck()) ||
      (line.pending() && !line.stuck())) {
    return false;
  }
  if (const absl::Status status = sockets_.Watch(!receiver_.held_back(), sender_.framed(first));
      !status.ok()) {
    Lose(status);
  }
  return connected();
}

}  // namespace entrain
