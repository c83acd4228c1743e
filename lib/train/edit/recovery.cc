#include "lib/train/edit/recovery.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// Returns the progress of this rank.
RoundPlace PlaceOf(const ExchangeRound* round, int64_t rendezvous, RunEnd end) {
  RoundPlace place = {.over = rendezvous, .end = end};
  if (round != nullptr && round->finished() >= 0 && round->finished() <= round->last_turn()) {
    place = {.over = rendezvous - 1, .judged = 1, .finished = round->finished()};
  }
  return place;
}

}  // namespace

// Returns the communicators in which a rank may wait for others. Some may be null.
std::vector<std::shared_ptr<Communicator>> Recovery::Communicators(bool closing) const {
  const ExchangeGroups groups = exchange_.members().groups();
  return {groups.sync, groups.model, world_->comm(),
          closing && closer_ != nullptr ? closer_->comm() : nullptr};
}

absl::Status Recovery::Needed(bool closing) const {
  for (const std::shared_ptr<Communicator>& comm : Communicators(closing)) {
    ENTRAIN_RETURN_IF_ERROR(LossOf(comm.get()));
  }
  return absl::OkStatus();
}

absl::Status Recovery::Run(ExchangeRound* round) {
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(Shrink());
    const absl::Status status = GoOn(round);
    exchange_.rendezvous().DropApplications();
    if (status.ok() || Needed().ok() || status.code() == absl::StatusCode::kDataLoss) {
      return status;
    }
  }
}

// A rank that has returned from a barrier does not come to another barrier of the same ranks. But
// the rank takes part in recoveries, and there tells the other ranks what it knows (RunEnd).
absl::Status Recovery::AwaitOthers() {
  if (end_ == RunEnd::kUnknown) {
    const CallOptions options = TimedCall(timeout_ns_, -1, true);
    Worker::Doing("leaving: the last exchange of the others", options.timeout_ns);
    ENTRAIN_RETURN_IF_ERROR(world_->comm()->Barrier(options));
    end_ = RunEnd::kAllFinished;
  }
  Communicator* const replica = exchange_.members().model();
  if (end_ == RunEnd::kAllFinished && replica != nullptr) {
    const CallOptions options = TimedCall(timeout_ns_, -1, true);
    Worker::Doing("leaving: the other ranks of the replica", options.timeout_ns);
    ENTRAIN_RETURN_IF_ERROR(replica->Barrier(options));
    end_ = RunEnd::kReplicaFinished;
  }
  if (closer_ != nullptr) {
    closer_->Close();
  }
  return absl::OkStatus();
}

// Ends all communicators, and replaces the communicator of all ranks.
absl::Status Recovery::Shrink() {
  return world_->RemoveLost(Communicators(/*closing=*/true), [this](const LostReplicas& lost) {
    for (const int replica : lost.replicas) {
      results_.Lost({.replica = replica, .rendezvous = results_.rendezvous(), .why = lost.why});
    }
  });
}

absl::Status Recovery::GoOn(ExchangeRound* round) {
  ENTRAIN_RETURN_IF_ERROR(Regroup());
  const RoundPlace mine = PlaceOf(round, results_.rendezvous(), end_);
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<RoundPlace> places, world_->GatherPlaces(mine));
  end_ = RunEndOf(places, world_->places(), world_->mine().replica);
  ENTRAIN_RETURN_IF_ERROR(joint_calls_.Settle(*world_->comm(), results_.rendezvous(), timeout_ns_));
  ENTRAIN_ASSIGN_OR_RETURN(const RecoveryPlan plan, PlanRecovery(places));
  if (!plan.met) {
    return absl::OkStatus();  // the next rendezvous is held without the lost replicas
  }
  ExchangeRound* const here = mine.over == plan.round ? round : nullptr;
  if (plan.table_from >= 0) {
    ENTRAIN_RETURN_IF_ERROR(SendTable(plan.table_from, here));
  }
  return FinishLayers(plan, places, here);
}

// Replaces the communicators of the exchange.
absl::Status Recovery::Regroup() {
  const std::shared_ptr<Communicator> world = world_->comm();
  std::shared_ptr<Communicator> model, sync = world;
  const ReplicaPlace& mine = world_->mine();
  Worker::Doing("after a loss: making the groups", world->timeout_ns());
  if (world_->slots() > 1) {
    ENTRAIN_ASSIGN_OR_RETURN(model, world->Split(mine.replica, mine.slot));
  }
  if (!world_->IsSyncGroup()) {
    ENTRAIN_ASSIGN_OR_RETURN(sync, world->Split(mine.slot, mine.replica));
  }
  exchange_.Regroup(std::move(model), std::move(sync), ReplicasOf(world_->places()));
  return closer_ == nullptr ? absl::OkStatus() : closer_->GoOn(*world_);
}

absl::Status Recovery::Broadcast(int root, void* data, int64_t bytes) {
  const CallOptions options = TimedCall(timeout_ns_, -1, true);
  Worker::Doing("after a loss: what others have finished", options.timeout_ns);
  return world_->comm()->Broadcast(data, bytes, DType::kU8, root, options);
}

// Collective. Rank `from` sends the table of the rendezvous. A rank lacks the table if its `round`
// has had no rendezvous.
absl::Status Recovery::SendTable(int from, ExchangeRound* round) {
  const bool sends = world_->comm()->rank() == from;
  const bool lacks = round != nullptr && round->finished() < 0;
  const NormTable& known = exchange_.rendezvous().table();
  int64_t sizes[] = {static_cast<int64_t>(known.rows()), static_cast<int64_t>(known.layers.size())};
  ENTRAIN_RETURN_IF_ERROR(Broadcast(from, sizes, sizeof(sizes)));
  NormTable table;
  if (sends) {
    table = known;
  } else {
    table.replicas.resize(static_cast<size_t>(sizes[0]));
    table.standings.resize(static_cast<size_t>(sizes[0]));
    table.layers.resize(static_cast<size_t>(sizes[1]));
    table.norms.resize(static_cast<size_t>(sizes[0] * sizes[1]));
  }
  const auto send = [&](auto* array) {
    return Broadcast(from, array->data(),
                     static_cast<int64_t>(array->size() * sizeof((*array)[0])));
  };
  ENTRAIN_RETURN_IF_ERROR(send(&table.replicas));
  ENTRAIN_RETURN_IF_ERROR(send(&table.standings));
  ENTRAIN_RETURN_IF_ERROR(send(&table.layers));
  ENTRAIN_RETURN_IF_ERROR(send(&table.norms));
  if (!lacks) {
    return absl::OkStatus();
  }
  if (table.layers != round->order() || table.RowOf(exchange_.members().me()) == table.rows()) {
    return absl::DataLossError("after a loss: the others have held another rendezvous");
  }
  round->SetJudged(exchange_.TakeUp(std::move(table)));
  results_.SetRepairs(exchange_.rendezvous().repairs());
  results_.Met(exchange_.rendezvous().table(), round->standing().round);
  return absl::OkStatus();
}

// Collective. All ranks have the table.
absl::Status Recovery::FinishLayers(const RecoveryPlan& plan, absl::Span<const RoundPlace> places,
                                    ExchangeRound* round) {
  if (!exchange_.rendezvous().exchanges()) {
    return absl::OkStatus();
  }
  const std::vector<int> layers = exchange_.rendezvous().table().layers;
  const auto turns = static_cast<int64_t>(layers.size());
  const int64_t all = std::min(plan.all, turns);
  int64_t mine = round == nullptr ? turns : round->finished();
  for (int64_t turn = std::min(plan.first, turns); turn < all; ++turn) {
    const int layer = layers[static_cast<size_t>(turn)];
    ENTRAIN_RETURN_IF_ERROR(FinishLayer(places, layer, turn, mine > turn));
    if (round != nullptr && mine <= turn) {
      mine = turn + 1;
      round->Restart(static_cast<int>(mine));
    }
  }
  if (round != nullptr) {
    round->Restart(static_cast<int>(mine));
  }
  for (int64_t turn = all; turn < turns; ++turn) {
    exchange_.WeighAgain(layers[static_cast<size_t>(turn)], /*counts=*/true);
  }
  if (all < turns) {
    results_.RoundShort(plan.round);
  }
  return absl::OkStatus();
}

// Collective. Some ranks have finished the layer.
absl::Status Recovery::FinishLayer(absl::Span<const RoundPlace> places, int layer, int64_t turn,
                                   bool finished) {
  LayerOutcome outcome = exchange_.outcome(layer);
  ENTRAIN_RETURN_IF_ERROR(Broadcast(FinishedBy(places, turn), &outcome, sizeof(outcome)));
  const int from = FinishedBy(places, turn, world_->places(), world_->mine().slot);
  if (from < 0) {
    // Only ranks of other slots have finished the layer. Their shards of the layer count the lost
    // replica, but this rank's shard cannot count it.
    exchange_.WeighAgain(layer, /*counts=*/false);
    return exchange_.FinishLike(layer, outcome);
  }
  const std::vector<int> replicas = ReplicasOf(world_->places());
  const auto root = std::lower_bound(replicas.begin(), replicas.end(),
                                     world_->places()[static_cast<size_t>(from)].replica);
  return exchange_.Share(layer, static_cast<int>(root - replicas.begin()), finished, outcome);
}

}  // namespace entrain
