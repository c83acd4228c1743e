// The client of a tcp store, and the handle of a tcp store that this process serves. A local store
// differs only in the socket.
//
// Each call of the store uses a connection of its own, so that a waiting Get does not block other
// calls. The connection is an idle one from a pool, or a new one. A connection whose call was
// interrupted is closed, because its answer may still be on the way.
//
// To save a round trip, a client sends the first request of a connection right after its own part
// of the handshake. The client reads and checks the server's proof before it reads the first
// answer. So without TLS, a process that has taken the server's address can read one request of
// each connection, but cannot answer it.
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/net/handshaker.h"
#include "lib/net/interfaces.h"
#include "lib/net/listener.h"
#include "lib/net/local_socket.h"
#include "lib/store/request.h"
#include "lib/store/tcp_meeting.h"
#include "lib/store/tcp_server.h"

namespace entrain {
namespace {

constexpr int64_t kAttemptNs = 10 * kSecond;  // limit for one address: connecting and handshake
constexpr int kRetryFirstMs = 10, kRetryMostMs = 500;
constexpr size_t kMaxIdle = 8;

using Id = std::array<uint8_t, 16>;

// Where to connect to: the abstract name `local` if it is not empty, otherwise `address`.
struct Place {
  Address address;
  std::string local;
  std::string ToString() const {
    return local.empty() ? address.ToString() : absl::StrCat("\"", local, "\"");
  }
};

struct Connection {
  Channel& channel() { return proving != nullptr ? proving->channel() : proved; }

  Place place;
  Id self, server;
  std::unique_ptr<Handshaker> proving;  // used until the server has proved itself
  Channel proved;                       // used afterwards
};

Id NewId() {
  Id id;
  RandomBytes(id.data(), id.size());
  return id;
}

// Opens a connection. The server identifies the client by `self`.
absl::StatusOr<Connection> Dial(const Place& place, const Id& self, const Security& security,
                                const Stop& stop) {
  ENTRAIN_ASSIGN_OR_RETURN(
      Fd fd, place.local.empty() ? Connect(place.address, stop) : ConnectLocal(place.local));
  auto handshaker = std::make_unique<Handshaker>(std::move(fd), place.address, true,
                                                 Purpose::kStore, self, security);
  const absl::Status met = RunUntilProved(*handshaker, stop);
  if (!met.ok()) {
    return Annotate(met, place.ToString());
  }
  const Id server = handshaker->handshake().peer();
  return Connection{place, self, server, std::move(handshaker), Channel()};
}

// A server in the form in which the URL names it: host and port, or the NAME of local:NAME.
struct Server {
  HostPort host;
  std::string local;
  std::string url() const {
    return local.empty() ? absl::StrCat("tcp://", host.ToString()) : absl::StrCat("local:", local);
  }
};

absl::StatusOr<std::string> LocalName(absl::string_view name) {
  const std::string whole = absl::StrCat("entrain-store-", geteuid(), "-", name);
  if (name.empty() || whole.size() > kMaxLocalName) {
    return absl::InvalidArgumentError(
        absl::StrCat("store URL \"local:", name, "\": expected local:NAME with a name of 1 to ",
                     kMaxLocalName - (whole.size() - name.size()), " bytes"));
  }
  return whole;
}

absl::StatusOr<std::vector<Place>> PlacesOf(const Server& server, const Stop& stop) {
  std::vector<Place> places;
  if (!server.local.empty()) {
    ENTRAIN_ASSIGN_OR_RETURN(std::string name, LocalName(server.local));
    places.push_back({Address(), std::move(name)});
    return places;
  }
  ENTRAIN_ASSIGN_OR_RETURN(const auto addresses, Resolve(server.host, stop));
  for (const Address& address : addresses) {
    places.push_back({address, ""});
  }
  return places;
}

class TcpStore final : public RequestStore {
 public:
  TcpStore(Server where, Connection first, const Security& security,
           std::unique_ptr<TcpStoreServer> server)
      : where_(std::move(where)),
        place_(first.place),
        self_(first.self),
        server_id_(first.server),
        security_(security),
        server_(std::move(server)) {
    idle_.push_back(std::move(first));
  }
  std::string url() const override { return where_.url(); }
  std::string host() const override { return where_.host.host; }

 private:
  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    auto answer = Exchange(request, stop);
    if (!answer.ok() && answer.status().code() != absl::StatusCode::kNotFound &&
        answer.status().code() != absl::StatusCode::kInvalidArgument) {
      return Annotate(answer.status(), Describe(url(), request));
    }
    return answer;
  }

  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key, const Entry& entry,
                                                     const Stop& stop) override {
    Entry mine = entry;
    mine.serves = server_ != nullptr;
    StoreRequest request;
    request.op = StoreOp::kJoin;
    request.key = key;
    request.value = EncodeEntry(mine);
    auto asked = Ask(request, stop);
    if (!asked.ok()) {
      return Annotate(asked.status(), Describe(url(), request));
    }
    return OnConnection(std::move(asked->proved), url(), key, mine.serves, stop.deadline);
  }

  absl::StatusOr<std::string> Exchange(const StoreRequest& request, const Stop& stop) {
    ENTRAIN_ASSIGN_OR_RETURN(Connection asked, Ask(request, stop));
    return Receive(std::move(asked), stop);
  }

  // Sends the request and returns the connection on which the answer will come. A server that is
  // flooded with strangers closes connections whose proof it has not read yet. This function then
  // connects again, but only if the request may be executed twice. (The server may have executed
  // the request although its proof was lost.)
  absl::StatusOr<Connection> Ask(const StoreRequest& request, const Stop& stop) {
    const std::string frame = Writer().PutText(EncodeRequest(request)).Take();
    for (int sleep_ms = kRetryFirstMs;; sleep_ms = std::min(2 * sleep_ms, kRetryMostMs)) {
      ENTRAIN_ASSIGN_OR_RETURN(Connection connection, Take(stop));
      const absl::Status sent = Send(&connection, frame, stop);
      if (sent.ok()) {
        return connection;
      }
      const bool again = request.op == StoreOp::kGet || request.op == StoreOp::kTryGet ||
                         request.op == StoreOp::kSet || request.op == StoreOp::kDelete;
      if (!again || connection.proving == nullptr || !absl::IsUnavailable(sent) ||
          !Pause(sleep_ms, stop)) {
        return sent;
      }
    }
  }

  absl::Status Send(Connection* to, absl::string_view frame, const Stop& stop) {
    const absl::Status sent = WriteFull(to->channel(), frame.data(), frame.size(), stop);
    if (to->proving != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(Prove(to, stop));  // also after a failed write, because a refusal
                                                 // says more than the write's error
    }
    return sent;
  }

  // Waits for the server's proof.
  static absl::Status Prove(Connection* server, const Stop& stop) {
    ENTRAIN_RETURN_IF_ERROR(RunHandshake(*server->proving, stop));
    server->proved = server->proving->Take();
    server->proving.reset();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Receive(Connection from, const Stop& stop) {
    uint32_t bytes = 0;
    ENTRAIN_RETURN_IF_ERROR(ReadFull(from.proved, &bytes, sizeof(bytes), stop));
    if (bytes > kMaxReplyBytes) {
      return absl::DataLossError(absl::StrCat("a reply of ", bytes, " bytes is too long"));
    }
    std::string reply(bytes, '\0');
    ENTRAIN_RETURN_IF_ERROR(ReadFull(from.proved, reply.data(), bytes, stop));
    auto answer = DecodeReply(reply);
    Give(std::move(from));
    return answer;
  }

  // Returns an idle connection that is still good, or a new one. The server existed before, so a
  // refused connection is a final error.
  absl::StatusOr<Connection> Take(const Stop& stop) {
    while (true) {
      std::optional<Connection> idle;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (idle_.empty()) {
          break;
        }
        idle = std::move(idle_.back());
        idle_.pop_back();
      }
      // Between calls only the server's proof may be readable. If anything else is readable, the
      // connection has ended.
      const auto readable = [&] {
        pollfd state{idle->channel().fd(), POLLIN, 0};
        return poll(&state, 1, 0) != 0;
      };
      bool more = readable();
      if (more && idle->proving != nullptr) {
        const absl::Status proven = Prove(&*idle, stop);
        if (absl::IsFailedPrecondition(proven)) {
          return proven;
        }
        more = readable();
      }
      if (!more) {
        return *std::move(idle);
      }
    }
    ENTRAIN_ASSIGN_OR_RETURN(Connection fresh, Dial(place_, self_, security_, stop));
    if (fresh.server != server_id_) {
      return absl::UnavailableError(
          "the server was replaced by another one, the contents are lost");
    }
    return fresh;
  }

  void Give(Connection connection) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kMaxIdle) {
      idle_.push_back(std::move(connection));
    }
  }

  const Server where_;
  const Place place_;
  const Id self_, server_id_;
  const Security security_;
  std::mutex mutex_;
  std::vector<Connection> idle_;
  const std::unique_ptr<TcpStoreServer> server_;  // not null if this process serves the store
};

// Tries all servers once. `tried` collects the errors, one per address.
absl::StatusOr<std::pair<Server, Connection>> DialAny(const std::vector<Server>& servers,
                                                      const Security& security, const Stop& stop,
                                                      std::vector<std::string>* tried) {
  absl::Status worst = absl::UnavailableError("nobody answered");
  tried->clear();
  for (const Server& server : servers) {
    const auto places = PlacesOf(server, Sooner(stop, kAttemptNs));
    if (!places.ok()) {
      tried->emplace_back(places.status().message());
      continue;
    }
    for (const Place& place : *places) {
      auto connection = Dial(place, NewId(), security, Sooner(stop, kAttemptNs));
      if (connection.ok()) {
        return std::make_pair(server, *std::move(connection));
      }
      tried->emplace_back(connection.status().message());
      // A server answered and refused this client. Trying again cannot help.
      if (absl::IsFailedPrecondition(connection.status())) {
        worst = connection.status();
      }
    }
  }
  return worst;
}

absl::StatusOr<std::pair<Server, Connection>> DialUntil(const std::vector<Server>& servers,
                                                        absl::string_view url,
                                                        const Security& security,
                                                        const Stop& stop) {
  const std::string what = absl::StrCat("cannot reach store ", url);
  std::vector<std::string> tried, last;
  for (int sleep_ms = kRetryFirstMs;; sleep_ms = std::min(2 * sleep_ms, kRetryMostMs)) {
    auto found = DialAny(servers, security, stop, &tried);
    if (found.ok()) {
      return found;
    }
    if (absl::IsFailedPrecondition(found.status())) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": ", absl::StrJoin(tried, "; ")));
    }
    // If the deadline interrupted this round, only the previous round shows the reason.
    const absl::Status ended = CheckStop(stop, what);
    if (ended.ok() || last.empty()) {
      last = tried;
    }
    if (ended.ok()) {
      Pause(sleep_ms, stop);
    }
    if (absl::IsAborted(CheckStop(stop, what))) {
      return CheckStop(stop, what);
    }
    if (!CheckStop(stop, what).ok()) {
      return absl::UnavailableError(absl::StrCat(what, ": ", absl::StrJoin(last, "; ")));
    }
  }
}

absl::Status BadUrl(absl::string_view where, const absl::Status& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("store URL \"tcp://", where, "\": ", why.message()));
}

// Returns the listener on `where`. If no address of the name belongs to an interface of this host,
// listens on all addresses of the host. (The name may be this host's own name mapped to loopback,
// or the name of a proxy.)
absl::StatusOr<Listener> OpenFor(const HostPort& where) {
  const PortRange port{where.port, where.port};
  ENTRAIN_ASSIGN_OR_RETURN(const auto addresses,
                           Resolve(where, Stop{Deadline::After(kAttemptNs), nullptr}));
  ENTRAIN_ASSIGN_OR_RETURN(const Address any, Address::FromHost("0.0.0.0", where.port));
  if (IsOwnName(where.host, addresses)) {
    return OpenListener(any, port);
  }
  const bool is_number = Address::FromHost(where.host, 0).ok();
  auto listener = OpenListener(addresses.front(), port);
  if (listener.ok() || is_number || IsLocal(addresses.front())) {
    return listener;
  }
  return OpenListener(any, port);
}

// Returns the host by which other processes reach the server. If `where` means all addresses, this
// is the source address of the default route.
std::string PublishedHost(const HostPort& where, const Address& bound) {
  const auto given = Address::FromHost(where.host, 0);
  if (!given.ok() || !given->IsAny()) {
    return where.host;
  }
  const auto outward = Address::FromHost("192.0.2.1", 0);  // a reserved documentation address
  if (bound.family() == AF_INET && outward.ok()) {
    if (const auto route = RouteTo(*outward); route.ok()) {
      return route->host();
    }
  }
  return bound.family() == AF_INET ? "127.0.0.1" : "::1";
}

// Opens the first server that answers.
absl::StatusOr<std::shared_ptr<Store>> Open(const std::vector<Server>& servers,
                                            absl::string_view url, const Security& security,
                                            const Stop& stop) {
  ENTRAIN_ASSIGN_OR_RETURN(auto found, DialUntil(servers, url, security, stop));
  return std::shared_ptr<Store>(std::make_shared<TcpStore>(
      std::move(found.first), std::move(found.second), security, nullptr));
}

absl::StatusOr<std::shared_ptr<Store>> Serve(Server where, const Place& place, Listener listener,
                                             const Security& security) {
  ENTRAIN_ASSIGN_OR_RETURN(auto server, TcpStoreServer::Start(std::move(listener), security));
  ENTRAIN_ASSIGN_OR_RETURN(
      Connection own, Dial(place, NewId(), security, Stop{Deadline::After(kAttemptNs), nullptr}));
  return std::shared_ptr<Store>(
      std::make_shared<TcpStore>(std::move(where), std::move(own), security, std::move(server)));
}

absl::StatusOr<std::shared_ptr<Store>> ServeLocal(absl::string_view name,
                                                  const Security& security) {
  ENTRAIN_ASSIGN_OR_RETURN(const std::string whole, LocalName(name));
  auto fd = ListenLocal(whole);
  if (!fd.ok()) {
    return Annotate(fd.status(), absl::StrCat("cannot serve store local:", name));
  }
  return Serve({HostPort(), std::string(name)}, {Address(), whole},
               Listener{*std::move(fd), Address()}, security);
}

absl::StatusOr<std::shared_ptr<Store>> ServeTcp(absl::string_view text, const Security& security) {
  auto where = ParseHostPort(text);
  if (!where.ok()) {
    return BadUrl(text, where.status());
  }
  auto listener = OpenFor(*where);
  if (!listener.ok()) {
    return Annotate(listener.status(), absl::StrCat("cannot serve store tcp://", text));
  }
  const Address bound = listener->address;
  ENTRAIN_ASSIGN_OR_RETURN(const Address loopback, Address::FromHost("127.0.0.1", bound.port()));
  const bool v4_any = bound.IsAny() && bound.family() == AF_INET;
  Server published{HostPort{PublishedHost(*where, bound), bound.port()}, ""};
  return Serve(std::move(published), {v4_any ? loopback : bound, ""}, *std::move(listener),
               security);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> OpenTcpStore(absl::string_view where,
                                                    const Security& security, const Stop& stop) {
  std::vector<Server> servers;
  for (const absl::string_view part : absl::StrSplit(where, ',')) {
    auto host = ParseHostPort(part);
    if (host.ok() && host->port == 0) {
      host = absl::InvalidArgumentError("port 0 cannot be connected to");
    }
    if (!host.ok()) {
      return BadUrl(where, host.status());
    }
    servers.push_back({*std::move(host), ""});
  }
  return Open(servers, absl::StrCat("tcp://", where), security, stop);
}

absl::StatusOr<std::shared_ptr<Store>> OpenLocalStore(absl::string_view name,
                                                      const Security& security, const Stop& stop) {
  ENTRAIN_RETURN_IF_ERROR(LocalName(name).status());
  return Open({{HostPort(), std::string(name)}}, absl::StrCat("local:", name), security, stop);
}

absl::StatusOr<std::shared_ptr<Store>> ServeStore(absl::string_view url, const Security& security) {
  absl::string_view text = url;
  if (absl::ConsumePrefix(&text, "local:")) {
    return ServeLocal(text, security);
  }
  if (absl::ConsumePrefix(&text, "tcp://")) {
    return ServeTcp(text, security);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("store URL \"", url, "\": only tcp://HOST:PORT and local:NAME can be served"));
}

}  // namespace entrain
