#include "lib/comm/comm_core.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/flight/flight_log.h"

namespace entrain {
namespace {

std::vector<std::string> HostIds(const std::vector<Member>& members) {
  std::vector<std::string> ids;
  for (const Member& member : members) {
    ids.push_back(member.host_id);
  }
  return ids;
}

std::vector<std::string> TransportNames(const Engine& engine) {
  std::vector<std::string> names;
  for (const auto& transport : engine.transports()) {
    names.emplace_back(transport->traits().name);
  }
  return names;
}

// Returns the sum of the members' CPU shares for each host, by host id.
std::map<absl::string_view, CpuCrowd> CrowdsOf(const std::vector<Member>& members) {
  std::map<absl::string_view, CpuCrowd> crowds;
  for (const Member& member : members) {
    crowds[member.host_id].Add(member.cpus);
  }
  return crowds;
}
bool Crowded(const CpuCrowd& host) {
  return host.size() > host.Cores();
}
// Returns the value for Paths::cores (cost_model.h).
int FewestCores(const std::map<absl::string_view, CpuCrowd>& crowds) {
  const bool crowded = std::any_of(crowds.begin(), crowds.end(),
                                   [](const auto& host) { return Crowded(host.second); });
  int fewest = std::numeric_limits<int>::max(), most_ranks = 0;
  for (const auto& [id, host] : crowds) {
    fewest = Crowded(host) == crowded ? std::min(fewest, host.Cores()) : fewest;
    most_ranks = std::max(most_ranks, host.size());
  }
  return crowded ? fewest : std::max(fewest, most_ranks);
}

}  // namespace

absl::StatusOr<std::string> Explain(CommCore& core, CallKind kind, int64_t count, DType dtype) {
  ENTRAIN_ASSIGN_OR_RETURN(std::string text, core.funnel().Explain(kind, count, dtype));
  std::set<std::string> paths;
  core.engine().seat().RunInDriver([&] {
    for (const Member& member : core.config().members) {
      paths.insert(member.endpoint == nullptr ? "" : member.endpoint->Explain());
    }
  });
  paths.erase("");
  for (const std::string& path : paths) {
    absl::StrAppend(&text, "\n", path);
  }
  return text;
}

// ---- Any thread

CommCore::CommCore(std::shared_ptr<Engine> engine, BufferPool& pool, CoreConfig config)
    : engine_holder_(std::move(engine)),
      engine_(*engine_holder_),
      pool_(pool),
      config_(std::move(config)),
      topology_(Topology::FromHostIds(HostIds(config_.members))),
      transport_names_(TransportNames(engine_)),
      peers_(config_.name, config_.world, config_.rank, config_.members),
      words_(config_.name, peers_, engine_.clock(), config_.generation),
      flight_(FlightLog::Get().calls(), engine_.clock().Now()),
      ending_(config_, words_),
      funnel_(*this, config_, topology_, peers_, ending_.end(), pool_),
      mismatches_(peers_.rank(), peers_.size()),
      inquiry_(peers_, funnel_, open_, words_, engine_.causes(), config_.silence_ns),
      respondent_(engine_.causes(), peers_, funnel_, open_, words_),
      agreements_(peers_, words_, config_.name, config_.generation),
      runner_(*this, engine_holder_,
              {config_, peers_, pool_, ending_.end(), funnel_, open_, words_, inquiry_, mismatches_,
               flight_},
              CallRunner::InlinePays(topology_, config_.paths)) {}

std::shared_ptr<CommCore> CommCore::Make(std::shared_ptr<Engine> engine, BufferPool& pool,
                                         CoreConfig config) {
  const auto crowds = CrowdsOf(config.members);
  // If this host has more ranks than cores, a waiting thread must yield its core at once.
  if (Crowded(crowds.at(config.members[static_cast<size_t>(config.rank)].host_id))) {
    engine->seat().SetCrowded(true);
  }
  config.paths.cores = FewestCores(crowds);
  auto core = std::make_shared<CommCore>(std::move(engine), pool, std::move(config));
  FlightLog::Get().Add(core);
  return core;
}

std::shared_ptr<CommCore> CommCore::MakeFrom(const CommCore& parent, std::string name,
                                             uint64_t generation,
                                             const std::vector<std::pair<int, Context>>& members) {
  const CoreConfig& from = parent.config_;
  CoreConfig config;
  config.name = std::move(name);
  config.overrides = from.overrides;
  config.tuning = from.tuning;
  config.timeout_ns = parent.funnel_.timeout_ns();
  config.world = from.world;
  config.determinism = from.determinism;
  config.generation = generation;
  config.probed = from.probed;
  config.silence_ns = parent.inquiry_.silence_ns();
  std::vector<int> ranks;
  for (const auto& [rank, context] : members) {
    if (rank == from.rank) {
      config.rank = static_cast<int>(config.members.size());
      config.context = context;
    }
    config.members.push_back(from.members[static_cast<size_t>(rank)]);
    config.members.back().context = context;
    config.members.back().parent_rank = rank;
    ranks.push_back(rank);
  }
  config.paths = parent.funnel_.paths().Of(ranks);
  return Make(parent.engine_holder_, parent.pool_, std::move(config));
}

absl::StatusOr<RefPtr<Work>> CommCore::Start(Call call, bool kick) {
  if (ending_.ended()) {
    return ending_.status();
  }
  const int64_t now = engine_.clock().Now();
  funnel_.SetDeadline(&call, now);
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work, IsPacked(call)
                                                  ? PackedCall::Start(packed_parts(), call, now)
                                                  : funnel_.Start(call, now));
  if (kick) {
    engine_.seat().Kick();
  }
  return work;
}

absl::Status CommCore::Run(const Call& call) {
  if (const std::optional<absl::Status> status = runner_.Run(call)) {
    return *status;
  }
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> work, Start(call, false));
  work->Wait(Deadline::Never(), call.options.background);
  return work->status();
}

void CommCore::SetPaths(const Paths& paths) {
  runner_.SetInlinePays(CallRunner::InlinePays(topology_, paths));
  funnel_.SetPaths(paths);
  runner_.ForgetPlans();
}

void CommCore::SetProbed(const CostModel& model) {
  funnel_.SetProbed(model);
  runner_.ForgetPlans();
}

CommStats CommCore::stats() const {
  // Includes calls that began inline and were finished by an executor.
  uint64_t inlined = 0;
  for (size_t end = 0; end < kInlineEnds.size(); ++end) {
    inlined += runner_.inlined(static_cast<InlineEnd>(end));
  }
  return {funnel_.calls() + inlined, runner_.bytes_sent(), runner_.bytes_received()};
}

FlightLook CommCore::flight_look() const {
  FlightLook look{true};
  for (const CallWork* work : open_.works()) {
    look.open.push_back(work->flight_open());
  }
  for (const Member& member : config_.members) {
    look.addresses.push_back(member.endpoint == nullptr ? "" : member.endpoint->peer_address());
  }
  return look;
}

absl::string_view CommCore::transport_to(int rank) const {
  return rank == this->rank() ? absl::string_view("self")
                              : transport_names_[peers_.member(rank).transport];
}

bool CommCore::Drain(Deadline give_up) {
  std::vector<RefPtr<Work>> works;
  engine_.seat().RunInDriver([&] {
    for (CallWork* work : open_.works()) {
      works.push_back(work->whole() ? work->whole() : RefPtr<Work>::Share(work));
    }
  });
  return std::all_of(works.begin(), works.end(), [&](auto& work) { return work->Wait(give_up); });
}

// ---- [driver] The engine's events

void CommCore::Open() {
  inquiry_.Opened(engine_.clock().Now());
  engine_.OpenContext(config_.context, shared_from_this());
  for (int r = 0; r < peers_.size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint != nullptr && !engine_.PathStatus(endpoint).ok()) {
      OnLost(*endpoint, engine_.PathStatus(endpoint));
      return;
    }
  }
}

std::vector<MemberReport> CommCore::Members() const {
  std::vector<MemberReport> reports;
  for (int r = 0; r < peers_.size(); ++r) {
    MemberReport report;
    report.id = peers_.member(r).id;
    report.parent_rank = peers_.member(r).parent_rank;
    const Endpoint* const endpoint = peers_.endpoint(r);
    report.why = endpoint == nullptr ? absl::OkStatus() : engine_.PathStatus(endpoint);
    report.state = inquiry_.left(r)  ? MemberReport::State::kLeft
                   : report.why.ok() ? MemberReport::State::kAlive
                                     : MemberReport::State::kLost;
    reports.push_back(std::move(report));
  }
  return reports;
}

void CommCore::NeedAttention() {
  if (!attending_) {
    attending_ = true;
    engine_.NeedAttention(this);
  }
}

void CommCore::Attend() {
  const std::shared_ptr<CommCore> keep = shared_from_this();
  attending_ = false;
  AttendVote();
  runner_.Attend();
  PerformInquiry();
}

std::string CommCore::UserOf(ConstBytes bytes) const {
  const CallWork* const user = open_.UserOf(bytes);
  return user == nullptr ? "" : absl::StrCat(user->Name(), " on ", config_.name);
}

void CommCore::OnEarly(Endpoint& from, const Envelope& envelope) {
  if (envelope.tag.lane() == Tag::kPointToPoint) {
    if (open_.in_line() > 0) {
      NeedAttention();
    }
  } else {
    runner_.Compare(from, {envelope.tag.user_tag(), envelope.tag.call()}, envelope.descriptor);
  }
}

std::optional<int64_t> CommCore::waits_since() const {
  const CallWork* const oldest = open_.Oldest();
  return oldest == nullptr ? std::nullopt : std::optional(oldest->started_ns());
}

}  // namespace entrain
