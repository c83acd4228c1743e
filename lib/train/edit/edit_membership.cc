#include "lib/train/edit/edit_membership.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/edit/newcomer.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {
namespace {

ClosingRule RuleOf(const EditOptions& options) {
  return {
      .quorum = options.quorum,
      .deadline_ns = static_cast<int64_t>(options.round_deadline * static_cast<double>(kSecond)),
      .fragments = options.decoupled() ? options.fragments : 0};
}

}  // namespace

absl::Status EditMembership::Start() {
  ENTRAIN_RETURN_IF_ERROR(StartCloser());
  ENTRAIN_RETURN_IF_ERROR(StartRecovery());
  StartAdmission();
  return absl::OkStatus();
}

// Sets the time for which a rank may be silent on communicators of the exchange; null ones are
// skipped. With on_loss fail the communicators keep their own settings.
void EditMembership::LimitSilence(
    const std::vector<std::shared_ptr<Communicator>>& communicators) const {
  const EditOptions& options = parts_.options;
  for (const auto& comm : communicators) {
    if (comm != nullptr && options.on_loss == OnLoss::kFinish) {
      comm->SetSilence(SilenceOf(options.silence, options.admit, comm->silence_ns()));
    }
  }
}

// Collective. Makes the communicator of the ranks of all replicas. If replicas have one rank and
// `apart` is false, this is the exchange's sync group itself. Errors name `option`.
absl::StatusOr<std::unique_ptr<ReplicaWorld>> EditMembership::MakeWorld(absl::string_view option,
                                                                        bool apart) const {
  const ExchangeGroups groups = parts_.exchange.members().groups();
  const ReplicaPlace mine = {.replica = groups.sync->rank(),
                             .slot = groups.model == nullptr ? 0 : groups.model->rank()};
  std::shared_ptr<Communicator> world = groups.sync;
  if (groups.model != nullptr) {
    const std::shared_ptr<Communicator> whole = parts_.mesh.whole();
    if (whole == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          option,
          " needs the communicator of all ranks, with replicas of several ranks; use mesh_create, "
          "and destroy its communicator after edit_create"));
    }
    ENTRAIN_ASSIGN_OR_RETURN(world, whole->Split(0, whole->rank()));
  } else if (apart) {
    ENTRAIN_ASSIGN_OR_RETURN(world, world->Split(0, world->rank()));
  }
  LimitSilence({world, groups.sync, groups.model});
  const int slots = groups.model == nullptr ? 1 : groups.model->size();
  return ReplicaWorld::Make(std::move(world), mine, slots, parts_.options.timeout_ns);
}

// Collective. If on_loss is finish and there are other replicas, makes the object that handles
// losses.
absl::Status EditMembership::StartRecovery() {
  const ExchangeGroups groups = parts_.exchange.members().groups();
  if (parts_.options.admit != Admit::kNone && groups.sync == nullptr) {
    return RefuseOption("admit", static_cast<int32_t>(parts_.options.admit),
                        "(exchange) needs a mesh of at least 2 replicas to begin with");
  }
  if (parts_.options.on_loss == OnLoss::kFail || groups.sync == nullptr) {
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(
      auto replicas,
      MakeWorld(
          absl::StrCat("on_loss: ", static_cast<int32_t>(parts_.options.on_loss), " (finish)"),
          /*apart=*/false));
  const int most = std::max(parts_.options.most_replicas, groups.sync->size());
  if (parts_.options.most_replicas > 0 && most > parts_.options.most_replicas) {
    return RefuseOption(
        "most_replicas", parts_.options.most_replicas,
        absl::StrCat("is less than the ", groups.sync->size(), " replicas of the mesh"));
  }
  parts_.exchange.members().SetNumbers(groups.sync->rank(), most);
  parts_.results.SetMost(most);
  recovery_ = std::make_unique<Recovery>(parts_.exchange, parts_.results, std::move(replicas),
                                         closer_.get(), parts_.options.timeout_ns);
  return absl::OkStatus();
}

// Collective. If quorum or round_deadline is set and there are other replicas, makes the object
// that closes rounds without late replicas.
absl::Status EditMembership::StartCloser() {
  const ExchangeGroups groups = parts_.exchange.members().groups();
  const int replicas_now = groups.sync == nullptr ? 1 : groups.sync->size();
  if (parts_.options.quorum > std::max(replicas_now, parts_.options.most_replicas)) {
    return RefuseOption("quorum", parts_.options.quorum,
                        absl::StrCat("is more than the ", replicas_now, " replicas"));
  }
  if (!parts_.options.closes_early() || groups.sync == nullptr) {
    return absl::OkStatus();
  }
  const int64_t limit_ns =
      parts_.options.timeout_ns > 0 ? parts_.options.timeout_ns : groups.sync->timeout_ns();
  if (RuleOf(parts_.options).deadline_ns >= limit_ns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "round_deadline: ", parts_.options.round_deadline,
        " s is not before timeout_ns: ", limit_ns, " ns, at which an arrival gives up"));
  }
  if (parts_.options.decoupled() && (groups.copies > 1 || groups.tensor > 1)) {
    return RefuseOption("overlap_steps", parts_.options.overlap_steps,
                        "with quorum or round_deadline does not go with context and tensor axes: "
                        "copies of a layer could take over different rounds");
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto replicas, MakeWorld("quorum and round_deadline", /*apart=*/true));
  return MakeCloser(std::move(replicas), groups.model.get());
}

// Collective over `replica`, the ranks of this replica; null: it has one rank.
absl::Status EditMembership::MakeCloser(std::unique_ptr<ReplicaWorld> world,
                                        Communicator* replica) {
  closer_ = std::make_unique<RoundCloser>(std::move(world), RuleOf(parts_.options),
                                          parts_.options.timeout_ns);
  if (parts_.options.decoupled()) {
    std::shared_ptr<Communicator> own;
    if (replica != nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(own, replica->Split(0, replica->rank()));
    }
    background_ = std::make_unique<BackgroundRounds>(
        parts_.options, parts_.schedule, parts_.exchange.snapshots(), *closer_, std::move(own));
  }
  return absl::OkStatus();
}

// If the options ask for it, makes the object that admits newcomers.
void EditMembership::StartAdmission() {
  if (recovery_ != nullptr && parts_.options.admit == Admit::kExchange) {
    admission_ = std::make_unique<Admission>(
        Admission::Parts{parts_.options, parts_.shards.slab(), parts_.shards.live(),
                         parts_.exchange, parts_.results, recovery_->world(), closer_.get()},
        Alike());
    admission_->NoteStep(parts_.counter.step());
  }
}

// Returns the values that must be equal on newcomers and members. The first group determines the
// length of the other groups (NamedGroups).
NamedGroups EditMembership::Alike() const {
  const Slab& slab = parts_.shards.slab();
  std::vector<NamedValue> numbers = SharedOptions(parts_.options);
  numbers.push_back({"bound parameters' type", static_cast<double>(parts_.shards.live().dtype)});
  numbers.push_back({"layers", static_cast<double>(slab.layers())});
  std::vector<NamedValue> of_layers;
  for (int l = 0; l < slab.layers(); ++l) {
    of_layers.push_back(
        {absl::StrCat("elements of layer ", l), static_cast<double>(slab.layer(l).full)});
    of_layers.push_back({absl::StrCat("layer ", l, " trains"), slab.layer(l).trains() ? 1.0 : 0.0});
  }
  NamedGroups alike = {std::move(numbers), std::move(of_layers), parts_.schedule.Named()};
  if (!parts_.options.identity.empty()) {
    alike.push_back(parts_.options.identity);
  }
  return alike;
}

absl::Status EditMembership::Join(int64_t wait_ns) {
  Newcomer newcomer({parts_.options, parts_.shards.slab(), parts_.shards.live(), parts_.exchange,
                     *parts_.mesh.comm(Axis::kModel)},
                    Alike());
  ENTRAIN_ASSIGN_OR_RETURN(const Newcomer::Joined joined, newcomer.Join(wait_ns));
  const AdmissionCard& member = joined.member();
  const EnlargedWorld& enlarged = joined.enlarged;
  parts_.counter.Join(StepOfNewcomer(member.met_step, joined.step), member.met_step,
                      member.rendezvous);
  parts_.exchange.rendezvous().SetRepairs(member.repairs);
  parts_.exchange.verdicts().BeginGrowing();
  parts_.results.SetRepairs(member.repairs);
  parts_.results.SetSyncs(member.syncs);
  parts_.results.GoOn(member.met_step, parts_.exchange.anchors().checksum(), member.rendezvous);
  parts_.results.Joined(static_cast<int>(ReplicasOf(enlarged.places).size()),
                        static_cast<int>(member.most_replicas));
  parts_.trigger.Met();
  LimitSilence({enlarged.world, enlarged.rounds});
  if (enlarged.rounds != nullptr) {
    std::map<int, Attended> members;
    for (const AdmissionCard& card : enlarged.cards) {
      if (card.replica >= 0) {
        members[static_cast<int>(card.replica)] = {.arrivals = card.arrivals,
                                                   .missed = card.missed};
      }
    }
    Communicator& replica = *parts_.mesh.comm(Axis::kModel);
    ENTRAIN_RETURN_IF_ERROR(MakeCloser(ReplicaWorld::Of(enlarged.rounds, replica.size(),
                                                        parts_.options.timeout_ns, enlarged.places),
                                       replica.size() > 1 ? &replica : nullptr));
    closer_->Join(member.ticks, members);
    closer_->SetReady();
  }
  recovery_ = std::make_unique<Recovery>(
      parts_.exchange, parts_.results,
      ReplicaWorld::Of(enlarged.world, parts_.mesh.comm(Axis::kModel)->size(),
                       parts_.options.timeout_ns, enlarged.places),
      closer_.get(), parts_.options.timeout_ns);
  StartAdmission();
  return absl::OkStatus();
}

// Returns the step at which a newcomer begins. This is the members' step, but at most the step of
// the next rendezvous, so that the newcomer reaches the next rendezvous together with the members.
// `met` is the step of the last rendezvous, and `members` is the members' step.
int64_t EditMembership::StepOfNewcomer(int64_t met, int64_t members) const {
  int64_t step = met;
  while (step < members) {
    ++step;
    if (!parts_.options.use_async &&
        !parts_.schedule.Due(step - parts_.options.local_sgd_warmup_steps).empty()) {
      break;
    }
  }
  return step;
}

}  // namespace entrain
