#include "lib/comm/cost_model.h"

#include <algorithm>
#include <cmath>

namespace entrain {
namespace {

// Of a lane's messages: what is combined should stay in cache until then, and what is passed on be
// passed on soon. Where nothing is and all send at once, longer ones are quicker.
constexpr int64_t kPieceBytes = 256 << 10, kExchangedPieceBytes = 1 << 20;
// Where one rank receives and the others only send, messages from here on are left whole: the
// transport takes them in pieces, and finds out by which way they come the quickest.
constexpr int64_t kWholeBytes = 1 << 20;
// And where a message is read from its sender's memory at once (lib/engine/inline_call.h), so are those up
// to here of a scatter, and between two ranks.
constexpr int64_t kScatteredBytes = 1 << 20, kPairBytes = 512 << 10;
constexpr int kMaxLanes = 128;
// More are not run one by one on a timeline.
constexpr int kRehearsedLanes = 4 * kWindow;
constexpr int64_t kElementBytes = 4;

// The shortest message between two ranks, if the call is one lane. An all_reduce counts as if it sent parts, whatever its
// algorithm: the ranges of the tuning were measured with its lanes cut so.
int64_t MessageBytes(const Algorithm& algorithm, int ranks, int64_t bytes) {
  const bool parts =
      algorithm.message == Message::kPart || algorithm.kind == CallKind::kAllReduce;
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

// A byte's femtoseconds at a rate.
int64_t Femtos(double gbs) {
  return std::llround(1e6 / gbs);
}

LinkModel ModelOf(const LinkFigures& figures) {
  return {.latency_ps = Picos(figures.latency_us),
          .message_ps = Picos(figures.message_us),
          .send_fs = Femtos(figures.send_gbs),
          .receive_fs = Femtos(figures.receive_gbs),
          .wire_fs = Femtos(figures.host_gbs),
          .eager_bytes = std::llround(figures.eager_kb * 1024),
          .large_ps = Picos(figures.large_us)};
}

void Slow(double times, LinkModel* link) {
  for (int64_t* fs : {&link->send_fs, &link->receive_fs, &link->wire_fs}) {
    *fs = std::llround(static_cast<double>(*fs) * times);
  }
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
  machine.inside = ModelOf(inside);
  machine.across = ModelOf(across);
  machine.reduce_fs = Femtos(main.reduce_gbs);
  machine.switch_ps = Picos(main.switch_us);
  machine.cores = paths.cores;
  far = machine;
  Slow(inside.far_times, &far.inside);
  Slow(across.far_times, &far.across);
  far.reduce_fs = std::llround(static_cast<double>(far.reduce_fs) * main.far_times);
  far_bytes = std::llround(main.cache_mb * (1 << 20)) / (2 * std::max(1, crowd.most));
}

CostModel::CostModel(const Crowd& crowd, const Paths& paths, const Tuning& tuning)
    : CostModel(crowd, paths,
                tuning.FiguresFor({paths.inside, crowd.most, IsCrowded(crowd, paths)},
                                  paths.inside_speed),
                tuning.FiguresFor({paths.across, crowd.most, IsCrowded(crowd, paths)},
                                  paths.across_speed)) {}

Rehearsal::Rehearsal(const Algorithm& algorithm, const Spec& spec, absl::Span<const int> hosts,
                     int64_t bytes)
    : hosts_(hosts.begin(), hosts.end()),
      bytes_(bytes),
      lanes_(spec.uneven ? 1 : Pieces(algorithm, spec.size, bytes)) {
  const int lanes = std::min(lanes_, kRehearsedLanes);
  cut_ = Make(algorithm, spec, lanes, bytes * lanes / lanes_);
  if (lanes < lanes_) {
    half_ = Make(algorithm, spec, lanes / 2, bytes * (lanes / 2) / lanes_);
  }
}

Rehearsal::Rehearsal(std::vector<Schedule> schedules, absl::Span<const int> hosts, Layout layout,
                     int64_t bytes)
    : hosts_(hosts.begin(), hosts.end()),
      bytes_(bytes),
      lanes_(static_cast<int>(schedules[0].lanes.size())),
      cut_{std::move(schedules), std::move(layout)} {}

Rehearsal::Cut Rehearsal::Make(const Algorithm& algorithm, Spec spec, int lanes,
                               int64_t bytes) const {
  Cut cut;
  spec.lanes = lanes;
  for (spec.rank = 0; spec.rank < spec.size; ++spec.rank) {
    cut.schedules.push_back(algorithm.build(spec, hosts_));
  }
  spec.rank = 0;
  const int64_t parts = HasParts(spec.kind) ? spec.size : 1;
  cut.layout = UniformLayout(spec, std::max<int64_t>(1, bytes / kElementBytes / parts));
  return cut;
}

int64_t Rehearsal::Time(const Cut& cut, const MachineModel& machine) const {
  return RunTimeline(cut.schedules, hosts_, cut.layout, kElementBytes, kWindow, machine);
}

int64_t Rehearsal::Picoseconds(const CostModel& model) const {
  const MachineModel& machine = bytes_ > model.far_bytes ? model.far : model.machine;
  int64_t time = Time(cut_, machine);
  if (!half_.schedules.empty()) {
    const auto lanes = static_cast<int64_t>(cut_.schedules[0].lanes.size());
    const auto half = static_cast<int64_t>(half_.schedules[0].lanes.size());
    time += (time - Time(half_, machine)) * (lanes_ - lanes) / (lanes - half);
  }
  return model.call_ps + time;
}

}  // namespace entrain
