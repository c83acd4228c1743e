#include "lib/comm/planner.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "collectives/catalog.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

// A piece of this size is received, combined and passed on while it is still in the second-level
// cache.
constexpr int64_t kPieceBytes = 256 << 10;
constexpr int kMaxLanes = 128;
constexpr int kWindow = 4;
constexpr size_t kMaxPlans = 512;
constexpr size_t kMaxSchedules = 64;

// What calls of uneven parts count as, whose size no rank knows.
constexpr int64_t kUnknownBytes = 1 << 20;

// Guesses good enough to choose by; lib/comm/README.md says where they come from.
constexpr LinkModel kMemoryLink{
    .latency_s = 1.5e-6, .bytes_per_s = 9e9, .reduce_bytes_per_s = 10e9, .message_s = 0.3e-6};
constexpr LinkModel kNetworkLink{
    .latency_s = 15e-6, .bytes_per_s = 2.5e9, .reduce_bytes_per_s = 10e9, .message_s = 2e-6};
// Beyond this many ranks, everyone-to-everyone algorithms are out of the question, and estimating
// them would take longer than the calls they would serve.
constexpr int kMaxDirectRanks = 64;
// There, parts of an all_to_all below this size travel in company.
constexpr int64_t kSmallPartBytes = 1 << 10;

// A rank exchanges messages with all others, and nothing but its part is theirs.
bool TalksToEverybody(const Algorithm& algorithm) {
  const absl::string_view name(algorithm.name);
  return (name == "direct" || name == "two_step") &&
         (algorithm.kind == CallKind::kAllReduce || algorithm.kind == CallKind::kReduceScatter ||
          algorithm.kind == CallKind::kAllGather || algorithm.kind == CallKind::kBarrier);
}

// Its messages are whole lanes, not parts of them.
bool SendsWholeLanes(const Algorithm& algorithm) {
  const absl::string_view name(algorithm.name);
  return !HasParts(algorithm.kind) && (algorithm.kind != CallKind::kAllReduce &&
                                       name != "two_step" && name != "halving_doubling");
}

absl::StatusOr<Override> ParseOverride(absl::string_view text) {
  const std::vector<absl::string_view> at = absl::StrSplit(text, absl::MaxSplits('@', 1));
  const std::vector<absl::string_view> names = absl::StrSplit(at[0], absl::MaxSplits(':', 1));
  if (names.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithms: \"", text, "\" is not COLLECTIVE:ALGORITHM[@LOW-HIGH]"));
  }
  Override result{CallKind::kAllReduce, std::string(names[1]), 0,
                  std::numeric_limits<int64_t>::max()};
  const std::optional<CallKind> kind = CollectiveFromName(names[0]);
  if (!kind) {
    return absl::InvalidArgumentError(absl::StrCat("algorithms: no collective is called \"",
                                                   names[0], "\"; there are ", CollectiveNames()));
  }
  result.kind = *kind;
  ENTRAIN_RETURN_IF_ERROR(FindAlgorithm(result.kind, names[1]).status());
  if (at.size() == 2) {
    const std::vector<absl::string_view> range = absl::StrSplit(at[1], absl::MaxSplits('-', 1));
    if (range.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("algorithms: \"", at[1], "\" is not LOW-HIGH"));
    }
    ENTRAIN_ASSIGN_OR_RETURN(result.low, ParseSize(range[0]));
    if (range[1] != "inf") {
      ENTRAIN_ASSIGN_OR_RETURN(result.high, ParseSize(range[1]));
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<Override>> ParseOverrides(absl::string_view text) {
  std::vector<Override> overrides;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    ENTRAIN_ASSIGN_OR_RETURN(auto one, ParseOverride(absl::StripAsciiWhitespace(part)));
    overrides.push_back(std::move(one));
  }
  return overrides;
}

Planner::Planner(int rank, Topology topology, std::vector<Override> overrides, bool local)
    : rank_(rank),
      topology_(std::move(topology)),
      overrides_(std::move(overrides)),
      local_(local) {}

bool Planner::Keeps(const Algorithm& algorithm, Order order) {
  return order == Order::kAny ||
         (algorithm.in_rank_order && (order != Order::kAtOnce || algorithm.all_at_once));
}

int64_t Planner::DataBytes(const Shape& shape) const {
  return shape.count * shape.element_bytes *
         (HasParts(shape.kind) ? static_cast<int64_t>(topology_.host_of.size()) : 1);
}

int Planner::LanesFor(const Shape& shape, const Algorithm& algorithm) const {
  const auto size = static_cast<int64_t>(topology_.host_of.size());
  const int64_t pieces = SendsWholeLanes(algorithm) ? 1 : size;
  return static_cast<int>(
      std::clamp<int64_t>(DataBytes(shape) / (pieces * kPieceBytes), 1, kMaxLanes));
}

double Planner::Estimate(const Algorithm& algorithm, const Spec& spec, int64_t bytes) const {
  // Ranks differ (a root, a leaf), and every rank must come to the same figure: the worst of all.
  constexpr int64_t kElementBytes = 4;
  const int64_t parts = HasParts(spec.kind) ? spec.size : 1;
  const int64_t count = std::max<int64_t>(1, bytes / kElementBytes / parts);
  const Cost cost =
      CountWorstCost(algorithm, spec, topology_.host_of, UniformLayout(spec, count), kElementBytes);
  return local_ ? EstimateSeconds(cost, kMemoryLink)
                : EstimateSeconds(cost, topology_.hosts > 1 ? kMemoryLink : kNetworkLink,
                                  kNetworkLink);
}

// By cost, for calls of about 2^log_bytes bytes. Estimating builds schedules of all ranks, so it is
// done once for each power of two.
absl::StatusOr<const Algorithm*> Planner::Cheapest(const Spec& spec, Order order, int log_bytes) {
  const auto [entry, added] =
      cheapest_.try_emplace({spec.kind, order, spec.uneven, log_bytes}, nullptr);
  if (!added && entry->second != nullptr) {
    return entry->second;
  }
  if (spec.kind == CallKind::kAllToAll && spec.size > kMaxDirectRanks) {
    const bool small = !spec.uneven && (int64_t{1} << log_bytes) / spec.size < kSmallPartBytes;
    ENTRAIN_ASSIGN_OR_RETURN(entry->second, FindAlgorithm(spec.kind, small ? "bruck" : "pairwise"));
    return entry->second;
  }
  // Lanes overlap; what counts is the bytes and the rounds of one.
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const Algorithm& algorithm : Catalog()) {
    if (algorithm.kind != spec.kind || !algorithm.fits(spec, topology_.host_of) ||
        !Keeps(algorithm, order) ||
        (spec.size > kMaxDirectRanks && order == Order::kAny && TalksToEverybody(algorithm))) {
      continue;
    }
    const double seconds = Estimate(algorithm, spec, int64_t{1} << log_bytes);
    if (seconds < best_seconds) {
      entry->second = &algorithm;
      best_seconds = seconds;
    }
  }
  if (entry->second == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("no algorithm serves ", NameOf(spec.kind), " on ", spec.size, " ranks"));
  }
  return entry->second;
}

absl::StatusOr<const Algorithm*> Planner::Choose(const Shape& shape, const Spec& spec) {
  if (shape.kind == CallKind::kCreate) {
    return FindAlgorithm(CallKind::kAllGather, "direct");  // a message between every two ranks
  }
  const int64_t bytes = spec.uneven ? kUnknownBytes : DataBytes(shape);
  for (const Override& o : overrides_) {
    if (o.kind != shape.kind || bytes < o.low || bytes > o.high) {
      continue;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Algorithm* algorithm, FindAlgorithm(o.kind, o.algorithm));
    if (algorithm->fits(spec, topology_.host_of) && Keeps(*algorithm, shape.order)) {
      return algorithm;
    }
  }
  const auto log_bytes =
      static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(bytes, 1)))) - 1;
  return Cheapest(spec, shape.order, log_bytes);
}

std::shared_ptr<const Schedule> Planner::ScheduleFor(const Algorithm& algorithm, const Spec& spec) {
  for (const Built& built : schedules_) {
    if (built.algorithm == &algorithm && built.schedule->spec == spec) {
      return built.schedule;
    }
  }
  if (schedules_.size() >= kMaxSchedules) {
    schedules_.clear();
  }
  schedules_.push_back(
      {&algorithm, std::make_shared<const Schedule>(algorithm.build(spec, topology_.host_of))});
  return schedules_.back().schedule;
}

// One lane, one round, one transfer.
std::shared_ptr<const Plan> Planner::PointToPoint(const Shape& shape, Direction direction) const {
  auto schedule = std::make_shared<Schedule>();
  schedule->spec = {shape.kind, rank_, static_cast<int>(topology_.host_of.size()), 0, 1};
  const Slot slot = direction == Direction::kSend ? Slot::kIn : Slot::kOut;
  schedule->transfers.push_back({direction, shape.root, {slot, 0, 1}});
  schedule->rounds.push_back({0, 1, 0, 0});
  schedule->lanes.push_back({0, 1, 0, 0});
  Layout layout;
  layout.first = {0, shape.count};
  return std::make_shared<const Plan>(
      Plan::Make(std::move(schedule), "point_to_point", layout, layout, shape.element_bytes, 1));
}

absl::StatusOr<std::shared_ptr<const Plan>> Planner::Make(const Shape& shape,
                                                          const PartCounts* uneven) {
  Spec spec{shape.kind == CallKind::kCreate ? CallKind::kAllGather : shape.kind, rank_,
            static_cast<int>(topology_.host_of.size()), shape.root, 1};
  spec.uneven = uneven != nullptr && (HasRoot(spec.kind) || spec.kind == CallKind::kAllToAll);
  spec.in_place = shape.in_place;
  ENTRAIN_ASSIGN_OR_RETURN(const Algorithm* algorithm, Choose(shape, spec));
  // Ranks that do not know the whole could not agree on more lanes.
  spec.lanes = spec.uneven ? 1 : LanesFor(shape, *algorithm);
  const Layout in =
      uneven == nullptr ? UniformLayout(spec, shape.count) : UnevenLayout(spec, uneven->in);
  const Layout out = uneven == nullptr ? in : UnevenLayout(spec, uneven->out);
  return std::make_shared<const Plan>(Plan::Make(ScheduleFor(*algorithm, spec), algorithm->name, in,
                                                 out, shape.element_bytes, kWindow));
}

Planner::Order Planner::OrderOf(const Reduction& reduction) {
  if (reduction.op == ReduceOp::kWeightedMean) {
    return Order::kAtOnce;
  }
  return reduction.op == ReduceOp::kCustom && !reduction.commutative ? Order::kByRank : Order::kAny;
}

absl::StatusOr<std::shared_ptr<const Plan>> Planner::PlanFor(const Call& call) {
  const bool point = call.kind == CallKind::kSend || call.kind == CallKind::kRecv;
  Shape shape{call.kind == CallKind::kSplit ? CallKind::kAllGather : call.kind,
              SizeOf(call.dtype),
              call.count,
              point || HasRoot(call.kind) ? call.root : 0,
              OrderOf(call.reduction),
              call.kind == CallKind::kAllToAll && call.in.data == call.out.data};
  if (call.uneven != nullptr) {
    // All ranks know all parts, or this is not asked for: see DataBytes.
    shape.count /= static_cast<int64_t>(topology_.host_of.size());
    return Make(shape, call.uneven.get());
  }
  if (last_plan_ != nullptr && last_shape_ == shape) {
    return last_plan_;
  }
  std::shared_ptr<const Plan>& plan = last_plan_;
  last_shape_ = shape;
  plan = nullptr;
  const auto found = plans_.find(shape);
  if (found != plans_.end()) {
    return plan = found->second;
  }
  if (point) {
    plan = PointToPoint(shape, call.kind == CallKind::kSend ? Direction::kSend : Direction::kRecv);
  } else {
    ENTRAIN_ASSIGN_OR_RETURN(plan, Make(shape, nullptr));
  }
  if (plans_.size() >= kMaxPlans) {
    plans_.clear();
  }
  plans_[shape] = plan;
  return plan;
}

}  // namespace entrain
