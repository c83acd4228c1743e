#include "lib/store/tcp_server.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/local_socket.h"

namespace entrain {
namespace {

constexpr uint64_t kListenerId = 0, kStopId = 1;
constexpr size_t kLengthBytes = sizeof(uint32_t);
constexpr size_t kReadStep = 64 << 10;
constexpr int kAcceptsPerTurn = 64;
constexpr int kSweepMs = 500;  // how late a stranger may be noticed past its time
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
  Client(Fd socket, Address from, const std::array<uint8_t, 16>& self, absl::string_view key)
      : fd(std::move(socket)),
        address(std::move(from)),
        handshake(false, Purpose::kStore, self, key),
        deadline(Deadline::After(kHandshakeNs)) {}

  // How many more bytes may be read now.
  size_t Wanted() const {
    if (!handshake.done()) {
      return handshake.wanted() - in.size();
    }
    if (in.size() < kLengthBytes) {
      return kLengthBytes - in.size();
    }
    return kLengthBytes + Announced() - in.size();
  }
  uint32_t Announced() const { return Reader(in).Get<uint32_t>(); }
  bool Busy() const { return waiting || !out.empty(); }

  Fd fd;
  Address address;
  Handshake handshake;
  Deadline deadline;  // of the handshake
  std::string in, out;
  bool waiting = false;  // its request is parked under `wanted_key`
  std::string wanted_key;
  uint32_t watched = 0;  // the epoll events asked for
};

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Start(Listener listener,
                                                                      absl::string_view key) {
  std::unique_ptr<TcpStoreServer> server(new TcpStoreServer(std::move(listener), key));
  ENTRAIN_RETURN_IF_ERROR(server->Prepare());
  server->thread_ = std::thread(&TcpStoreServer::Run, server.get());
  return server;
}

TcpStoreServer::TcpStoreServer(Listener listener, absl::string_view key)
    : listener_(std::move(listener)), key_(key) {
  RandomBytes(self_.data(), self_.size());
}

// Only sockets of the internet have ports.
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
    // Cannot fail: the counter is far from its end.
    [[maybe_unused]] const ssize_t put = write(stop_event_.get(), &one, sizeof(one));
    thread_.join();
  }
}

void TcpStoreServer::Run() {
  epoll_event events[64];
  while (true) {
    const bool timed = strangers_ > 0 || !accepting_;
    const int count = epoll_wait(epoll_.get(), events, 64, timed ? kSweepMs : -1);
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

void TcpStoreServer::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Address from;
    auto fd = Accept(listener_.fd.get(), &from);
    if (!fd.ok()) {
      ENTRAIN_LOG(kWarning, "store server ", name(), ": ", fd.status().message());
      PauseAccepting();
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
    const uint64_t id = next_id_++;
    auto client = std::make_unique<Client>(*std::move(fd), from, self_, key_);
    if (!AddToEpoll(epoll_.get(), client->fd.get(), id, 0).ok()) {
      continue;  // no room in the kernel: this one is closed, the others go on
    }
    client->out = client->handshake.TakeOutput();
    Client& added = *clients_.emplace(id, std::move(client)).first->second;
    ++strangers_;
    if (!Flush(added)) {
      Drop(id);
      continue;
    }
    Watch(id, added);
    if (strangers_ > kMaxStrangers) {
      DropOldestStranger();
    }
  }
}

// Out of descriptors: the listener would stay readable and the loop would spin.
void TcpStoreServer::PauseAccepting() {
  if (accepting_) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.fd.get(), nullptr);
    accepting_ = false;
  }
  accept_again_ns_ = Clock::Real().Now() + kAcceptPauseNs;
}

void TcpStoreServer::ResumeAccepting() {
  if (!accepting_ && Clock::Real().Now() >= accept_again_ns_) {
    accepting_ = AddToEpoll(epoll_.get(), listener_.fd.get(), kListenerId, EPOLLIN).ok();
  }
}

void TcpStoreServer::DropOldestStranger() {
  for (const auto& [id, client] : clients_) {  // by age, since ids grow
    if (!client->handshake.done()) {
      Drop(id);
      return;
    }
  }
}

void TcpStoreServer::DropLateStrangers() {
  if (strangers_ == 0) {
    return;
  }
  const int64_t now = Clock::Real().Now();
  std::vector<uint64_t> late;
  for (const auto& [id, client] : clients_) {
    if (!client->handshake.done() && client->deadline.Passed(now)) {
      late.push_back(id);
    }
  }
  for (const uint64_t id : late) {
    ENTRAIN_LOG(kInfo, "store server ", name(), ": ", clients_[id]->address.ToString(),
                " did not finish the handshake in time");
    Drop(id);
  }
}

void TcpStoreServer::Serve(uint64_t id, uint32_t events) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;  // dropped earlier in this turn
  }
  Client& client = *found->second;
  // A client that is answered one request at a time has nothing to say while it waits: data then is
  // a violation, and RDHUP means that nobody waits any more.
  const bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0 ||
                    (client.waiting && (events & (EPOLLIN | EPOLLRDHUP)) != 0);
  if (gone || !Flush(client) || !Advance(id, client)) {
    Drop(id);
    return;
  }
  Watch(id, client);
}

// Reads and acts until the socket is dry or the client has to wait. False: the connection is over.
bool TcpStoreServer::Advance(uint64_t id, Client& client) {
  while (!client.Busy()) {
    const size_t step = std::min(client.Wanted(), kReadStep);
    const size_t had = client.in.size();
    client.in.resize(had + step);
    const auto got = ReadSome(client.fd.get(), client.in.data() + had, step);
    client.in.resize(had + (got.ok() ? *got : 0));
    if (!got.ok()) {
      return false;
    }
    if (*got == 0) {
      return true;
    }
    const bool fine =
        client.handshake.done() ? ConsumeRequest(id, client) : ConsumeHandshake(client);
    if (!fine || !Flush(client)) {
      return false;
    }
  }
  return true;
}

bool TcpStoreServer::ConsumeHandshake(Client& client) {
  if (client.in.size() < client.handshake.wanted()) {
    return true;
  }
  const absl::Status status = client.handshake.Consume(std::exchange(client.in, std::string()));
  client.out += client.handshake.TakeOutput();
  if (!status.ok()) {
    ENTRAIN_LOG(kInfo, "store server ", name(), ": refused ", client.address.ToString(), ": ",
                status.message());
    return false;
  }
  strangers_ -= client.handshake.done() ? 1 : 0;
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
  const auto request = DecodeRequest(absl::string_view(client.in).substr(kLengthBytes));
  client.in.clear();
  client.in.shrink_to_fit();
  if (!request.ok()) {
    Reply(client, request.status());
    return true;
  }
  bool changed = false;
  const auto answer = table_.Apply(*request, &changed);
  if (request->op == StoreOp::kGet && absl::IsNotFound(answer.status())) {
    client.waiting = true;
    client.wanted_key = request->key;
    parked_[request->key].push_back(id);
    return true;
  }
  Reply(client, answer);
  if (changed) {
    WakeParked(request->key);
  }
  return true;
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
  const auto answer = table_.Apply(request, &changed);
  for (const uint64_t id : ids) {
    const auto client = clients_.find(id);
    if (client == clients_.end()) {
      continue;
    }
    client->second->waiting = false;
    Reply(*client->second, answer);
    // A failed flush is left for the event that comes with it, so that nobody is dropped from under
    // a caller's feet.
    Flush(*client->second);
    Watch(id, *client->second);
  }
}

void TcpStoreServer::Reply(Client& client, const absl::StatusOr<std::string>& answer) {
  const std::string body = EncodeReply(answer);
  client.out +=
      Writer().Put(static_cast<uint32_t>(body.size())).PutRaw(body.data(), body.size()).Take();
}

bool TcpStoreServer::Flush(Client& client) {
  size_t done = 0;
  bool fine = true;
  while (done < client.out.size()) {
    const auto put = WriteSome(client.fd.get(), client.out.data() + done, client.out.size() - done);
    fine = put.ok();
    if (!fine || *put == 0) {
      break;
    }
    done += *put;
  }
  client.out.erase(0, done);
  return fine;
}

void TcpStoreServer::Watch(uint64_t id, Client& client) {
  const uint32_t wanted = client.out.empty() ? EPOLLIN | EPOLLRDHUP : uint32_t{EPOLLOUT};
  if (wanted == client.watched) {
    return;
  }
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.fd.get(), &event);
  client.watched = wanted;
}

void TcpStoreServer::Drop(uint64_t id) {
  const auto found = clients_.find(id);
  const Client& client = *found->second;
  strangers_ -= client.handshake.done() ? 0 : 1;
  if (client.waiting) {
    std::vector<uint64_t>& ids = parked_[client.wanted_key];
    ids.erase(std::remove(ids.begin(), ids.end(), id), ids.end());
    if (ids.empty()) {
      parked_.erase(client.wanted_key);
    }
  }
  clients_.erase(found);  // closing the descriptor takes it out of epoll
}

void TcpStoreServer::Farewell() {
  const absl::Status closed = absl::UnavailableError("the server was closed");
  for (const auto& [id, client] : clients_) {
    if (client->waiting) {
      Reply(*client, closed);
      Flush(*client);  // what does not fit at once is lost; the client then sees the connection end
    }
  }
  clients_.clear();
  parked_.clear();
}

}  // namespace entrain
