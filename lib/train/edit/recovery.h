// Finishes exchanges after the loss of a rank (option on_loss). A replica that has lost a rank
// leaves. The ranks of the other replicas make new communicators, and finish the round that was
// under way.
//
//   1  the communicators end, so that no rank waits in them
//   2  Shrink finds the remaining ranks, which make new model and sync groups   replica_world
//      with quorum or round_deadline, all ranks get the last decision           round_closer
//      if only some ranks have finished a joint call, all get its outcome       joint_calls
//   3  all ranks send their progress, and make the same plan                    recovery_plan
//   4  ranks that lack the table of the rendezvous receive it. If no rank has the table, the
//      rendezvous is held again
//   5  if only some ranks have finished a layer, they send its result to the others. Then the layer
//      counts the lost replica on all ranks
//   6  the weights of all other layers are computed again, without the lost replicas
//
// If another rank is lost during Run, Run begins again. It keeps the results that it has received.
//
// Thread safety: the worker calls EndCalls, Run and AwaitOthers, and Needed while no attempt of a
// joint call is under way. The caller's thread makes the joint calls, and may call Needed in an
// attempt. End may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/train/edit/exchange.h"
#include "lib/train/edit/exchange_results.h"
#include "lib/train/edit/exchange_round.h"
#include "lib/train/edit/recovery_plan.h"
#include "lib/train/edit/round_closer.h"
#include "lib/train/elastic/replica_world.h"
#include "lib/train/state/joint_calls.h"

namespace entrain {

class Recovery {
 public:
  // All arguments must outlive this object. If each replica has one rank, `world` has the same
  // communicator as the exchange's sync group. `closer` is null if rounds need all replicas.
  // `timeout_ns` limits each call; 0: the communicator's default.
  Recovery(Exchange& exchange, ExchangeResults& results, std::unique_ptr<ReplicaWorld> world,
           RoundCloser* closer, int64_t timeout_ns)
      : exchange_(exchange),
        results_(results),
        world_(std::move(world)),
        closer_(closer),
        timeout_ns_(timeout_ns) {}

  // Returns an error if a loss has ended a communicator of the exchange, or the communicator of all
  // ranks. Otherwise returns OK. With `closing`, also examines the closer's communicator. `closing`
  // must be true only while this rank takes part in a decision of the closer. At other times the
  // closer's communicator may have ended without a loss, because a rank has finished training.
  absl::Status Needed(bool closing = false) const;
  // Ends the communicators, if a loss has ended one of them. So an attempt of a joint call fails.
  void EndCalls() { EndAfterLoss(Communicators(/*closing=*/true)); }
  // Must be called in joint_calls().Recover, after EndCalls.
  // `round` is the last round that has begun on the worker, or null. Returns OK if the round can
  // continue. It continues with its next turn, or with a repetition of its rendezvous. After an
  // error this rank cannot continue.
  absl::Status Run(ExchangeRound* round);
  // Blocks until all ranks have called AwaitOthers, or until this rank learns in a recovery that
  // all ranks have called it; then until the other ranks of its replica know it too. So no rank
  // leaves while another rank of its replica may still need a recovery, in which the replica must
  // be whole. Collective over the ranks that have not returned from AwaitOthers.
  absl::Status AwaitOthers();
  // Ends the communicator of all ranks with the error `why`, so that no rank waits there for this
  // rank.
  void End(const absl::Status& why) { world_->End(why); }
  ReplicaWorld& world() { return *world_; }
  JointCalls& joint_calls() { return joint_calls_; }

 private:
  std::vector<std::shared_ptr<Communicator>> Communicators(bool closing) const;
  absl::Status Shrink();
  absl::Status GoOn(ExchangeRound* round);
  absl::Status Regroup();
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
  JointCalls joint_calls_;
  const int64_t timeout_ns_;
};

}  // namespace entrain
