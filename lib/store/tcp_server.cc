#include "lib/store/tcp_server.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/library_thread.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/local_socket.h"

namespace entrain {
namespace {

constexpr uint64_t kListenerId = 0, kStopId = 1;
constexpr size_t kLengthBytes = sizeof(uint32_t);
constexpr size_t kReadStep = 64 << 10;
constexpr int kAcceptsPerTurn = 64;
constexpr size_t kToldRefusals = 16;  // strangers cannot fill the log
constexpr int kSweepMs = 500;  // longest time between a stranger's time-out and its detection
constexpr int64_t kAcceptPauseNs = 100 * kMillisecond;

absl::Status AddToEpoll(int epoll, int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "store server: epoll_ctl");
  }
  return absl::OkStatus();
}

}  // namespace

struct TcpStoreServer::Client {
  Client(Fd socket, const Address& from, const std::array<uint8_t, 16>& self,
         const Security& security)
      : address(from),
        handshaker(std::make_unique<Handshaker>(std::move(socket), from, false, Purpose::kStore,
                                                self, security)),
        deadline(Deadline::After(kHandshakeNs)) {}

  // Returns how many more bytes of the request may be read now.
  size_t Wanted() const {
    if (in.size() < kLengthBytes) {
      return kLengthBytes - in.size();
    }
    return kLengthBytes + Announced() - in.size() - skipped;
  }
  uint32_t Announced() const { return Reader(in).Get<uint32_t>(); }
  bool Busy() const { return waiting || !out.empty() || channel.unsent(); }
  bool meets() const { return rank >= 0; }

  int fd() const { return handshaker != nullptr ? handshaker->fd() : channel.fd(); }

  Address address;
  std::unique_ptr<Handshaker> handshaker;  // until the handshake is done
  Channel channel;                         // used after the handshake
  std::array<uint8_t, 16> peer{};          // the client's id, valid after the handshake
  Deadline deadline;                       // deadline of the handshake
  std::string in;
  bool refused = false;  // there is no room for the request, so the rest of it is read and dropped
  size_t skipped = 0;    // number of bytes dropped
  std::deque<Frame> out;
  size_t out_done = 0;   // bytes of out.front() that have been sent
  bool waiting = false;  // the client's request waits for the key `wanted_key`
  std::string wanted_key;
  std::string meeting;
  int32_t rank = -1;     // rank in that meeting; -1: none joined
  uint32_t watched = 0;  // the epoll events for which the socket is registered
};

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Start(Listener listener,
                                                                      const Security& security) {
  std::unique_ptr<TcpStoreServer> server(new TcpStoreServer(std::move(listener), security));
  ENTRAIN_RETURN_IF_ERROR(server->Prepare());
  server->thread_ = LibraryThread([self = server.get()] { self->Run(); });
  return server;
}

TcpStoreServer::TcpStoreServer(Listener listener, const Security& security)
    : listener_(std::move(listener)), security_(security), read_(kReadStep, '\0') {
  RandomBytes(self_.data(), self_.size());
}

// Only internet sockets have ports.
bool TcpStoreServer::local() const {
  return listener_.address.port() == 0;
}

std::string TcpStoreServer::name() const {
  return local() ? "of this host" : listener_.address.ToString();
}

absl::Status TcpStoreServer::Prepare() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  stop_event_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !stop_event_.valid()) {
    return ErrnoStatus(errno, "store server");
  }
  ENTRAIN_RETURN_IF_ERROR(AddToEpoll(epoll_.get(), listener_.fd.get(), kListenerId, EPOLLIN));
  return AddToEpoll(epoll_.get(), stop_event_.get(), kStopId, EPOLLIN);
}

TcpStoreServer::~TcpStoreServer() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // Cannot fail: the eventfd's counter is far from its maximum.
    [[maybe_unused]] const ssize_t put = write(stop_event_.get(), &one, sizeof(one));
    thread_.join();
  }
}

void TcpStoreServer::Run() {
  epoll_event events[64];
  while (true) {
    const int count = epoll_wait(epoll_.get(), events, 64, SleepMs());
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kStopId) {
        Farewell();
        return;
      }
      if (id == kListenerId) {
        AcceptSome();
      } else {
        Serve(id, events[i].events);
      }
    }
    DropLateStrangers();
    ResumeAccepting();
  }
}

int TcpStoreServer::SleepMs() const {
  if (accepting_) {
    return strangers_.empty() ? -1 : kSweepMs;
  }
  const int64_t left = std::max(accept_again_ns_, PlaceAt()) - Clock::Real().Now();
  return static_cast<int>(std::clamp<int64_t>(left / kMillisecond + 1, 0, kSweepMs));
}

void TcpStoreServer::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (Clock::Real().Now() < PlaceAt()) {
      PauseAccepting(0);
      return;
    }
    Address from;
    auto fd = Accept(listener_.fd.get(), &from);
    if (!fd.ok()) {
      ENTRAIN_LOG(kWarning, "store server ", name(), ": ", fd.status().message());
      // There are no descriptors left. Without a pause the listener would stay readable, and the
      // loop would spin.
      PauseAccepting(Clock::Real().Now() + kAcceptPauseNs);
      return;
    }
    if (!fd->valid()) {
      return;
    }
    if (const absl::Status same = local() ? CheckSameUser(fd->get()) : absl::OkStatus();
        !same.ok()) {
      ENTRAIN_LOG(kInfo, "store server ", name(), ": refused: ", same.message());
      continue;
    }
    ProbeWhenIdle(fd->get(), keep_alive_);
    const uint64_t id = next_id_++;
    auto client = std::make_unique<Client>(*std::move(fd), from, self_, security_);
    if (!AddToEpoll(epoll_.get(), client->fd(), id, 0).ok()) {
      continue;  // the kernel has no room: only this connection is dropped
    }
    Client& added = *clients_.emplace(id, std::move(client)).first->second;
    strangers_.insert(id);
    if (!AdvanceHandshake(id, added)) {
      Drop(id);
      continue;
    }
    Watch(id, added);
    if (strangers_.size() > places_) {
      Drop(*strangers_.begin());
    }
  }
}

void TcpStoreServer::PauseAccepting(int64_t until_ns) {
  if (accepting_) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.fd.get(), nullptr);
    accepting_ = false;
  }
  accept_again_ns_ = until_ns;
}

void TcpStoreServer::ResumeAccepting() {
  const int64_t now = accepting_ ? 0 : Clock::Real().Now();
  if (!accepting_ && now >= std::max(accept_again_ns_, PlaceAt())) {
    accepting_ = AddToEpoll(epoll_.get(), listener_.fd.get(), kListenerId, EPOLLIN).ok();
    accept_again_ns_ = now + kAcceptPauseNs;  // matters only if AddToEpoll failed
  }
}

int64_t TcpStoreServer::PlaceAt() const {
  return strangers_.size() < places_
             ? 0
             : clients_.at(*strangers_.begin())->deadline.at_ns - kHandshakeNs + kProofNs;
}

void TcpStoreServer::DropLateStrangers() {
  const int64_t now = strangers_.empty() ? 0 : Clock::Real().Now();
  while (!strangers_.empty()) {
    const uint64_t oldest = *strangers_.begin();
    const Client& client = *clients_.at(oldest);
    if (!client.deadline.Passed(now)) {
      return;
    }
    ENTRAIN_LOG(kInfo, "store server ", name(), ": ", client.address.ToString(),
                " did not finish the handshake in time");
    Drop(oldest);
  }
}

void TcpStoreServer::Serve(uint64_t id, uint32_t events) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;  // this turn of the loop has already dropped the client
  }
  Client& client = *found->second;
  // A client that waits for its answer must not send anything, so data from this client breaks the
  // protocol. RDHUP means that the client does not wait any more.
  const bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0 ||
                    (client.waiting && (events & (EPOLLIN | EPOLLRDHUP)) != 0);
  // A rank that has finished sends kFinish and closes its connection at once. So the server reads
  // the request before it handles the end of the connection.
  const bool fine = AdvanceHandshake(id, client) && Flush(client) && Advance(id, client);
  if (gone || !fine) {
    Drop(id);
    return;
  }
  Watch(id, client);
}

// Reads and handles requests until the socket has no more data or the client must wait. Returns
// false if the connection is over.
bool TcpStoreServer::Advance(uint64_t id, Client& client) {
  while (client.handshaker == nullptr && !client.Busy()) {
    const auto got =
        ReadSome(client.channel, read_.data(), std::min(client.Wanted(), read_.size()));
    if (!got.ok()) {
      return false;
    }
    if (*got == 0) {
      return true;
    }
    Keep(client, {read_.data(), *got});
    if (!ConsumeRequest(id, client) || !Flush(client)) {
      return false;
    }
  }
  return true;
}

void TcpStoreServer::Keep(Client& client, absl::string_view bytes) {
  if (!client.refused && !HasRoom(client.in.size(), bytes.size())) {
    client.refused = true;
    client.skipped = client.in.size() - kLengthBytes;
    transit_bytes_ -= client.skipped;
    client.in.resize(kLengthBytes);
    client.in.shrink_to_fit();
  }
  if (client.refused) {
    client.skipped += bytes.size();
  } else {
    client.in.append(bytes.data(), bytes.size());
    transit_bytes_ += bytes.size();
  }
}

// Continues the handshake, if it is not done. Returns false if the connection is over.
bool TcpStoreServer::AdvanceHandshake(uint64_t id, Client& client) {
  if (client.handshaker == nullptr) {
    return true;
  }
  const absl::StatusOr<bool> done = client.handshaker->Progress();
  if (!done.ok()) {
    // A refused rank comes again and again, so each reason is told once.
    const bool told =
        refusals_.contains(done.status().message()) || refusals_.size() >= kToldRefusals;
    if (told) {
      ENTRAIN_LOG(kInfo, "store server ", name(), ": refused ", client.address.ToString(), ": ",
                  done.status().message());
    } else {
      ENTRAIN_LOG(kWarning, "store server ", name(), ": refused ", client.address.ToString(), ": ",
                  done.status().message(), " (told once)");
      refusals_.emplace(done.status().message());
    }
    return false;
  }
  if (*done) {
    strangers_.erase(id);
    client.peer = client.handshaker->handshake().peer();
    client.channel = client.handshaker->Take();
    client.handshaker.reset();
  }
  return true;
}

bool TcpStoreServer::ConsumeRequest(uint64_t id, Client& client) {
  if (client.in.size() < kLengthBytes) {
    return true;
  }
  if (client.Announced() == 0 || client.Announced() > kMaxRequestBytes) {
    return false;
  }
  if (client.Wanted() > 0) {
    return true;
  }
  const auto request = client.refused
                           ? absl::StatusOr<StoreRequest>(Full())
                           : DecodeRequest(absl::string_view(client.in).substr(kLengthBytes));
  client.refused = false;
  client.skipped = 0;
  transit_bytes_ -= client.in.size();
  client.in.clear();
  client.in.shrink_to_fit();
  if (!request.ok()) {
    Send(id, client, FrameOf(EncodeReply(request.status())));
  } else if (client.meets() || IsOfMeeting(request->op)) {
    Meet(id, client, *request);
  } else {
    Answer(id, client, *request);
  }
  return true;
}

void TcpStoreServer::Answer(uint64_t id, Client& client, const StoreRequest& request) {
  const std::array<uint8_t, 16>& peer = client.peer;
  const absl::string_view name(reinterpret_cast<const char*>(peer.data()), peer.size());
  bool changed = false;
  const auto answer = table_.Apply(request, name, &changed);
  if (request.op == StoreOp::kGet && absl::IsNotFound(answer.status())) {
    client.waiting = true;
    client.wanted_key = request.key;
    parked_[request.key].push_back(id);
    return;
  }
  Send(id, client, ReplyOf(answer));
  if (changed) {
    WakeParked(request.key);
  }
}

void TcpStoreServer::WakeParked(const std::string& key) {
  const auto found = parked_.find(key);
  if (found == parked_.end()) {
    return;
  }
  const std::vector<uint64_t> ids = std::exchange(found->second, {});
  parked_.erase(found);
  StoreRequest request;
  request.key = key;
  bool changed = false;
  const Frame frame = ReplyOf(table_.Apply(request, "", &changed));
  for (const uint64_t id : ids) {
    const auto client = clients_.find(id);
    if (client == clients_.end()) {
      continue;
    }
    client->second->waiting = false;
    Send(id, *client->second, frame);
  }
}

// ---- Meetings

void TcpStoreServer::Meet(uint64_t id, Client& client, const StoreRequest& request) {
  if (request.op == StoreOp::kJoin && !client.meets()) {
    Join(id, client, request);
  } else if (!client.meets() || request.op == StoreOp::kJoin || !IsOfMeeting(request.op)) {
    Send(id, client,
         FrameOf(EncodeReply(absl::InvalidArgumentError(
             "store: a connection that has joined a meeting serves that meeting alone"))));
  } else if (request.op == StoreOp::kAbsent) {
    const Gathering* const meeting = meetings_.Find(client.meeting);
    Send(id, client, FrameOf(EncodeAbsent(meeting->Absent())));
  } else if (request.op == StoreOp::kFail) {
    const auto why = DecodeStatus(request.value);
    if (why && !why->ok() && meetings_.Fail(client.meeting, *why)) {
      Announce(client.meeting);
    }
  } else {
    if (meetings_.Find(client.meeting)->server_rank == client.rank) {
      TellServer(client.meeting, -1);
    }
    meetings_.Finish(client.meeting, client.rank);
  }
}

void TcpStoreServer::Join(uint64_t id, Client& client, const StoreRequest& request) {
  const auto entry = DecodeEntry(request.value);
  if (!entry.ok()) {
    Send(id, client, FrameOf(EncodeReply(entry.status())));
    return;
  }
  const Gathering* meeting = meetings_.Find(request.key);
  const bool failed_before = meeting != nullptr && !meeting->failure.ok();
  const absl::Status joined = meetings_.Join(request.key, *entry, id, "this store");
  meeting = meetings_.Find(request.key);
  if (!joined.ok()) {
    Send(id, client, FrameOf(EncodeFailed(joined)));
  } else {
    client.meeting = request.key;
    client.rank = entry->rank;
    if (meeting->server_rank == entry->rank) {
      TellServer(request.key, entry->rank);
    } else if (meeting->server_rank >= 0) {
      Send(id, client, FrameOf(EncodeServer(meeting->server_rank)));
    }
  }
  if (meeting != nullptr && !failed_before && (!meeting->failure.ok() || meeting->complete())) {
    Announce(request.key);
  }
}

void TcpStoreServer::TellServer(const std::string& key, int32_t rank) {
  const Frame frame = FrameOf(EncodeServer(rank));
  for (const auto& [place, seat] : meetings_.Find(key)->seats) {
    if (const auto found = clients_.find(seat.member); found != clients_.end()) {
      Send(seat.member, *found->second, frame);
    }
  }
}

void TcpStoreServer::Announce(const std::string& key) {
  const Gathering& meeting = *meetings_.Find(key);
  const std::string body =
      meeting.failure.ok() ? EncodeTable(meeting.Table()) : EncodeFailed(meeting.failure);
  const Frame frame = MakeFrame(Writer().PutText(body).Take(), meetings_.tables());
  for (const auto& [place, seat] : meeting.seats) {
    const auto found = clients_.find(seat.member);
    if (found != clients_.end() && !seat.finished) {
      Send(seat.member, *found->second, frame);
    }
  }
}

// ---- Sending

absl::Status TcpStoreServer::Full() {
  return absl::ResourceExhaustedError(
      absl::StrCat("the server has ", kMaxTransitBytes,
                   " bytes of unfinished requests and unread answers, which is the limit"));
}

// Returns true if a connection that has `had` bytes in transit may have `more` additional bytes.
bool TcpStoreServer::HasRoom(size_t had, size_t more) const {
  return had + more <= kSmallBytes || transit_bytes_ + more <= kMaxTransitBytes;
}

TcpStoreServer::Frame TcpStoreServer::MakeFrame(std::string bytes, size_t* account) {
  *account += bytes.size();
  return Frame(new std::string(std::move(bytes)), [account](const std::string* frame) {
    *account -= frame->size();
    delete frame;
  });
}

TcpStoreServer::Frame TcpStoreServer::FrameOf(absl::string_view body) {
  return MakeFrame(Writer().PutText(body).Take(), &transit_bytes_);  // as a text: u32 length, bytes
}

TcpStoreServer::Frame TcpStoreServer::ReplyOf(const absl::StatusOr<std::string>& answer) {
  const bool fits = !answer.ok() || HasRoom(0, answer->size());
  return FrameOf(EncodeReply(fits ? answer : Full()));
}

// Ignores a failed flush: the socket's next event drops the client. If the client were dropped
// here, it would be destroyed while the caller still uses it.
void TcpStoreServer::Send(uint64_t id, Client& client, Frame frame) {
  client.out.push_back(std::move(frame));
  Flush(client);
  Watch(id, client);
}

bool TcpStoreServer::Flush(Client& client) {
  if (!client.channel.Flush()) {
    return false;
  }
  while (!client.out.empty()) {
    const std::string& frame = *client.out.front();
    if (client.out_done < frame.size()) {
      const auto put =
          WriteSome(client.channel, frame.data() + client.out_done, frame.size() - client.out_done);
      if (!put.ok()) {
        return false;
      }
      if (*put == 0) {
        return true;
      }
      client.out_done += *put;
    }
    if (client.out_done == frame.size()) {
      client.out.pop_front();
      client.out_done = 0;
    }
  }
  return true;
}

void TcpStoreServer::Watch(uint64_t id, Client& client) {
  const bool unsent = client.handshaker != nullptr ? client.handshaker->unsent()
                                                   : !client.out.empty() || client.channel.unsent();
  // If received bytes wait in the TLS session, the server also waits until the socket is writable.
  // The socket is writable at once, so the server soon reads these bytes.
  const bool look = client.handshaker == nullptr && !client.waiting && client.channel.buffered();
  uint32_t wanted = client.out.empty() ? EPOLLIN | EPOLLRDHUP : uint32_t{0};
  wanted |= unsent || look ? uint32_t{EPOLLOUT} : 0;
  if (wanted == client.watched) {
    return;
  }
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.fd(), &event);
  client.watched = wanted;
}

void TcpStoreServer::Drop(uint64_t id) {
  const auto found = clients_.find(id);
  const std::unique_ptr<Client> client = std::move(found->second);
  clients_.erase(found);
  strangers_.erase(id);
  transit_bytes_ -= client->in.size();
  if (client->waiting) {
    std::vector<uint64_t>& ids = parked_[client->wanted_key];
    ids.erase(std::remove(ids.begin(), ids.end(), id), ids.end());
    if (ids.empty()) {
      parked_.erase(client->wanted_key);
    }
  }
  if (client->meets() && meetings_.Leave(client->meeting, client->rank, true)) {
    Announce(client->meeting);
  }
  // Closing the descriptor removes it from epoll.
}

void TcpStoreServer::Farewell() {
  const absl::Status closed = absl::UnavailableError("the server was closed");
  const Frame to_waiting = FrameOf(EncodeReply(closed)), to_ranks = FrameOf(EncodeServer(-1));
  for (const auto& [id, client] : clients_) {
    if (client->waiting || client->meets()) {
      client->out.push_back(client->waiting ? to_waiting : to_ranks);
      // Bytes that do not fit into the socket now are lost. The client then sees only that the
      // connection ends.
      Flush(*client);
    }
  }
  clients_.clear();
  parked_.clear();
}

}  // namespace entrain
