#include "lib/net/interfaces.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include <ifaddrs.h>
#include <net/if.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr uint16_t kDiscardPort = 9;  // only to ask for a route; nothing is sent there

struct Entry {
  enum Kind { kName, kPrefix, kNetwork, kFamily } kind = kName;
  bool exclude = false;
  std::string text;  // the name or prefix
  Address network;   // kNetwork
  int bits = 0;
  int family = 0;  // kFamily

  bool Matches(const Interface& candidate) const {
    switch (kind) {
      case kName:
        return candidate.name == text;
      case kPrefix:
        return absl::StartsWith(candidate.name, text);
      case kNetwork:
        return InNetwork(candidate.address);
      case kFamily:
        return candidate.address.family() == family;
    }
    return false;
  }

 private:
  bool InNetwork(const Address& address) const {
    if (address.family() != network.family()) {
      return false;
    }
    const absl::string_view a = address.bytes(), b = network.bytes();
    for (int bit = 0; bit < bits; ++bit) {
      const auto byte = static_cast<size_t>(bit / 8);
      if (((a[byte] ^ b[byte]) >> (7 - bit % 8)) & 1) {
        return false;
      }
    }
    return true;
  }
};

// Returns nullopt if the text does not look like a network, and an error if it is a malformed
// network.
absl::StatusOr<std::optional<Entry>> ParseNetwork(absl::string_view text) {
  const size_t slash = text.find('/');
  const auto host = Address::FromHost(text.substr(0, slash), 0);
  if (!host.ok()) {
    if (slash != absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a network"));
    }
    return std::optional<Entry>();
  }
  Entry entry;
  entry.kind = Entry::kNetwork;
  entry.network = *host;
  entry.bits = static_cast<int>(host->bytes().size()) * 8;
  if (slash != absl::string_view::npos) {
    int bits = -1;
    if (!absl::SimpleAtoi(text.substr(slash + 1), &bits) || bits < 0 || bits > entry.bits) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\": the prefix length is not 0 to ", entry.bits));
    }
    entry.bits = bits;
  }
  return std::optional<Entry>(entry);
}

absl::StatusOr<Entry> ParseEntry(absl::string_view text) {
  const bool exclude = absl::ConsumePrefix(&text, "^");
  if (text.empty()) {
    return absl::InvalidArgumentError("an entry is empty");
  }
  Entry entry;
  if (text == "ipv4" || text == "ipv6") {
    entry.kind = Entry::kFamily;
    entry.family = text == "ipv4" ? AF_INET : AF_INET6;
  } else if (absl::EndsWith(text, "*")) {
    entry.kind = Entry::kPrefix;
    entry.text = std::string(text.substr(0, text.size() - 1));
  } else {
    ENTRAIN_ASSIGN_OR_RETURN(const auto network, ParseNetwork(text));
    if (network.has_value()) {
      entry = *network;
    } else {
      entry.text = std::string(text);
    }
  }
  entry.exclude = exclude;
  return entry;
}

absl::StatusOr<std::vector<Entry>> ParseFilter(absl::string_view filter) {
  std::vector<Entry> entries;
  for (const absl::string_view part : absl::StrSplit(filter, ',')) {
    ENTRAIN_ASSIGN_OR_RETURN(Entry entry, ParseEntry(absl::StripAsciiWhitespace(part)));
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Returns the preference of an address, as three numbers; lower is better. The first is the index
// of the first matching entry. The second is 0 if the address is the source address of packets to
// the store, else 1. The third is the scope of the address. Returns nullopt if the filter excludes
// the address.
std::optional<std::array<int, 3>> Rank(const std::vector<Entry>& entries,
                                       const Interface& candidate, const Address* route) {
  bool any_family = false, family = false, any_place = false;
  int place = -1, at = 0;
  for (const Entry& entry : entries) {
    const bool matches = entry.Matches(candidate);
    ++at;
    if (entry.exclude) {
      if (matches) {
        return std::nullopt;
      }
    } else if (entry.kind == Entry::kFamily) {
      any_family = true;
      family |= matches;
    } else {
      any_place = true;
      place = matches && place < 0 ? at : place;
    }
  }
  if ((any_family && !family) || (any_place && place < 0)) {
    return std::nullopt;
  }
  const Address& address = candidate.address;
  const int off_route = route != nullptr && route->bytes() == address.bytes() ? 0 : 1;
  return std::array<int, 3>{place, off_route,
                            address.IsLoopback()    ? 2
                            : address.IsLinkLocal() ? 1
                                                    : 0};
}

std::string Describe(const std::vector<Interface>& interfaces) {
  return absl::StrJoin(interfaces, ", ", [](std::string* out, const Interface& one) {
    absl::StrAppend(out, one.name, " ", one.address.host());
  });
}

absl::StatusOr<Address> DefaultRouteAddress() {
  // A reserved documentation address is on no network, so the result is the default route.
  ENTRAIN_ASSIGN_OR_RETURN(const Address nowhere, Address::FromHost("192.0.2.1", kDiscardPort));
  return RouteTo(nowhere);
}

absl::StatusOr<Address> AddressToward(absl::string_view host, const Stop& stop) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto addresses,
                           Resolve(HostPort{std::string(host), kDiscardPort}, stop));
  if (IsOwnName(host, addresses)) {
    if (auto address = DefaultRouteAddress(); address.ok()) {
      return address;
    }
  }
  absl::Status why = absl::UnavailableError("no address");
  for (const Address& address : addresses) {
    auto route = RouteTo(address);
    if (route.ok()) {
      return route;
    }
    why = route.status();
  }
  return Annotate(why, absl::StrCat("no route to the store's host \"", host, "\""));
}

}  // namespace

absl::StatusOr<std::vector<Interface>> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return ErrnoStatus(errno, "cannot list the network interfaces");
  }
  std::vector<Interface> found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = at->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) {
      found.push_back({at->ifa_name, Address(at->ifa_addr, sizeof(sockaddr_storage))});
    }
  }
  freeifaddrs(list);
  return found;
}

absl::StatusOr<Address> ChooseAddress(absl::string_view filter,
                                      const std::vector<Interface>& interfaces,
                                      const Address* route) {
  if (filter.empty()) {
    return route != nullptr ? route->WithPort(0) : *Address::FromHost("127.0.0.1", 0);
  }
  const std::string what = absl::StrCat("interface filter \"", filter, "\"");
  const auto entries = ParseFilter(filter);
  if (!entries.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", entries.status().message(),
                                                   "; this host has ", Describe(interfaces)));
  }
  const Interface* best = nullptr;
  std::array<int, 3> best_rank{};
  for (const Interface& candidate : interfaces) {
    const auto rank = Rank(*entries, candidate, route);
    if (rank.has_value() && (best == nullptr || *rank < best_rank)) {
      best = &candidate;
      best_rank = *rank;
    }
  }
  if (best == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": no address passes it; this host has ", Describe(interfaces)));
  }
  return best->address.WithPort(0);
}

absl::StatusOr<Address> ChooseLocalAddress(absl::string_view filter, absl::string_view route_to,
                                           const Stop& stop) {
  std::optional<Address> route;
  if (!route_to.empty()) {
    auto toward = AddressToward(route_to, stop);
    // With a filter the route is only a preference.
    if (!toward.ok() && filter.empty()) {
      return toward.status();
    }
    if (toward.ok()) {
      route = *toward;
    }
  }
  ENTRAIN_ASSIGN_OR_RETURN(const auto interfaces, ListInterfaces());
  return ChooseAddress(filter, interfaces, route.has_value() ? &*route : nullptr);
}

absl::StatusOr<Address> RouteTo(const Address& to) {
  Fd fd(socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "cannot create a socket");
  }
  const Address target = to.port() == 0 ? to.WithPort(kDiscardPort) : to;
  if (connect(fd.get(), target.raw(), target.raw_bytes()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("no route to ", to.host()));
  }
  ENTRAIN_ASSIGN_OR_RETURN(const Address local, LocalAddress(fd.get()));
  return local.WithPort(0);
}

bool IsLocal(const Address& address) {
  const auto interfaces = ListInterfaces();
  return interfaces.ok() &&
         std::any_of(interfaces->begin(), interfaces->end(),
                     [&](const Interface& one) { return one.address.bytes() == address.bytes(); });
}

bool IsOwnName(absl::string_view host, const std::vector<Address>& addresses) {
  const bool is_number = Address::FromHost(host, 0).ok();
  if (is_number || host == "localhost" || absl::StartsWith(host, "localhost.") ||
      absl::EndsWith(host, ".localhost") || absl::StartsWith(host, "ip6-l")) {
    return false;
  }
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const Address& address) { return address.IsLoopback(); });
}

}  // namespace entrain
