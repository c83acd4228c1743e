// Address (socket.h): parsing, printing, and look-up of names.
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/library_thread.h"
#include "lib/base/status.h"
#include "lib/net/socket.h"

namespace entrain {
namespace {

sockaddr_in& V4(sockaddr_storage& s) {
  return reinterpret_cast<sockaddr_in&>(s);
}
const sockaddr_in& V4(const sockaddr_storage& s) {
  return reinterpret_cast<const sockaddr_in&>(s);
}
sockaddr_in6& V6(sockaddr_storage& s) {
  return reinterpret_cast<sockaddr_in6&>(s);
}
const sockaddr_in6& V6(const sockaddr_storage& s) {
  return reinterpret_cast<const sockaddr_in6&>(s);
}

// One look-up, shared by the thread that makes the look-up and the thread that waits for the
// result. The last of the two threads frees the LookUp.
struct LookUp {
  std::string host, service;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int error = 0;
  std::vector<Address> found;
};

void RunLookUp(const std::shared_ptr<LookUp>& job) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(job->host.c_str(), job->service.c_str(), &hints, &list);
  std::lock_guard<std::mutex> lock(job->mutex);
  job->error = error;
  for (addrinfo* at = list; at != nullptr; at = at->ai_next) {
    job->found.emplace_back(at->ai_addr, at->ai_addrlen);
  }
  if (list != nullptr) {
    freeaddrinfo(list);
  }
  job->done = true;
  job->changed.notify_all();
}

}  // namespace

Address::Address() {
  std::memset(&storage_, 0, sizeof(storage_));
  storage_.ss_family = AF_INET;
}

Address::Address(const sockaddr* raw, socklen_t bytes) : Address() {
  const bool known = (bytes >= sizeof(sockaddr_in) && raw->sa_family == AF_INET) ||
                     (bytes >= sizeof(sockaddr_in6) && raw->sa_family == AF_INET6);
  if (known) {
    std::memcpy(&storage_, raw,
                raw->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
}

absl::StatusOr<Address> Address::FromHost(absl::string_view numeric_host, uint16_t port) {
  const std::string host(numeric_host.substr(0, numeric_host.find('%')));
  Address address;
  if (inet_pton(AF_INET, std::string(numeric_host).c_str(), &V4(address.storage_).sin_addr) == 1) {
    return address.WithPort(port);
  }
  auto& v6 = V6(address.storage_);
  if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", numeric_host, "\" is not an IPv4 or IPv6 address"));
  }
  address.storage_.ss_family = AF_INET6;
  if (host.size() < numeric_host.size()) {
    const std::string scope(numeric_host.substr(host.size() + 1));
    uint32_t index = if_nametoindex(scope.c_str());
    if (index == 0 && !absl::SimpleAtoi(scope, &index)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", numeric_host, "\": no interface \"", scope, "\""));
    }
    v6.sin6_scope_id = index;
  }
  return address.WithPort(port);
}

absl::StatusOr<Address> Address::Parse(absl::string_view text) {
  ENTRAIN_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(text));
  return FromHost(where.host, where.port);
}

std::string Address::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &V4(storage_).sin_addr, text, sizeof(text));
    return text;
  }
  const auto& v6 = V6(storage_);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  if (v6.sin6_scope_id == 0) {
    return text;
  }
  char name[IF_NAMESIZE] = "";
  if (if_indextoname(v6.sin6_scope_id, name) == nullptr) {
    return absl::StrCat(text, "%", v6.sin6_scope_id);
  }
  return absl::StrCat(text, "%", name);
}

std::string Address::ToString() const {
  return HostPort{host(), port()}.ToString();
}

uint16_t Address::port() const {
  return ntohs(family() == AF_INET ? V4(storage_).sin_port : V6(storage_).sin6_port);
}

Address Address::WithPort(uint16_t port) const {
  Address copy = *this;
  (family() == AF_INET ? V4(copy.storage_).sin_port : V6(copy.storage_).sin6_port) = htons(port);
  return copy;
}

bool Address::IsLoopback() const {
  if (family() == AF_INET) {
    return ntohl(V4(storage_).sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&V6(storage_).sin6_addr);
}

bool Address::IsAny() const {
  if (family() == AF_INET) {
    return V4(storage_).sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(&V6(storage_).sin6_addr);
}

bool Address::IsLinkLocal() const {
  if (family() == AF_INET) {
    return ntohl(V4(storage_).sin_addr.s_addr) >> 16 == 0xa9fe;
  }
  return IN6_IS_ADDR_LINKLOCAL(&V6(storage_).sin6_addr);
}

absl::string_view Address::bytes() const {
  if (family() == AF_INET) {
    return {reinterpret_cast<const char*>(&V4(storage_).sin_addr), 4};
  }
  return {reinterpret_cast<const char*>(&V6(storage_).sin6_addr), 16};
}

socklen_t Address::raw_bytes() const {
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string HostPort::ToString() const {
  if (host.find(':') != std::string::npos) {
    return absl::StrCat("[", host, "]:", port);
  }
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", text, "\": ", why, " (expected HOST:PORT or [IPV6]:PORT)"));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) {
    return bad("no port");
  }
  absl::string_view host = text.substr(0, colon);
  const absl::string_view digits = text.substr(colon + 1);
  uint32_t port = 0;
  if (digits.empty() || digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &port) || port > 65535) {
    return bad("the port is not a number from 0 to 65535");
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return bad("an IPv6 address needs brackets");
  }
  if (host.empty()) {
    return bad("no host");
  }
  if (host.find_first_of("[] \t/,\0") != absl::string_view::npos || host.size() > 255) {
    return bad("not a host name");
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

absl::StatusOr<std::vector<Address>> Resolve(const HostPort& where, const Stop& stop) {
  if (auto numeric = Address::FromHost(where.host, where.port); numeric.ok()) {
    return std::vector<Address>{*numeric};
  }
  const auto job = std::make_shared<LookUp>();
  job->host = where.host;
  job->service = absl::StrCat(where.port);
  // getaddrinfo cannot be interrupted, so it runs on a detached thread.
  LibraryThread([job] { RunLookUp(job); }).detach();
  const std::string what = absl::StrCat("looking up host \"", where.host, "\"");
  std::unique_lock<std::mutex> lock(job->mutex);
  while (!job->done) {
    ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, what));
    job->changed.wait_for(lock, std::chrono::milliseconds(StopSliceMs(stop)));
  }
  if (job->error != 0 || job->found.empty()) {
    return absl::UnavailableError(
        absl::StrCat(what, ": ", job->error != 0 ? gai_strerror(job->error) : "it has no address"));
  }
  return job->found;
}

}  // namespace entrain
