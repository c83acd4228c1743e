// EDiT and A-EDiT: when replicas exchange, and how an exchange of layer l + 1 hides under the computation of
// layer l. Behind entrain_edit_*; include/entrain/train.h has the contract of each function.
//
//   caller    begin_forward | wait(0)      compute 0       wait(1)     compute 1
//   worker    Judge, 0      |.......| layer 1, gather(1) |       | layer 2, gather(2)
//
// LayerSync has the caller's side: which call begins what. The rest is in the objects that it is made of:
//
//   StepCounter      steps, and what the next standing says      RoundRunner      the jobs of a round
//   SyncTrigger      when replicas meet                          ExchangeRound    one round: turns and states
//   LayerGates       which job a layer waits for                 Exchange         arithmetic and traffic
//   RoundsBehind     rounds behind further steps                 ExchangeResults  what has come of them
//   EditState        checkpoints                                 Worker           host or device
//
// In A-EDiT replicas meet when the time is up, not at a step that all know, and only then find out whether there is enough to
// exchange: begin_forward waits for Judge, which waits for the last replica.
//
// With overlap_steps an exchange runs behind the steps that follow, on the parameters as they were when it began (Snapshot), and
// the gate stays open. A later begin_forward merges what has come with what this replica has done since. With fragments that
// are exchanged at steps of their own, several may be on their way, one after the other on the worker.
//
// On device memory the caller's thread only enqueues and posts, and the caller's stream waits for layers; nobody holds the worker
// back:
//
//   caller   begin_forward  wait(0)  compute 0  wait(1)  compute 1 ...   at once
//   stream   ...           |~~~~~~~~| compute 0 |~~~| compute 1
//   worker                  Judge, 0 | layer 1      | layer 2
//
// Every error begins with "edit: "; once an exchange has failed, it is told to all ranks and every
// later call fails with it.
//
// Thread safety: one thread at a time, but for Abandon.
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
  // Collective; compares the options of all ranks. `shards`: bound, made on `mesh`.
  // Letting go of it ends an exchange under way, on all ranks; an outer step of the caller's that does not return is left to
  // its thread, which frees the object.
  static absl::StatusOr<std::shared_ptr<LayerSync>> Create(std::shared_ptr<Mesh> mesh,
                                                           std::shared_ptr<LayerShards> shards,
                                                           const EditOptions& options);
  // True: an exchange has begun.
  absl::StatusOr<bool> BeginForward(bool training, bool first_microbatch);
  absl::Status WaitLayer(int layer);
  // Calls `then` once when WaitLayer would not block, with what it would return: from another thread, which must not be blocked,
  // or before this returns. On device memory: when the exchange is over there. An error: it is not called.
  absl::Status WhenLayerOver(int layer, Worker::Continuation then);
  absl::Status EndStep();
  // Of the step that the last BeginForward in training began.
  GradientScope gradient_scope() const { return shards_->gradient_scope(); }
  absl::Status RequestSync();
  // This rank's since the last call: tokens that it trained on, and a metric with its weight.
  absl::Status Record(int64_t tokens, double metric, double weight) {
    return counter_.Record(tokens, metric, weight);
  }
  // kWantCheckpoint, kWantStop: shown at the next rendezvous.
  absl::Status Wish(uint64_t flags);
  // This replica has trained to its end. Collective over the replica; blocks until all replicas have, and takes part in their
  // rendezvous and exchanges until then. Afterwards there is no more training.
  absl::Status Leave();

  // Any thread: makes the call that another thread is inside of fail, and all that is under way.
  void Abandon();
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  // A call of this rank's failed, and it may end: for those who wait for it.
  void Refused(const absl::Status& why) const;

  // As EditState's.
  absl::Status AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                        int64_t count) {
    return state_->Add(name, holder, dtype, data, count);
  }
  absl::Status Save(const CheckpointOptions& options) { return state_->Save(options); }
  absl::Status Load(const CheckpointOptions& options) { return state_->Load(options); }
  absl::StatusOr<std::unique_ptr<OpenState>> Open(CheckpointKind kind) {
    return state_->Open(kind);
  }

  // On a device: of exchanges; else null.
  StreamHandle stream() const { return worker_->stream(); }
  EditInfo info() const;
  // By replica, as of the last rendezvous that is over; empty before the first.
  std::vector<Standing> standings() const { return results_.standings(); }
  // slab().count() elements of kF32, kF64, kBF16 or kF16.
  absl::Status CopyAnchor(void* anchor, DType to = DType::kF32) const;
  // kFailedPrecondition before the first exchange and during one. Of a layer that trains.
  absl::StatusOr<LayerReport> Report(int layer) const;

 private:
  LayerSync(std::shared_ptr<Mesh> mesh, std::shared_ptr<LayerShards> shards,
            const EditOptions& options, ExchangeGroups groups,
            std::unique_ptr<const FragmentSchedule> schedule, std::unique_ptr<SyncTrigger> trigger,
            std::unique_ptr<DeviceRoom> room);
  ~LayerSync() = default;
  static void Free(LayerSync* edit);
  absl::Status Start();
  absl::Status StartOnHost();
  absl::Status StartOnDevice();
  bool UnderWay() const { return !behind_.empty() || gates_->FirstPending() >= 0; }

  // layer_sync_rounds.cc
  absl::StatusOr<bool> StartIfDue();
  absl::Status Failed(const absl::Status& status);
  absl::Status StartFirst();
  std::shared_ptr<ExchangeRound> NewRound(std::vector<int> layers, bool behind);
  absl::Status StartExchange(std::vector<int> layers);
  absl::StatusOr<bool> Meet(int64_t extra_ns);
  absl::Status StartBehind(std::vector<int> layers);
  absl::Status MergeSettled(bool all);
  absl::Status Settle();
  absl::Status StayForRound(bool* all);

  const std::shared_ptr<Mesh> mesh_;
  const std::shared_ptr<LayerShards> shards_;  // has what exchange_ refers to
  const EditOptions options_;
  const std::unique_ptr<const FragmentSchedule> schedule_;  // layers that do not train are in none
  const std::unique_ptr<SyncTrigger> trigger_;
  const std::unique_ptr<DeviceRoom> room_;  // null: on the host

  // How many layers the worker may come further than the caller, and how many may travel at a time.
  struct Pace {
    int prefetch = 0, in_flight = 1;
  };
  Pace pace_;

  StepCounter counter_;
  RoundsBehind behind_;
  std::shared_ptr<ExchangeRound> round_;  // the last that layers wait for, or had to
  uint64_t exposed_ns_ = 0;
  uint64_t base_shard_ = 0, base_sync_ = 0;  // bytes sent while this was created

  // The caller's while nothing is under way, the worker's otherwise; the caller's part of exchange_ is said there.
  Exchange exchange_;
  ExchangeResults results_;
  FirstError error_;
  // From Start on.
  std::optional<RoundRunner> runner_;
  std::optional<LayerGates> gates_;
  std::optional<EditState> state_;
  std::unique_ptr<Worker> worker_;  // last: its jobs use the rest
};

}  // namespace entrain
