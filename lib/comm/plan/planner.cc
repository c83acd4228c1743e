#include "lib/comm/plan/planner.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr size_t kMaxPlans = 512;
constexpr size_t kMaxSchedules = 64;

// The assumed size of a call with uneven parts, if not all ranks know its size.
constexpr int64_t kUnknownBytes = 1 << 20;

// With more ranks than this, the planner does not consider algorithms in which every rank sends to
// every other rank. The estimate of such an algorithm would take longer than the call. The limit
// does not hold for calls whose contributions must be reduced in some order.
constexpr int kMaxDirectRanks = 64;
// With more ranks than kMaxDirectRanks, if the parts of an all_to_all are below this size, one
// message carries several parts.
constexpr int64_t kSmallPartBytes = 1 << 10;

absl::StatusOr<const Algorithm*> First(CallKind kind, Partners partners) {
  for (const Algorithm& algorithm : Catalog()) {
    if (algorithm.kind == kind && algorithm.partners == partners) {
      return &algorithm;
    }
  }
  return absl::UnimplementedError(absl::StrCat("no algorithm of such a kind for ", NameOf(kind)));
}

// Returns the logarithm to base 2, rounded down. Estimates are made for powers of two.
int LogBytes(int64_t bytes) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(bytes, 1)))) - 1;
}

std::string Described(const LinkFigures& figures) {
  return absl::StrCat(ToText(figures),
                      figures.from_traits ? " (no line: by the transport's traits)" : "");
}

}  // namespace

Planner::Planner(int rank, Topology topology, std::vector<Override> overrides,
                 std::shared_ptr<const Tuning> tuning, const Paths& paths, Determinism determinism)
    : rank_(rank),
      topology_(std::move(topology)),
      overrides_(std::move(overrides)),
      tuning_(std::move(tuning)),
      determinism_(determinism),
      crowd_(Crowd::Of(topology_.host_of)),
      model_(crowd_, paths, *tuning_) {
  SetPaths(paths);
}

void Planner::SetPaths(const Paths& paths) {
  paths_ = paths;
  schedules_.clear();
  model_ = CostModel(crowd_, paths, *tuning_);
  source_ = tuning_->source;
  measured_.clear();
  TunedFor here;
  for (const MeasuredChoice& one : tuning_->choices) {
    if (paths.sites.empty() && WhereOf(crowd_, paths, &here) && one.where == here) {
      measured_.push_back(one.choice);
    }
  }
  Forget();
}

void Planner::SetProbed(const CostModel& model) {
  model_ = model;
  source_ = absl::StrCat("probing, the rest from ", tuning_->source);
  measured_.clear();
  Forget();
}

void Planner::Forget() {
  plans_.clear();
  last_plan_ = nullptr;
  cheapest_.clear();
}

int64_t Planner::DataBytes(const Shape& shape) const {
  return shape.count * shape.element_bytes *
         (HasParts(shape.kind) ? static_cast<int64_t>(topology_.host_of.size()) : 1);
}

std::vector<const Algorithm*> Planner::Candidates(const Spec& spec, Order order) const {
  std::vector<const Algorithm*> candidates;
  for (const Algorithm& algorithm : Catalog()) {
    if (algorithm.kind == spec.kind && algorithm.fits(spec, groups()) && algorithm.order >= order &&
        (spec.size <= kMaxDirectRanks || order != Order::kAny ||
         algorithm.partners != Partners::kAll)) {
      candidates.push_back(&algorithm);
    }
  }
  return candidates;
}

// Returns the algorithm with the lowest estimate, for calls of about 2^log_bytes bytes. An estimate
// builds the schedules of all ranks, so the choice is made once for each power of two. For an
// all_to_all on more than kMaxDirectRanks ranks, the size of its parts decides instead.
absl::StatusOr<const Algorithm*> Planner::Cheapest(Spec spec, Order order, int log_bytes) {
  // The choice is kept for later calls, and ranks may make their calls in different orders. So the
  // choice must not depend on the root of the first call. It must not depend on in_place of the
  // first call either.
  spec.root = 0;
  spec.in_place = false;
  const auto [entry, added] =
      cheapest_.try_emplace({spec.kind, order, spec.uneven, log_bytes}, nullptr);
  if (!added && entry->second != nullptr) {
    return entry->second;
  }
  if (spec.kind == CallKind::kAllToAll && spec.size > kMaxDirectRanks) {
    const bool small = !spec.uneven && (int64_t{1} << log_bytes) / spec.size < kSmallPartBytes;
    ENTRAIN_ASSIGN_OR_RETURN(entry->second,
                             First(spec.kind, small ? Partners::kFew : Partners::kAllInTurn));
    return entry->second;
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Algorithm* algorithm : Candidates(spec, order)) {
    const int64_t time = model_.Picoseconds(*algorithm, spec, groups(), int64_t{1} << log_bytes);
    if (time < least) {
      entry->second = algorithm;
      least = time;
    }
  }
  if (entry->second == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("no algorithm serves ", NameOf(spec.kind), " on ", spec.size, " ranks"));
  }
  return entry->second;
}

const Algorithm* Planner::Named(const Override& named, int64_t bytes, Order order,
                                const Spec& spec) const {
  if (!named.Covers(spec.kind, bytes)) {
    return nullptr;
  }
  const auto algorithm = FindAlgorithm(named.kind, named.algorithm);
  return algorithm.ok() && (*algorithm)->fits(spec, groups()) && (*algorithm)->order >= order
             ? *algorithm
             : nullptr;
}

absl::StatusOr<const Algorithm*> Planner::Choose(const Shape& shape, const Spec& spec,
                                                 std::string* reason) {
  if (shape.kind == CallKind::kCreate) {
    return First(CallKind::kAllGather, Partners::kAll);
  }
  const int64_t bytes = spec.uneven ? kUnknownBytes : DataBytes(shape);
  for (const bool measured : {false, true}) {
    for (const Override& one : measured ? measured_ : overrides_) {
      if (const Algorithm* const algorithm = Named(one, bytes, shape.order, spec)) {
        if (reason != nullptr) {
          *reason =
              absl::StrCat(measured ? "as measured: " : "as overridden by ", ToText({&one, 1}));
        }
        return algorithm;
      }
    }
  }
  if (reason != nullptr) {
    *reason = "by the model";
  }
  return Cheapest(spec, shape.order, LogBytes(bytes));
}

absl::StatusOr<std::string> Planner::Explain(const Call& call) {
  const Shape shape = ShapeOf(call);
  const Spec spec = SpecOf(shape, nullptr);
  std::string reason;
  ENTRAIN_ASSIGN_OR_RETURN(const Algorithm* chosen, Choose(shape, spec, &reason));
  std::vector<std::pair<double, const char*>> estimates;
  for (const Algorithm* algorithm : Candidates(spec, shape.order)) {
    const int64_t time =
        model_.Picoseconds(*algorithm, spec, groups(), int64_t{1} << LogBytes(DataBytes(shape)));
    estimates.emplace_back(static_cast<double>(time) * 1e-6, algorithm->name);
  }
  std::sort(estimates.begin(), estimates.end());
  std::string text = absl::StrCat(chosen->name, ", ", reason, "; estimates in us:");
  for (const auto& [us, name] : estimates) {
    absl::StrAppendFormat(&text, " %s %.4g", name, us);
  }
  TunedFor where;
  absl::StrAppend(&text, "\nfor ",
                  WhereOf(crowd_, paths_, &where)
                      ? ToText(where)
                      : absl::StrCat(crowd_.ranks, " ranks on ", crowd_.hosts, " hosts"),
                  " on ", paths_.cores, " cores, from ", source_, ":");
  if (crowd_.most > 1) {
    absl::StrAppend(&text, " ", Described(model_.inside));
  }
  if (crowd_.hosts > 1) {
    absl::StrAppend(&text, crowd_.most > 1 ? "; " : " ", Described(model_.across));
  }
  if (!paths_.sites.empty()) {
    absl::StrAppend(&text, "; ", Crowd::Of(paths_.sites).hosts, " sites, ",
                    paths_.round_trip_ns / kMillisecond, " ms apart");
  }
  return text;
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
      {&algorithm, std::make_shared<const Schedule>(algorithm.build(spec, groups()))});
  return schedules_.back().schedule;
}

// Returns the longest message that a call can send inline over the slowest link that it uses. A
// longer message would begin inline only to go on in an executor.
int64_t Planner::MostInline(const Shape& shape) const {
  const bool inside = IsMessage(shape.kind) ? topology_.host_of[static_cast<size_t>(shape.root)] ==
                                                  topology_.host_of[static_cast<size_t>(rank_)]
                                            : topology_.hosts == 1;
  switch (inside ? paths_.inside : paths_.across) {
    case Link::kInproc:
    case Link::kShm:
      return kMaxInlineBytes;
    case Link::kTcpInside:
    case Link::kTcpAcross:
      return 32 << 10;  // TcpSender::TrySend does not send longer messages
    case Link::kFabricInside:
    case Link::kFabricAcross:
      return -1;  // the endpoints of ucx have no fast path
  }
  return -1;
}

// Returns a plan with one lane, one round and one transfer.
std::shared_ptr<const Plan> Planner::PointToPoint(const Shape& shape, Direction direction) const {
  auto schedule = std::make_shared<Schedule>();
  schedule->spec = {shape.kind, rank_, static_cast<int>(topology_.host_of.size()), 0, 1};
  const Slot slot = direction == Direction::kSend ? Slot::kIn : Slot::kOut;
  schedule->transfers.push_back({direction, shape.root, {slot, 0, 1}});
  schedule->rounds.push_back({0, 1, 0, 0});
  schedule->lanes.push_back({0, 1, 0, 0});
  Layout layout;
  layout.first = {0, shape.count};
  return std::make_shared<const Plan>(Plan::Make(std::move(schedule), "point_to_point", layout,
                                                 layout, shape.element_bytes, 1,
                                                 MostInline(shape)));
}

Spec Planner::SpecOf(const Shape& shape, const PartCounts* uneven) const {
  Spec spec{shape.kind == CallKind::kCreate ? CallKind::kAllGather : shape.kind, rank_,
            static_cast<int>(topology_.host_of.size()), shape.root, 1};
  spec.uneven = uneven != nullptr && (HasRoot(spec.kind) || spec.kind == CallKind::kAllToAll);
  spec.in_place = shape.in_place;
  return spec;
}

absl::StatusOr<std::shared_ptr<const Plan>> Planner::Make(const Shape& shape,
                                                          const PartCounts* uneven) {
  Spec spec = SpecOf(shape, uneven);
  ENTRAIN_ASSIGN_OR_RETURN(const Algorithm* algorithm, Choose(shape, spec, nullptr));
  // If spec.uneven is set, some ranks do not know the sizes of all parts. Then ranks cannot agree
  // on a number of lanes, so use one lane.
  const bool at_once = topology_.hosts == 1 && paths_.inside == Link::kShm;
  spec.lanes = spec.uneven ? 1 : LanesFor(*algorithm, spec.size, DataBytes(shape), at_once);
  const Layout in =
      uneven == nullptr ? UniformLayout(spec, shape.count) : UnevenLayout(spec, uneven->in);
  const Layout out = uneven == nullptr ? in : UnevenLayout(spec, uneven->out);
  auto schedule = ScheduleFor(*algorithm, spec);
  const int lanes = static_cast<int>(schedule->lanes.size());
  const int window = WindowOf(*schedule);
  Plan plan = Plan::Make(std::move(schedule), algorithm->name, in, out, shape.element_bytes, window,
                         MostInline(shape));
  if (paths_.round_trip_ns > 0) {
    plan.window = std::min(WindowBetweenSites(plan.slot_bytes), lanes);
  }
  return std::make_shared<const Plan>(std::move(plan));
}

Order Planner::OrderOf(const Call& call) const {
  if (!Reduces(call.kind)) {
    return Order::kAny;
  }
  const Reduction& reduction = call.reduction;
  // A partial sum of an average of integers would wrap around in the element type. So one operation
  // adds all contributions, in a wider type.
  if (reduction.merging != nullptr || (reduction.op == ReduceOp::kAvg && IsInteger(call.dtype))) {
    return Order::kAtOnce;
  }
  const Determinism asked =
      call.options.determinism == Determinism::kDefault ? determinism_ : call.options.determinism;
  const bool custom = reduction.op == ReduceOp::kCustom;
  if (asked == Determinism::kRankOrder && (custom || !IsInteger(call.dtype))) {
    return Order::kFixed;
  }
  return custom && !reduction.commutative ? Order::kByRank : Order::kAny;
}

Planner::Shape Planner::ShapeOf(const Call& call) const {
  const bool gathers = call.kind == CallKind::kSplit || call.kind == CallKind::kGrow;
  return {gathers ? CallKind::kAllGather : call.kind,
          SizeOf(call.dtype),
          call.count,
          IsMessage(call.kind) || HasRoot(call.kind) ? call.root : 0,
          OrderOf(call),
          call.kind == CallKind::kAllToAll && call.in.data == call.out.data};
}

absl::StatusOr<std::shared_ptr<const Plan>> Planner::PlanFor(const Call& call) {
  Shape shape = ShapeOf(call);
  if (call.uneven != nullptr) {
    // Shape::count is the count of one part, but call.count is the sum of all parts. If not all
    // ranks know the sum, Choose and Make do not use the count.
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
  if (IsMessage(call.kind)) {
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
