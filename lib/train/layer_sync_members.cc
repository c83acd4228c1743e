// EDiT's membership: the objects that handle losses and take newcomers in, and the functions by
// which this replica joins others.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/layer_sync.h"
#include "lib/train/newcomer.h"
#include "lib/train/timed_call.h"

namespace entrain {
namespace {

ClosingRule RuleOf(const EditOptions& options) {
  return {
      .quorum = options.quorum,
      .deadline_ns = static_cast<int64_t>(options.round_deadline * static_cast<double>(kSecond))};
}

}  // namespace

// Collective. Makes the communicator of the ranks of all replicas. Errors name `option`. If
// replicas have one rank and `apart` is false, the communicator may be the exchange's sync group.
absl::StatusOr<std::unique_ptr<ReplicaWorld>> LayerSync::MakeWorld(absl::string_view option,
                                                                   bool apart) {
  const ExchangeGroups groups = exchange_.members().groups();
  if (room_ != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " does not go with parameters on a device"));
  }
  const ReplicaPlace mine = {.replica = groups.sync->rank(),
                             .slot = groups.model == nullptr ? 0 : groups.model->rank()};
  std::shared_ptr<Communicator> world = groups.sync;
  if (groups.model != nullptr) {
    const std::shared_ptr<Communicator> whole = mesh_->whole();
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
  const int slots = groups.model == nullptr ? 1 : groups.model->size();
  return ReplicaWorld::Make(std::move(world), mine, slots, options_.timeout_ns);
}

// Collective. Makes the object that handles losses, if the options ask for it and there are other
// replicas.
absl::Status LayerSync::StartRecovery() {
  const ExchangeGroups groups = exchange_.members().groups();
  if (options_.admit != Admit::kNone && groups.sync == nullptr) {
    return RefuseOption("admit", static_cast<int32_t>(options_.admit),
                        "(exchange) needs a mesh of at least 2 replicas to begin with");
  }
  if (options_.on_loss == OnLoss::kFail || groups.sync == nullptr) {
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(
      auto replicas,
      MakeWorld(absl::StrCat("on_loss: ", static_cast<int32_t>(options_.on_loss), " (finish)"),
                /*apart=*/false));
  const int most = std::max(options_.most_replicas, groups.sync->size());
  if (options_.most_replicas > 0 && most > options_.most_replicas) {
    return RefuseOption(
        "most_replicas", options_.most_replicas,
        absl::StrCat("is less than the ", groups.sync->size(), " replicas of the mesh"));
  }
  exchange_.members().SetNumbers(groups.sync->rank(), most);
  results_.SetMost(most);
  recovery_ = std::make_unique<Recovery>(exchange_, results_, std::move(replicas), closer_.get(),
                                         options_.timeout_ns);
  return absl::OkStatus();
}

// Collective. Makes the object that closes rounds without late replicas, if the options ask for it.
absl::Status LayerSync::StartCloser() {
  const ExchangeGroups groups = exchange_.members().groups();
  const int replicas_now = groups.sync == nullptr ? 1 : groups.sync->size();
  if (options_.quorum > std::max(replicas_now, options_.most_replicas)) {
    return RefuseOption("quorum", options_.quorum,
                        absl::StrCat("is more than the ", replicas_now, " replicas"));
  }
  if (!options_.closes_early() || groups.sync == nullptr) {
    return absl::OkStatus();
  }
  const int64_t limit_ns =
      options_.timeout_ns > 0 ? options_.timeout_ns : groups.sync->timeout_ns();
  if (RuleOf(options_).deadline_ns >= limit_ns) {
    return absl::InvalidArgumentError(absl::StrCat("round_deadline: ", options_.round_deadline,
                                                   " s is not before timeout_ns: ", limit_ns,
                                                   " ns, at which an arrival gives up"));
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto replicas, MakeWorld("quorum and round_deadline", /*apart=*/true));
  closer_ =
      std::make_unique<RoundCloser>(std::move(replicas), RuleOf(options_), options_.timeout_ns);
  return absl::OkStatus();
}

// Makes the object that takes newcomers in, if the options ask for it.
void LayerSync::StartAdmission() {
  if (recovery_ != nullptr && options_.admit == Admit::kExchange) {
    admission_ = std::make_unique<Admission>(
        Admission::Parts{options_, shards_->slab(), shards_->live(), exchange_, results_,
                         recovery_->world(), closer_.get()},
        Alike());
    admission_->NoteStep(counter_.step());
  }
}

// Returns the values that newcomers and members compare, in groups. If the first groups are equal
// on all ranks, the next group has the same length on all ranks.
NamedGroups LayerSync::Alike() const {
  const Slab& slab = shards_->slab();
  std::vector<NamedValue> numbers = SharedOptions(options_);
  numbers.push_back({"bound parameters' type", static_cast<double>(shards_->live().dtype)});
  numbers.push_back({"layers", static_cast<double>(slab.layers())});
  std::vector<NamedValue> of_layers;
  for (int l = 0; l < slab.layers(); ++l) {
    of_layers.push_back(
        {absl::StrCat("elements of layer ", l), static_cast<double>(slab.layer(l).full)});
    of_layers.push_back({absl::StrCat("layer ", l, " trains"), slab.layer(l).trains() ? 1.0 : 0.0});
  }
  return {std::move(numbers), std::move(of_layers), schedule_->Named()};
}

absl::StatusOr<std::shared_ptr<LayerSync>> LayerSync::Join(std::shared_ptr<Mesh> mesh,
                                                           std::shared_ptr<LayerShards> shards,
                                                           const EditOptions& options,
                                                           int64_t wait_ns) {
  absl::Status status;
  if (wait_ns < 0) {
    status = RefuseOption("wait_ns", wait_ns, "is negative");
  } else if (options.admit == Admit::kNone) {
    status = RefuseOption("admit", 0, "(none) takes nobody in; set exchange, as the members do");
  } else if (mesh->length(Axis::kSync) > 1) {
    status = RefuseOption("mesh", mesh->length(Axis::kSync),
                          "replicas; a mesh that joins has the ranks of one replica");
  }
  ENTRAIN_RETURN_IF_ERROR(Annotate(status, "edit"));
  return Make(std::move(mesh), std::move(shards), options, wait_ns);
}

// Joins the members, and continues at their last rendezvous.
absl::Status LayerSync::JoinMembers(int64_t wait_ns) {
  if (room_ != nullptr) {
    return RefuseOption("on_loss", static_cast<int32_t>(options_.on_loss),
                        "(finish) does not go with parameters on a device");
  }
  Newcomer newcomer(
      {options_, shards_->slab(), shards_->live(), exchange_, *mesh_->comm(Axis::kModel)}, Alike());
  ENTRAIN_ASSIGN_OR_RETURN(const Newcomer::Joined joined, newcomer.Join(wait_ns));
  const AdmissionCard& member = joined.member();
  const EnlargedWorld& enlarged = joined.enlarged;
  counter_.Join(StepOfNewcomer(member.met_step, joined.step), member.met_step, member.rendezvous);
  exchange_.rendezvous().SetRepairs(member.repairs);
  exchange_.verdicts().BeginGrowing();
  results_.SetRepairs(member.repairs);
  results_.SetSyncs(member.syncs);
  results_.GoOn(member.met_step, exchange_.anchors().checksum(), member.rendezvous);
  results_.Joined(static_cast<int>(ReplicasOf(enlarged.places).size()),
                  static_cast<int>(member.most_replicas));
  trigger_->Met();
  if (enlarged.rounds != nullptr) {
    std::map<int, Attended> members;
    for (const AdmissionCard& card : enlarged.cards) {
      if (card.replica >= 0) {
        members[static_cast<int>(card.replica)] = {.arrivals = card.arrivals,
                                                   .missed = card.missed};
      }
    }
    closer_ = std::make_unique<RoundCloser>(
        ReplicaWorld::Of(enlarged.rounds, mesh_->comm(Axis::kModel)->size(), options_.timeout_ns,
                         enlarged.places),
        RuleOf(options_), options_.timeout_ns);
    closer_->Join(member.ticks, members);
    closer_->SetReady();
  }
  recovery_ =
      std::make_unique<Recovery>(exchange_, results_,
                                 ReplicaWorld::Of(enlarged.world, mesh_->comm(Axis::kModel)->size(),
                                                  options_.timeout_ns, enlarged.places),
                                 closer_.get(), options_.timeout_ns);
  return absl::OkStatus();
}

// Returns the step at which a newcomer begins: the members' step, but at most the step of the next
// rendezvous. So the newcomer comes to the next rendezvous when the members do. `met` is the step
// of the last rendezvous.
int64_t LayerSync::StepOfNewcomer(int64_t met, int64_t members) const {
  int64_t step = met;
  while (step < members) {
    ++step;
    if (!options_.use_async && !schedule_->Due(step - options_.local_sgd_warmup_steps).empty()) {
      break;
    }
  }
  return step;
}

}  // namespace entrain
