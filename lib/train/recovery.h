// Finishes exchanges after a loss (option on_loss). The ranks whose replicas are whole make new
// communicators, and finish the round that was under way.
//
//   1  the communicators end, so that no rank waits in them
//   2  Shrink finds the remaining ranks; new model and sync groups        replica_world
//      with quorum or round_deadline all ranks learn the last decision    round_closer
//   3  all ranks send their progress, and make the same plan              recovery_plan
//   4  the table of the rendezvous goes to ranks that lack it; if no rank has it, the rendezvous
//      is held again
//   5  results of layers that only some ranks have finished go to the others. Then such a layer
//      counts the lost replica on all ranks
//   6  the other layers are weighed again, without the lost replicas
//
// If another rank is lost meanwhile, Run begins again and uses the results that it has.
//
// Thread safety: Needed, Run and AwaitOthers are called by the worker. End may be called by any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/train/exchange.h"
#include "lib/train/exchange_results.h"
#include "lib/train/exchange_round.h"
#include "lib/train/recovery_plan.h"
#include "lib/train/replica_world.h"
#include "lib/train/round_closer.h"

namespace entrain {

class Recovery {
 public:
  // All arguments must outlive this object. If a replica has one rank, `world` is the exchange's
  // sync group. `closer` is null if rounds need all replicas. `timeout_ns` limits each call; 0: the
  // communicator's default.
  Recovery(Exchange& exchange, ExchangeResults& results, std::unique_ptr<ReplicaWorld> world,
           RoundCloser* closer, int64_t timeout_ns)
      : exchange_(exchange),
        results_(results),
        world_(std::move(world)),
        closer_(closer),
        timeout_ns_(timeout_ns) {}

  // Returns the loss by which a communicator of the exchange, or the communicator of all ranks, has
  // ended. Returns OK if there is none. With `closing`, also looks at the communicator of the
  // closer. This communicator matters only while this rank takes part in a decision, because a rank
  // that ends its training leaves it without a loss.
  absl::Status Needed(bool closing = false) const;
  // `round` is the last round that has begun on the worker, or null. Returns OK if the round can
  // continue, by repeating its rendezvous or with its next turn. After an error this rank cannot go
  // on.
  absl::Status Run(ExchangeRound* round);
  // Blocks until all ranks have called AwaitOthers, or until this rank learns in a recovery that
  // all ranks have called it; then until the other ranks of its replica know it too. So no rank
  // leaves while another rank of its replica may still need a recovery, in which the replica must
  // be whole. Collective over the ranks that have not returned from AwaitOthers.
  absl::Status AwaitOthers();
  // Ends the communicator of all ranks with the error, so that no rank waits in it for this rank.
  void End(const absl::Status& why) { world_->End(why); }
  ReplicaWorld& world() { return *world_; }

 private:
  std::vector<std::shared_ptr<Communicator>> Communicators(bool closing) const;
  absl::Status Shrink();
  absl::Status GoOn(ExchangeRound* round);
  absl::Status Regroup();
  absl::StatusOr<std::vector<RoundPlace>> GatherPlaces(const RoundPlace& mine);
  absl::Status SendTable(int from, ExchangeRound* round);
  absl::Status FinishLayers(const RecoveryPlan& plan, absl::Span<const RoundPlace> places,
                            ExchangeRound* round);
  absl::Status FinishLayer(absl::Span<const RoundPlace> places, int layer, int64_t turn,
                           bool finished);
  absl::Status Broadcast(int root, void* data, int64_t bytes);

  Exchange& exchange_;
  ExchangeResults& results_;
  const std::unique_ptr<ReplicaWorld> world_;
  RoundCloser* const closer_;
  RunEnd end_ = RunEnd::kUnknown;
  const int64_t timeout_ns_;
};

}  // namespace entrain
