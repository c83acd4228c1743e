#include "lib/comm/plan/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace entrain {
namespace {

// The size of a lane's messages. With short messages, received data is still in the cache when a
// rank reduces it, and a rank can forward data early. kExchangedPieceBytes is for calls in which
// all ranks send at the same time and no rank reduces or forwards data. In such calls longer
// messages are faster.
constexpr int64_t kPieceBytes = 256 << 10, kExchangedPieceBytes = 1 << 20;
// If one rank only receives and the other ranks only send, a message of at least this size is not
// divided among lanes. The transport itself transfers such a message in pieces, by the fastest
// method that it has.
constexpr int64_t kWholeBytes = 1 << 20;
// If receivers read messages from the sender's memory at once (lib/engine/inline_call.h), messages
// of at most these sizes are not divided among lanes. kScatteredBytes is for a scatter. kPairBytes
// is for a communicator of two ranks.
constexpr int64_t kScatteredBytes = 1 << 20, kPairBytes = 512 << 10;
constexpr int kMaxLanes = 128;
// The scratch memory of a call between sites.
constexpr int64_t kScratchBetweenSites = 128 << 20;
constexpr int64_t kElementBytes = 4;

// Returns the size of the shortest message between two ranks if the call has one lane. For an
// all_reduce of any algorithm, assumes that a message is the part of one rank. The sizes in the
// built-in tuning were measured under the same assumption.
int64_t MessageBytes(const Algorithm& algorithm, int ranks, int64_t bytes) {
  const bool parts = algorithm.message == Message::kPart || algorithm.kind == CallKind::kAllReduce;
  return bytes / (parts ? ranks : 1);
}

int Pieces(const Algorithm& algorithm, int ranks, int64_t bytes) {
  const bool exchanges =
      algorithm.kind == CallKind::kAllGather || algorithm.kind == CallKind::kAllToAll;
  const int64_t piece =
      exchanges && algorithm.partners == Partners::kAll ? kExchangedPieceBytes : kPieceBytes;
  return static_cast<int>(
      std::clamp<int64_t>(MessageBytes(algorithm, ranks, bytes) / piece, 1, kMaxLanes));
}

bool LeftWhole(const Algorithm& algorithm, int ranks, int64_t bytes, bool at_once) {
  const bool one_receives =
      algorithm.kind == CallKind::kGather || (algorithm.kind == CallKind::kBroadcast && ranks == 2);
  const int64_t message = MessageBytes(algorithm, ranks, bytes);
  return (one_receives && algorithm.partners == Partners::kRoot && message >= kWholeBytes) ||
         (at_once && algorithm.kind == CallKind::kScatter && message <= kScatteredBytes) ||
         (at_once && ranks == 2 && message <= kPairBytes);
}

int64_t Picos(double us) {
  return std::llround(us * 1e6);
}

// Returns the femtoseconds that a byte takes at this rate.
int64_t Femtos(double gbs) {
  return std::llround(1e6 / gbs);
}

LinkCost CostOf(const LinkFigures& figures) {
  return {.latency_ps = Picos(figures.latency_us),
          .message_ps = Picos(figures.message_us),
          .byte_fs = Femtos(figures.gbs),
          .wire_fs = Femtos(figures.host_gbs)};
}

// Returns the keys, numbered from 0 in the order of their first places.
std::vector<int> Numbered(absl::Span<const int64_t> keys) {
  std::vector<int64_t> seen;
  std::vector<int> numbers;
  for (const int64_t key : keys) {
    const auto found = std::find(seen.begin(), seen.end(), key);
    numbers.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) {
      seen.push_back(key);
    }
  }
  return numbers;
}

bool IsCrowded(const Crowd& crowd, const Paths& paths) {
  return paths.cores > 0 && crowd.most > paths.cores;
}

}  // namespace

int LanesFor(const Algorithm& algorithm, int ranks, int64_t bytes, bool at_once) {
  return LeftWhole(algorithm, ranks, bytes, at_once) ? 1 : Pieces(algorithm, ranks, bytes);
}

int WindowOf(const Schedule& schedule) {
  return schedule.scratch_like.empty() ? kWindowWithoutScratch : kWindow;
}

int WindowBetweenSites(int64_t lane_scratch) {
  return static_cast<int>(std::clamp<int64_t>(
      kScratchBetweenSites / std::max<int64_t>(lane_scratch, 1), kWindow, kMaxLanes));
}

void Paths::SetSites(absl::Span<const Near> near, int64_t longest_ns) {
  sites.clear();
  round_trip_ns = 0;
  if (longest_ns < kSiteRoundTrip) {
    return;
  }
  const auto count = static_cast<int64_t>(near.size());
  std::vector<int64_t> with(near.size());  // by rank: how many ranks name it as their first
  for (const Near& one : near) {
    if (one.first >= 0 && one.first < count) {
      ++with[static_cast<size_t>(one.first)];
    }
  }
  const bool agree = std::all_of(near.begin(), near.end(), [&](const Near& one) {
    return one.first >= 0 && one.first < count && one.count < count &&
           near[static_cast<size_t>(one.first)].first == one.first &&
           with[static_cast<size_t>(one.first)] == one.count;
  });
  std::vector<int64_t> keys;
  for (int64_t rank = 0; rank < count; ++rank) {
    keys.push_back(agree ? near[static_cast<size_t>(rank)].first : rank);
  }
  sites = Numbered(keys);
  const auto ms = static_cast<uint64_t>(longest_ns / kMillisecond);
  round_trip_ns = static_cast<int64_t>(std::bit_floor(ms)) * kMillisecond;
}

Paths Paths::Of(absl::Span<const int> ranks) const {
  Paths of = *this;
  if (sites.empty()) {
    return of;
  }
  std::vector<int64_t> keys;
  for (const int rank : ranks) {
    keys.push_back(sites[static_cast<size_t>(rank)]);
  }
  of.sites = Numbered(keys);
  if (std::count(of.sites.begin(), of.sites.end(), 0) == std::ssize(of.sites)) {
    of.sites.clear();
    of.round_trip_ns = 0;
  }
  return of;
}

Crowd Crowd::Of(absl::Span<const int> hosts) {
  Crowd crowd;
  crowd.ranks = static_cast<int>(hosts.size());
  std::vector<int> on_host;
  for (const int host : hosts) {
    on_host.resize(std::max(on_host.size(), static_cast<size_t>(host) + 1));
    crowd.most = std::max(crowd.most, ++on_host[static_cast<size_t>(host)]);
  }
  crowd.hosts = static_cast<int>(on_host.size());
  return crowd;
}

bool WhereOf(const Crowd& crowd, const Paths& paths, TunedFor* where) {
  *where = {crowd.hosts == 1 ? paths.inside : paths.across, crowd.ranks, IsCrowded(crowd, paths)};
  return crowd.hosts == 1 || crowd.hosts == crowd.ranks;
}

CostModel::CostModel(const Crowd& crowd, const Paths& paths, const LinkFigures& inside_figures,
                     const LinkFigures& across_figures)
    : inside(inside_figures), across(across_figures) {
  const LinkFigures& main = crowd.most > 1 ? inside : across;
  call_ps = Picos(main.call_us);
  machine.inside = CostOf(inside);
  machine.across = CostOf(across);
  if (!paths.sites.empty()) {
    // The model's hosts are sites here. The ranks of a site have links of their own to each other,
    // and share the long way.
    const LinkFigures& near = across;
    machine.inside = CostOf(near);
    machine.inside.byte_fs = Femtos(near.host_gbs);
    machine.inside.wire_fs = Femtos(near.host_gbs * Crowd::Of(paths.sites).most);
    across.latency_us =
        std::max(across.latency_us, static_cast<double>(paths.round_trip_ns) * 1e-3 / 2);
    machine.across = CostOf(across);
    // Training has many calls under way at once between sites (the layers of an exchange, the
    // buckets of a backward pass): their round trips overlap, and their bytes share the way.
    constexpr int64_t kCallsAtOnce = 4;
    machine.across.byte_fs = machine.across.wire_fs = kCallsAtOnce * Femtos(near.host_gbs);
  }
  machine.reduce_fs = Femtos(main.reduce_gbs);
  machine.switch_ps = Picos(main.switch_us);
  machine.cores = paths.cores;
}

CostModel::CostModel(const Crowd& crowd, const Paths& paths, const Tuning& tuning)
    : CostModel(crowd, paths,
                tuning.FiguresFor({paths.inside, crowd.most, IsCrowded(crowd, paths)},
                                  paths.inside_speed),
                tuning.FiguresFor({paths.across, crowd.most, IsCrowded(crowd, paths)},
                                  paths.across_speed)) {}

int64_t CostModel::Picoseconds(const Algorithm& algorithm, Spec spec, absl::Span<const int> hosts,
                               int64_t bytes) const {
  const int64_t lanes = spec.uneven ? 1 : Pieces(algorithm, spec.size, bytes);
  std::vector<Schedule> schedules;
  spec.lanes = 1;
  for (spec.rank = 0; spec.rank < spec.size; ++spec.rank) {
    schedules.push_back(algorithm.build(spec, hosts));
  }
  spec.rank = 0;
  const int64_t parts = HasParts(spec.kind) ? spec.size : 1;
  const Layout layout =
      UniformLayout(spec, std::max<int64_t>(1, bytes / lanes / kElementBytes / parts));
  const LaneCost lane = CountLane(schedules, hosts, layout, kElementBytes, machine);
  return call_ps + lane.first_ps + (lanes - 1) * lane.next_ps;
}

}  // namespace entrain
