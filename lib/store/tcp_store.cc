// The client of a tcp store, and the handle of one that this process serves.
//
// Each call that is under way has a connection of its own, taken from a pool of idle ones or made
// anew, so that a Get that waits holds up nobody. A connection whose call was cut short is closed:
// an answer may still be on its way.
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <poll.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/net/handshake.h"
#include "lib/net/interfaces.h"
#include "lib/net/listener.h"
#include "lib/store/request.h"
#include "lib/store/tcp_server.h"

namespace entrain {
namespace {

constexpr int64_t kAttemptNs = 10 * kSecond;  // for one address: connecting and handshake
constexpr int kRetryFirstMs = 10, kRetryMostMs = 500;
constexpr size_t kMaxIdle = 8;

using ServerId = std::array<uint8_t, 16>;

Stop Sooner(const Stop& stop, int64_t ns) {
  return {std::min(stop.deadline, Deadline::After(ns)), stop.cancelled};
}

struct Connection {
  Fd fd;
  Address address;
  ServerId server;
};

absl::StatusOr<Connection> Dial(const Address& address, absl::string_view key, const Stop& stop) {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, Connect(address, stop));
  ServerId self;
  RandomBytes(self.data(), self.size());
  Handshake handshake(true, Purpose::kStore, self, key);
  const auto server = RunHandshake(fd.get(), handshake, stop);
  if (!server.ok()) {
    return Annotate(server.status(), address.ToString());
  }
  return Connection{std::move(fd), address, *server};
}

class TcpStore final : public RequestStore {
 public:
  TcpStore(HostPort where, Connection first, absl::string_view key,
           std::unique_ptr<TcpStoreServer> server)
      : where_(std::move(where)),
        address_(first.address),
        server_id_(first.server),
        key_(key),
        server_(std::move(server)) {
    idle_.push_back(std::move(first.fd));
  }
  std::string url() const override { return absl::StrCat("tcp://", where_.ToString()); }
  std::string host() const override { return where_.host; }

 private:
  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    auto answer = Exchange(request, stop);
    if (!answer.ok() && answer.status().code() != absl::StatusCode::kNotFound &&
        answer.status().code() != absl::StatusCode::kInvalidArgument) {
      return Annotate(answer.status(), Describe(url(), request));
    }
    return answer;
  }

  absl::StatusOr<std::string> Exchange(const StoreRequest& request, const Stop& stop) {
    ENTRAIN_ASSIGN_OR_RETURN(Fd fd, Take(stop));
    const std::string body = EncodeRequest(request);
    Writer frame;
    frame.Put(static_cast<uint32_t>(body.size())).PutRaw(body.data(), body.size());
    ENTRAIN_RETURN_IF_ERROR(WriteFull(fd.get(), frame.text().data(), frame.text().size(), stop));
    uint32_t bytes = 0;
    ENTRAIN_RETURN_IF_ERROR(ReadFull(fd.get(), &bytes, sizeof(bytes), stop));
    if (bytes > kMaxReplyBytes) {
      return absl::DataLossError(absl::StrCat("a reply of ", bytes, " bytes is too long"));
    }
    std::string reply(bytes, '\0');
    ENTRAIN_RETURN_IF_ERROR(ReadFull(fd.get(), reply.data(), bytes, stop));
    auto answer = DecodeReply(reply);
    Give(std::move(fd));
    return answer;
  }

  // An idle connection that is still good, or a new one. The server was there once, so a refusal is
  // not waited out.
  absl::StatusOr<Fd> Take(const Stop& stop) {
    while (true) {
      Fd fd;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (idle_.empty()) {
          break;
        }
        fd = std::move(idle_.back());
        idle_.pop_back();
      }
      // Nothing may be readable between calls; if something is, it is the end.
      pollfd state{fd.get(), POLLIN, 0};
      if (poll(&state, 1, 0) == 0) {
        return fd;
      }
    }
    ENTRAIN_ASSIGN_OR_RETURN(Connection fresh, Dial(address_, key_, stop));
    if (fresh.server != server_id_) {
      return absl::UnavailableError(
          "the server was replaced by another one, the contents are lost");
    }
    return std::move(fresh.fd);
  }

  void Give(Fd fd) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kMaxIdle) {
      idle_.push_back(std::move(fd));
    }
  }

  const HostPort where_;
  const Address address_;
  const ServerId server_id_;
  const std::string key_;
  std::mutex mutex_;
  std::vector<Fd> idle_;
  const std::unique_ptr<TcpStoreServer> server_;  // when this process serves
};

// One round over all hosts. `tried` collects what went wrong, one entry an address.
absl::StatusOr<std::pair<HostPort, Connection>> DialAny(const std::vector<HostPort>& hosts,
                                                        absl::string_view key, const Stop& stop,
                                                        std::vector<std::string>* tried) {
  absl::Status worst = absl::UnavailableError("nobody answered");
  tried->clear();
  for (const HostPort& host : hosts) {
    const auto addresses = Resolve(host, Sooner(stop, kAttemptNs));
    if (!addresses.ok()) {
      tried->emplace_back(addresses.status().message());
      continue;
    }
    for (const Address& address : *addresses) {
      auto connection = Dial(address, key, Sooner(stop, kAttemptNs));
      if (connection.ok()) {
        return std::make_pair(host, *std::move(connection));
      }
      tried->emplace_back(connection.status().message());
      // Somebody is there and will not have us: trying again cannot help.
      if (absl::IsFailedPrecondition(connection.status())) {
        worst = connection.status();
      }
    }
  }
  return worst;
}

absl::StatusOr<std::pair<HostPort, Connection>> DialUntil(const std::vector<HostPort>& hosts,
                                                          absl::string_view where,
                                                          absl::string_view key, const Stop& stop) {
  const std::string what = absl::StrCat("cannot reach store tcp://", where);
  std::vector<std::string> tried, last;
  for (int sleep_ms = kRetryFirstMs;; sleep_ms = std::min(2 * sleep_ms, kRetryMostMs)) {
    auto found = DialAny(hosts, key, stop, &tried);
    if (found.ok()) {
      return found;
    }
    if (absl::IsFailedPrecondition(found.status())) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": ", absl::StrJoin(tried, "; ")));
    }
    // The round that the deadline cut short says nothing about why; the one before it does.
    const absl::Status ended = CheckStop(stop, what);
    if (ended.ok() || last.empty()) {
      last = tried;
    }
    for (int slept = 0; ended.ok() && slept < sleep_ms && CheckStop(stop, what).ok();) {
      const int slice = std::max(1, std::min(StopSliceMs(stop), sleep_ms - slept));
      poll(nullptr, 0, slice);
      slept += slice;
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

// The address to listen on. A name that leads to no address of this host (its own name mapped to
// loopback, or the name of a proxy in front of it) can only be served from all of its addresses.
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

// How others reach a server that listens on every address.
std::string PublishedHost(const HostPort& where, const Address& bound) {
  const auto given = Address::FromHost(where.host, 0);
  if (!given.ok() || !given->IsAny()) {
    return where.host;
  }
  const auto outward = Address::FromHost("192.0.2.1", 0);  // set aside for documentation
  if (bound.family() == AF_INET && outward.ok()) {
    if (const auto route = RouteTo(*outward); route.ok()) {
      return route->host();
    }
  }
  return bound.family() == AF_INET ? "127.0.0.1" : "::1";
}

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> OpenTcpStore(absl::string_view where, absl::string_view key,
                                                    const Stop& stop) {
  std::vector<HostPort> hosts;
  for (const absl::string_view part : absl::StrSplit(where, ',')) {
    auto host = ParseHostPort(part);
    if (host.ok() && host->port == 0) {
      host = absl::InvalidArgumentError("port 0 cannot be connected to");
    }
    if (!host.ok()) {
      return BadUrl(where, host.status());
    }
    hosts.push_back(*std::move(host));
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto found, DialUntil(hosts, where, key, stop));
  return std::shared_ptr<Store>(
      std::make_shared<TcpStore>(std::move(found.first), std::move(found.second), key, nullptr));
}

absl::StatusOr<std::shared_ptr<Store>> ServeStore(absl::string_view url, absl::string_view key) {
  absl::string_view text = url;
  if (!absl::ConsumePrefix(&text, "tcp://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("store URL \"", url, "\": only tcp://HOST:PORT can be served"));
  }
  auto where = ParseHostPort(text);
  if (!where.ok()) {
    return BadUrl(text, where.status());
  }
  auto listener = OpenFor(*where);
  if (!listener.ok()) {
    return Annotate(listener.status(), absl::StrCat("cannot serve store ", url));
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto server, TcpStoreServer::Start(*std::move(listener), key));
  const Address bound = server->address();
  ENTRAIN_ASSIGN_OR_RETURN(const Address loopback, Address::FromHost("127.0.0.1", bound.port()));
  const bool v4_any = bound.IsAny() && bound.family() == AF_INET;
  ENTRAIN_ASSIGN_OR_RETURN(Connection own, Dial(v4_any ? loopback : bound, key,
                                                Stop{Deadline::After(kAttemptNs), nullptr}));
  const HostPort published{PublishedHost(*where, bound), bound.port()};
  return std::shared_ptr<Store>(
      std::make_shared<TcpStore>(published, std::move(own), key, std::move(server)));
}

}  // namespace entrain
