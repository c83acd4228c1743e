#include "lib/comm/peers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace entrain {

Peers::Peers(absl::string_view name, absl::string_view world, int rank,
             const std::vector<Member>& members)
    : name_(name), world_(world), rank_(rank), members_(members) {
  for (const Member& member : members_) {
    endpoints_.push_back(member.endpoint);
    contexts_.push_back(member.context);
  }
}

int Peers::RankOf(const Endpoint* endpoint) const {
  const auto found = std::find(endpoints_.begin(), endpoints_.end(), endpoint);
  return found == endpoints_.end() ? -1 : static_cast<int>(found - endpoints_.begin());
}

int Peers::RankOf(const PeerId& id) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.id == id; });
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

std::vector<uint64_t> Peers::Received() const {
  std::vector<uint64_t> received;
  for (const Endpoint* endpoint : endpoints_) {
    received.push_back(endpoint == nullptr ? 0 : endpoint->received());
  }
  return received;
}

int64_t Peers::SlowestRoundTrip() const {
  int64_t slowest = 0;
  for (const Endpoint* endpoint : endpoints_) {
    slowest = endpoint == nullptr ? slowest : std::max(slowest, endpoint->round_trip_ns());
  }
  return slowest;
}

std::string Peers::NameOf(int rank) const {
  const Member& member = this->member(rank);
  const std::string in_world =
      world_ == name_ ? "" : absl::StrCat("rank ", member.world_rank, " of ", world_, ", ");
  return member.endpoint == nullptr
             ? absl::StrCat("rank ", rank)
             : absl::StrCat("rank ", rank, " (", in_world, member.endpoint->peer_address(), ")");
}

std::string Peers::Message(int to, ControlKind kind, absl::string_view body) const {
  return Writer().Put(context(to)).Put(kind).PutRaw(body.data(), body.size()).Take();
}

void Peers::Send(int to, ControlKind kind, absl::string_view body) const {
  endpoint(to)->SendControl(Message(to, kind, body));
}

void Peers::SendSoon(int to, ControlKind kind, absl::string_view body) const {
  const std::string message = Message(to, kind, body);
  if (!endpoint(to)->SendUrgent(message)) {
    endpoint(to)->SendControl(message);
  }
}

void Peers::SendTwice(int to, ControlKind kind, absl::string_view body) const {
  const std::string message = Message(to, kind, body);
  endpoint(to)->SendUrgent(message);
  endpoint(to)->SendControl(message);
}

}  // namespace entrain
