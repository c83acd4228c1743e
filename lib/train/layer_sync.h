// EDiT and A-EDiT: decides when replicas exchange, and hides the exchange of layer l + 1 behind the
// computation of layer l. The class implements entrain_edit_*; include/entrain/train.h has the
// contract of each function.
//
//   caller    begin_forward | wait(0)      compute 0       wait(1)     compute 1
//   worker    Judge, 0      |.......| layer 1, gather(1) |       | layer 2, gather(2)
//
// LayerSync decides, in the caller's thread, which call begins which work. Its parts do the rest:
//
//   StepCounter      steps, and the next standing                RoundRunner      the jobs of a round
//   SyncTrigger      when to hold a rendezvous                   ExchangeRound    one round: turns and states
//   LayerGates       which job a layer waits for                 Exchange         arithmetic and traffic
//   RoundsBehind     rounds behind further steps                 ExchangeResults  their results
//   EditState        checkpoints                                 EditMembership   losses, newcomers, late replicas
//                                                                Worker           host or device
//
// An Exchange is made of ExchangeMembers (the communicators and replicas), ReplicaRendezvous (the
// norms and standings of all replicas), Verdicts (who counts, and how much), Snapshots (copies of
// theta, and their merge), WideTheta (theta in f32), LayerState (the state that ranks send to each
// other), Anchors and OuterOptimizer.
//
// In A-EDiT replicas hold a rendezvous after an interval of time, not at a step known in advance.
// Only at the rendezvous do they learn whether there is enough to exchange. Therefore begin_forward
// waits for Judge, which waits for the last replica.
//
// With overlap_steps an exchange runs behind the following steps, on a copy of the parameters from
// its beginning (Snapshots::Take), and the gate stays open. A later begin_forward merges the result with
// the changes that this replica has made since. With fragments that are exchanged at steps of their
// own, several exchanges may be pending; the worker runs them one after the other.
//
// On device memory the caller's thread only enqueues and posts, and the caller's stream waits for
// layers. Nothing holds the worker back:
//
//   caller   begin_forward  wait(0)  compute 0  wait(1)  compute 1 ...   at once
//   stream   ...           |~~~~~~~~| compute 0 |~~~| compute 1
//   worker                  Judge, 0 | layer 1      | layer 2
//
// Every error begins with "edit: ". After an exchange has failed, all ranks are told, and every
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
#include "lib/train/checkpoint.h"
#include "lib/train/edit_membership.h"
#include "lib/train/edit_options.h"
#include "lib/train/edit_state.h"
#include "lib/train/exchange.h"
#include "lib/train/exchange_results.h"
#include "lib/train/exchange_round.h"
#include "lib/train/first_error.h"
#include "lib/train/fragments.h"
#include "lib/train/layer_gates.h"
#include "lib/train/layer_shards.h"
#include "lib/train/open_state.h"
#include "lib/train/round_runner.h"
#include "lib/train/rounds_behind.h"
#include "lib/train/step_counter.h"
#include "lib/train/trigger.h"
#include "lib/train/worker.h"

namespace entrain {

class LayerSync final {
 public:
  // Collective. Compares the options of all ranks. `shards` must be bound and made on `mesh`.
  // Releasing the object ends an exchange under way on all ranks. If an outer step of the caller
  // does not return, the worker's thread goes on, and frees the object later.
  static absl::StatusOr<std::shared_ptr<LayerSync>> Create(std::shared_ptr<Mesh> mesh,
                                                           std::shared_ptr<LayerShards> shards,
                                                           const EditOptions& options);
  // Used in place of Create to join replicas that train (option admit). `mesh` contains only this
  // replica. Blocks at most `wait_ns` until the members have taken this replica in; 0: the time
  // limit of calls.
  static absl::StatusOr<std::shared_ptr<LayerSync>> Join(std::shared_ptr<Mesh> mesh,
                                                         std::shared_ptr<LayerShards> shards,
                                                         const EditOptions& options,
                                                         int64_t wait_ns);
  // Returns true if an exchange has begun.
  absl::StatusOr<bool> BeginForward(bool training, bool first_microbatch);
  absl::Status WaitLayer(int layer);
  // Calls `then` once when WaitLayer would not block, with the status of WaitLayer: before
  // returning, or from another thread, where `then` must not block. On device memory `then` is
  // called when the exchange is over on the device. If this function returns an error, `then` is
  // not called.
  absl::Status WhenLayerOver(int layer, Worker::Continuation then);
  absl::Status EndStep();
  // Returns the scope for the step that the last BeginForward in training began.
  GradientScope gradient_scope() const { return shards_->gradient_scope(); }
  absl::Status RequestSync();
  // Adds to this rank's counts the tokens that were trained since the last call, and a metric with
  // its weight.
  absl::Status Record(int64_t tokens, double metric, double weight) {
    return counter_.Record(tokens, metric, weight);
  }
  // Sets kWantCheckpoint or kWantStop, which the other replicas see at the next rendezvous.
  absl::Status Wish(uint64_t flags);
  // Says that this replica has finished training. Collective over the replica. Blocks until all
  // replicas have finished, and takes part in their rendezvous and exchanges until then. No
  // training is allowed afterwards.
  absl::Status Leave();

  // Makes a call that runs on another thread fail, and all work under way too. May be called from
  // any thread.
  void Abandon();
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  // Tells the ranks that wait for this rank that a call on this rank has failed, and that its
  // process may therefore end.
  void Refused(const absl::Status& why) const;

  // Returns the object for checkpoints.
  EditState& state() { return *state_; }

  // Returns the stream of exchanges on a device; null on the host.
  StreamHandle stream() const { return worker_->stream(); }
  EditInfo info() const;
  const ExchangeResults& results() const { return results_; }
  // Copies slab().count() elements of the anchor, as kF32, kF64, kBF16 or kF16.
  absl::Status CopyAnchor(void* anchor, DType to = DType::kF32) const;
  // Returns the report of a layer that trains. Returns kFailedPrecondition before the first
  // exchange and during one.
  absl::StatusOr<LayerReport> Report(int layer) const;

 private:
  LayerSync(std::shared_ptr<Mesh> mesh, std::shared_ptr<LayerShards> shards,
            const EditOptions& options, ExchangeGroups groups,
            std::unique_ptr<const FragmentSchedule> schedule, std::unique_ptr<SyncTrigger> trigger,
            std::unique_ptr<DeviceRoom> room);
  ~LayerSync() = default;
  static void Free(LayerSync* edit);
  static absl::StatusOr<std::shared_ptr<LayerSync>> Make(std::shared_ptr<Mesh> mesh,
                                                         std::shared_ptr<LayerShards> shards,
                                                         const EditOptions& options,
                                                         std::optional<int64_t> wait_ns);
  absl::Status Start(std::optional<int64_t> wait_ns);
  absl::Status StartOnHost();
  absl::Status StartOnDevice();
  bool UnderWay() const { return !behind_.empty() || gates_->FirstPending() >= 0; }

  // The functions down to StayForRound are in layer_sync_rounds.cc.
  absl::StatusOr<bool> StartIfDue();
  absl::Status StartFirst();
  std::shared_ptr<ExchangeRound> NewRound(std::vector<int> layers, bool behind);
  absl::Status StartExchange(std::vector<int> layers);
  absl::StatusOr<bool> Meet(int64_t extra_ns);
  absl::StatusOr<bool> MeetEverybody(const std::vector<int>& layers);
  void TakeBackMissed();
  void CountMissed();
  absl::Status StartBehind(std::vector<int> layers);
  absl::Status MergeSettled(bool all);
  absl::Status Settle();
  absl::Status StayForRound(bool* all);

  const std::shared_ptr<Mesh> mesh_;
  const std::shared_ptr<LayerShards> shards_;  // owns the objects that exchange_ refers to
  const EditOptions options_;
  const std::unique_ptr<const FragmentSchedule> schedule_;  // contains only layers that train
  const std::unique_ptr<SyncTrigger> trigger_;
  const std::unique_ptr<DeviceRoom> room_;  // null: on the host

  // prefetch: number of layers by which the worker may be ahead of the caller. in_flight: number of
  // layers whose deltas may be reduced at the same time.
  struct Pace {
    int prefetch = 0, in_flight = 1;
  };
  Pace pace_;

  StepCounter counter_;
  RoundsBehind behind_;
  std::shared_ptr<ExchangeRound> round_;  // the last round for which layers wait or waited
  uint64_t exposed_ns_ = 0;
  ExchangeBytes base_;  // bytes sent during Create

  // Used by the caller's thread while nothing is under way, otherwise by the worker. The
  // headers of its parts list the functions that the caller may call meanwhile.
  Exchange exchange_;
  ExchangeResults results_;
  FirstError error_;
  EditMembership membership_;
  // These exist after Start.
  std::optional<RoundRunner> runner_;
  std::optional<LayerGates> gates_;
  std::optional<EditState> state_;
  std::unique_ptr<Worker> worker_;  // last member: its jobs use the others
};

}  // namespace entrain
