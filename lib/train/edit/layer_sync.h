// EDiT and A-EDiT: decides when replicas exchange, and overlaps the exchange of layer l + 1 with
// the computation of layer l. The class implements entrain_edit_*; include/entrain/train.h has the
// contract of each function.
//
//   caller    begin_forward | wait(0)      compute 0       wait(1)     compute 1
//   worker    Judge, 0      |.......| layer 1, gather(1) |       | layer 2, gather(2)
//
// Judge is the rendezvous. After it the worker exchanges layer 0, then layer 1 and so on.
//
// LayerSync runs in the caller's thread and starts all work. These classes do the work:
//
//   StepCounter       steps, and the next standing
//   SyncTrigger       when to hold a rendezvous
//   LayerGates        which job a layer waits for
//   RoundsBehind      rounds that overlap with further steps (option overlap_steps)
//   EditState         checkpoints
//   RoundRunner       the jobs of a round
//   ExchangeRound     one round: its layers, and its progress
//   Exchange          computation and communication of an exchange
//   ExchangeResults   results of rounds
//   EditMembership    losses, newcomers, late replicas
//   BackgroundRounds  rounds of fragments that no replica waits for
//   Worker            runs jobs on its thread
//
// Exchange consists of:
//
//   ExchangeMembers     the communicators and the replicas
//   ReplicaRendezvous   the norms and standings of all replicas
//   Verdicts            which replicas count, and with which weights
//   Snapshots           copies of the parameters (theta), and their merge
//   WideTheta           theta in f32
//   LayerState          the state that ranks send to each other
//   Anchors, OuterOptimizer
//
// In A-EDiT, replicas hold a rendezvous after an interval of time, not at a step known in advance.
// At the rendezvous they learn whether they have made enough steps for an exchange. So
// begin_forward waits for the rendezvous, and the rendezvous waits for the last replica.
//
// With option overlap_steps, an exchange overlaps with the caller's next steps. The exchange uses a
// copy of the parameters (Snapshots::Take), so layers do not wait for it. A later begin_forward
// merges the result with the changes that this replica has made since the copy. If fragments are
// exchanged at different steps, several exchanges may be pending. The worker runs them one after
// the other.
//
// Every error begins with "edit: ". If an exchange fails on one rank, it fails on all ranks. Every
// later call returns the error of this exchange.
//
// Thread safety: one thread at a time, except Abandon.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/mesh.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/train/edit/edit_membership.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/edit_state.h"
#include "lib/train/edit/exchange.h"
#include "lib/train/edit/exchange_results.h"
#include "lib/train/edit/exchange_round.h"
#include "lib/train/edit/fragments.h"
#include "lib/train/edit/layer_gates.h"
#include "lib/train/edit/round_runner.h"
#include "lib/train/edit/step_counter.h"
#include "lib/train/edit/trigger.h"
#include "lib/train/shard/layer_shards.h"
#include "lib/train/state/checkpoint.h"
#include "lib/train/state/open_state.h"
#include "lib/train/worker/worker.h"

namespace entrain {

class LayerSync final {
 public:
  // Collective. Returns an error if options differ between ranks. `shards` must have been made on
  // `mesh`, and must have bound parameters. Destruction of the object aborts an exchange under way,
  // on all ranks. If the caller's outer step does not return, destruction does not wait for it: the
  // worker's thread frees the object later.
  static absl::StatusOr<std::shared_ptr<LayerSync>> Create(std::shared_ptr<Mesh> mesh,
                                                           std::shared_ptr<LayerShards> shards,
                                                           const EditOptions& options);
  // Creates the object of a newcomer, which joins replicas that already train (option admit).
  // `mesh` contains only this replica. Blocks until the members have admitted this replica, at most
  // `wait_ns`. If `wait_ns` is 0, the time limit of calls applies.
  static absl::StatusOr<std::shared_ptr<LayerSync>> Join(std::shared_ptr<Mesh> mesh,
                                                         std::shared_ptr<LayerShards> shards,
                                                         const EditOptions& options,
                                                         int64_t wait_ns);
  // Returns true if an exchange has begun.
  absl::StatusOr<bool> BeginForward(bool training, bool first_microbatch);
  absl::Status WaitLayer(int layer);
  // Calls `then` once when WaitLayer would not block, with the status of WaitLayer. Calls `then`
  // before returning, or later on another thread, where `then` must not block. If this
  // function returns an error, `then` is not called.
  absl::Status WhenLayerOver(int layer, Worker::Continuation then);
  absl::Status EndStep();
  // Returns the scope of gradients in the current step. The last BeginForward with `training` has
  // begun this step.
  GradientScope gradient_scope() const { return shards_->gradient_scope(); }
  absl::Status RequestSync();
  // Adds to this rank's counts: the tokens trained since the last call, and a metric with its
  // weight.
  absl::Status Record(int64_t tokens, double metric, double weight) {
    return counter_.Record(tokens, metric, weight);
  }
  // Sets flags of kWishes. The other replicas see the flag at the next rendezvous.
  absl::Status Wish(uint64_t flags);
  // Must be called when this replica has finished training. Collective over the replica. Until all
  // replicas have called Leave, blocks and takes part in rendezvous and exchanges. No training is
  // allowed afterwards.
  absl::Status Leave();

  // Makes all work under way fail. If another thread is in a call, makes the call fail too. May be
  // called from any thread.
  void Abandon();
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  // Must be called if a call on this rank has failed, because the process may then end. Tells this
  // to the ranks that wait for this rank.
  void Refused(const absl::Status& why) const;

  // Returns the object that saves and loads the state of the run.
  EditState& state() { return *state_; }

  EditInfo info() const;
  const ExchangeResults& results() const { return results_; }
  // Copies the anchor: slab().count() elements of type `to`, which is kF32, kF64, kBF16 or kF16. A
  // layer that does not train has no anchor; its parameters are copied instead.
  absl::Status CopyAnchor(void* anchor, DType to = DType::kF32) const;
  // Returns the report of the last exchange of a layer that trains. Returns kFailedPrecondition
  // before the first exchange and during an exchange.
  absl::StatusOr<LayerReport> Report(int layer) const;

 private:
  LayerSync(std::shared_ptr<Mesh> mesh, std::shared_ptr<LayerShards> shards,
            const EditOptions& options, ExchangeGroups groups,
            std::unique_ptr<const FragmentSchedule> schedule, std::unique_ptr<SyncTrigger> trigger);
  ~LayerSync() = default;
  static void Free(LayerSync* edit);
  void AwaitRoundsBehind();
  static absl::StatusOr<std::shared_ptr<LayerSync>> Make(std::shared_ptr<Mesh> mesh,
                                                         std::shared_ptr<LayerShards> shards,
                                                         const EditOptions& options,
                                                         std::optional<int64_t> wait_ns);
  absl::Status Start(std::optional<int64_t> wait_ns);
  void StartWorker();
  bool UnderWay() const { return !behind_.empty() || gates_->FirstPending() >= 0; }

  // The functions down to StayForRound are in layer_sync_rounds.cc.
  absl::StatusOr<bool> StartIfDue();
  // Lets the caller copy its parameters into the arrays (EditOptions::fetch), once in a call of the
  // caller. Must be called before the arrays are read or changed.
  absl::Status FetchOnce();
  absl::Status Fetch();
  absl::Status StartFirst();
  std::shared_ptr<ExchangeRound> NewRound(std::vector<int> layers, bool behind);
  absl::Status StartExchange(std::vector<int> layers);
  absl::StatusOr<bool> Meet(int64_t extra_ns);
  absl::StatusOr<bool> MeetEverybody(const std::vector<int>& layers);
  void BeginBackground();
  absl::StatusOr<bool> OfferIfDue();
  absl::Status StartWithEverybody(std::vector<int> layers);
  BackgroundRounds::Trained TrainedSoFar() const {
    return {.steps = counter_.step(), .tokens = counter_.all_tokens()};
  }
  void TakeBackMissed();
  void AdmitAfterStep();
  void AdmitNow();
  void CountMissed();
  absl::Status StartBehind(std::vector<int> layers);
  absl::Status MergeSettled(bool all);
  absl::Status Settle();
  absl::Status StayForRound(bool* all);

  const std::shared_ptr<Mesh> mesh_;
  const std::shared_ptr<LayerShards> shards_;  // exchange_ refers to its parts
  const EditOptions options_;
  const std::unique_ptr<const FragmentSchedule> schedule_;  // has only layers that train
  const std::unique_ptr<SyncTrigger> trigger_;

  StepCounter counter_;
  RoundsBehind behind_;
  std::shared_ptr<ExchangeRound> round_;     // last round that does not overlap with further steps
  int64_t background_began_ = 0;             // counter_.beginnings() at the last BeginBackground
  int64_t step_began_ns_ = 0, step_ns_ = 0;  // start of the step, and the usual time of one
  bool fetched_ = false;                     // Fetch has run in this call of the caller
  bool admission_owed_ = false;              // PostAdmission must be called when the step is over
  uint64_t exposed_ns_ = 0;
  ExchangeBytes base_;  // bytes sent during Create

  KernelThreads threads_;  // share the passes over arrays

  // While an exchange is under way, the worker uses exchange_. Otherwise the caller's thread uses
  // it. The headers of its parts list the functions that the caller may also call during an
  // exchange.
  Exchange exchange_;
  ExchangeResults results_;
  FirstError error_;
  EditMembership membership_;
  // These exist after Start. The worker is the last member: its jobs use the other members.
  std::optional<RoundRunner> runner_;
  std::optional<LayerGates> gates_;
  std::optional<EditState> state_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace entrain
