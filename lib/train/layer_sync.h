// EDiT and A-EDiT: when replicas exchange, and how an exchange of layer l + 1 hides under the computation of
// layer l. Behind entrain_edit_*; include/entrain/train.h has the contract of each function, and
// exchange.h the arithmetic.
//
//   caller    begin_forward | wait(0)      compute 0       wait(1)     compute 1
//   courier   Judge, 0      |.......| layer 1, gather(1) |       | layer 2, gather(2)
//
// In A-EDiT replicas meet when the time is up, not at a step that all know, and only then find out whether there is enough to
// exchange: begin_forward waits for Judge, which waits for the last replica.
//
// With overlap_steps an exchange runs behind the steps that follow, on the parameters as they were when it began (Snapshot), and
// the gate stays open. A later begin_forward merges what has come with what this replica has done since. With fragments that
// are exchanged at steps of their own, several may be on their way, one after the other on the courier.
//
// layer_sync.cc has what the caller's calls do, layer_sync_rounds.cc how an exchange runs, layer_sync_state.cc checkpoints.
//
// The courier is allowed to come `prefetch` layers further than the layer last waited for; 0: each
// layer is exchanged in its own wait. Gathers of layers still in exchange are held back and start
// on the courier, the moment the layer is done.
//
// On device memory the caller's thread only enqueues and posts; layers are jobs of a DeviceCourier,
// which the caller's stream waits for, and nobody holds the courier back:
//
//   caller   begin_forward  wait(0)  compute 0  wait(1)  compute 1 ...   at once
//   stream   ...           |~~~~~~~~| compute 0 |~~~| compute 1
//   courier                 Judge, 0 | layer 1      | layer 2
//
// Every error begins with "edit: "; once an exchange has failed, it is told to all ranks and every
// later call fails with it.
//
// Thread safety: one thread at a time, but for the LayerGate part.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/comm/mesh.h"
#include "lib/train/callers_arrays.h"
#include "lib/train/checkpoint.h"
#include "lib/train/courier.h"
#include "lib/train/device_courier.h"
#include "lib/train/edit_options.h"
#include "lib/train/exchange.h"
#include "lib/train/fragments.h"
#include "lib/train/layer_gate.h"
#include "lib/train/layer_shards.h"
#include "lib/train/open_state.h"
#include "lib/train/placed_array.h"
#include "lib/train/trigger.h"

namespace entrain {

struct EditInfo {
  int64_t steps = 0, syncs = 0, last_sync_step = -1;
  uint64_t anchor_checksum = 0;
  uint64_t exposed_ns = 0, sync_ns = 0;
  uint64_t bytes_sent_shard = 0, bytes_sent_sync = 0;
  bool in_warmup = false;
  int64_t rendezvous = 0;  // with or without an exchange
  uint64_t wishes = 0;     // kWantCheckpoint, kWantStop of any replica at the last one
  double metric = 0;       // mean over all replicas at the last one; NaN: nobody gave any
  int64_t rejections = 0;  // layers of this replica that were rejected, over all exchanges
  int64_t rollbacks = 0;   // layers that were rolled back
};

class LayerSync final : public LayerGate, public StateOwner {
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
  absl::Status WhenLayerOver(int layer, Courier::Continuation then);
  absl::Status EndStep();
  // Of the step that the last BeginForward in training began.
  GradientScope gradient_scope() const { return shards_->gradient_scope(); }
  absl::Status RequestSync();
  // This rank's since the last call: tokens that it trained on, and a metric with its weight.
  absl::Status Record(int64_t tokens, double metric, double weight);
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

  // An array of the caller's that is part of the run's state. Lent until this is destroyed.
  absl::Status AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                        int64_t count);
  // Collective. kFailedPrecondition except between the end of an exchange and the first reduction
  // of gradients after it; for the exact kind a rendezvous without an exchange will do.
  absl::Status Save(const CheckpointOptions& options);
  // Collective. kFailedPrecondition while an exchange is under way or a layer is gathered.
  absl::Status Load(const CheckpointOptions& options);
  // The state in the caller's hands. Not collective; kFailedPrecondition while an exchange is under way.
  absl::StatusOr<std::unique_ptr<OpenState>> Open(CheckpointKind kind);

  // StateOwner
  int64_t moves() const override { return moves_; }
  absl::Status CheckSavable(CheckpointKind kind) const override { return CheckRendezvous(kind); }
  absl::Status TakeUp(OpenState& state, int64_t timeout_ns) override;

  // On a device: of exchanges; else null.
  StreamHandle stream() const { return onto_ == nullptr ? nullptr : onto_->stream(); }
  EditInfo info() const;
  // By replica, as of the last rendezvous that is over; empty before the first.
  std::vector<Standing> standings() const;
  // slab().count() elements of kF32, kF64, kBF16 or kF16.
  absl::Status CopyAnchor(void* anchor, DType to = DType::kF32) const;
  // kFailedPrecondition before the first exchange and during one. Of a layer that trains.
  absl::StatusOr<LayerReport> Report(int layer) const;

  // LayerGate
  void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) override;
  void Expect(int layer) override;
  absl::Status WaitOpen(int layer) override { return WaitLayer(layer); }
  uint32_t BegunSoFar(int layer) const override { return jobs_[static_cast<size_t>(layer)]; }
  absl::Status WaitOver(int layer, uint32_t begun) override;

 private:
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;
  // One rendezvous, and the exchange that may follow.
  struct Round {
    std::vector<int> order;  // turn -> layer
    Standing standing;       // what this rank says; its steps: when it began
    int64_t patience_ns = 0;
    bool behind = false;                  // further steps
    bool exchanges = false;               // what Judge has found
    int next_begin = 0, next_finish = 0;  // turns; the courier's
    // Behind further steps:
    uint64_t job = 0;                  // its last one; 0: it was over when it was loaded
    std::atomic<bool> arrived{false};  // it is over
    int last_turn() const { return static_cast<int>(order.size()) - 1; }
    int64_t begun() const { return static_cast<int64_t>(standing.steps); }
  };
  struct LayerState {
    // Its exchange is under way or yet to begin; on a device, and nobody has waited for it. Only while status_ is OK.
    bool pending = false;
    std::vector<Continuation> then;
  };
  // The part of EditInfo that changes when an exchange ends.
  struct Finished {
    int64_t syncs = 0, last_sync_step = -1;
    uint64_t anchor_checksum = 0;
    int64_t rejections = 0, rollbacks = 0;
  };

  LayerSync(std::shared_ptr<Mesh> mesh, std::shared_ptr<LayerShards> shards,
            const EditOptions& options, Exchange::Groups groups,
            std::unique_ptr<const FragmentSchedule> schedule, std::unique_ptr<SyncTrigger> trigger,
            std::unique_ptr<DeviceRoom> room);
  ~LayerSync() override = default;
  static void Free(LayerSync* edit);
  bool StopCourier();
  absl::Status StartCourier();
  absl::Status CheckLayer(int layer) const;
  absl::Status CountMicrobatch(bool first);
  absl::StatusOr<bool> StartIfDue();
  absl::Status StartFirst();
  bool UnderWay() const { return !behind_.empty() || FirstPending() >= 0; }
  absl::Status Block(int layer);
  absl::Status Late(const absl::Status& why) const;
  absl::Status HoldStream(int layer);
  absl::Status OnStream(absl::FunctionRef<absl::Status()> body) const;
  absl::Status CheckOnDevice(const char* name, const void* array) const;
  int FirstPending() const;
  absl::Status status() const;
  uint64_t BytesSent(bool sync) const;

  // layer_sync_rounds.cc, the caller's side:
  std::shared_ptr<Round> NewRound(std::vector<int> layers);
  absl::Status StartExchange(std::vector<int> layers);
  absl::StatusOr<bool> Meet(int64_t patience_ns);
  void BeginTurns();
  // Lets the courier run up to this turn.
  void Allow(int turn);
  absl::Status StartBehind(std::vector<int> layers);
  absl::Status MergeSettled();
  absl::Status Settle();
  absl::Status SettleAll();
  void TakeBack(const Round& round);
  absl::Status StayForRound(bool* all);
  std::vector<int> LeftOver() const;
  // The courier's:
  using RoundJob = absl::Status (LayerSync::*)(Round&);
  // Its number; after the end: of the last.
  uint64_t Post(RoundJob job, std::shared_ptr<Round> round);
  absl::Status WaitFor(uint64_t job);
  absl::Status Drain();
  absl::Status RunJob(RoundJob job, Round& round);
  absl::Status Judge(Round& round);
  absl::Status RunAllowed(Round& round);
  absl::Status RunBehind(Round& round);
  // On a device, as many times as the round has turns.
  absl::Status RunNextTurn(Round& round);
  absl::Status SealFirst(Round& round);
  absl::Status MergeBehind(Round& round);
  void PostTurns(const std::shared_ptr<Round>& round);
  absl::Status RunTurn(Round& round, int allowed);
  void Publish(const Round& round, int layer);
  // From any thread; the first reason counts.
  void Fail(const absl::Status& why);

  // layer_sync_state.cc:
  void VisitState(StateVisitor& visitor);
  absl::Status CheckQuiet() const;
  absl::Status ComeToRest(int64_t timeout_ns);
  ArraysAt Place() const;
  absl::Status CheckRendezvous(CheckpointKind kind) const;
  absl::Status CheckLoaded(const StateList& state) const;
  absl::Status Restore(AllRanks& all, absl::string_view doing, int64_t timeout_ns,
                       absl::Status mine, StateList* state, absl::FunctionRef<absl::Status()> fill);
  AllRanks Everybody(int64_t timeout_ns) const;
  bool LacksAnchors() const { return !options_.plain() && !exchange_.anchors().exist(); }
  absl::Status CheckNothingBehind() const;
  absl::Status PrepareSnapshots();
  void ResumeBehind();
  void GoOnFrom(CheckpointKind kind);
  absl::Status End(const AllRanks& all, absl::Status status, absl::string_view doing);

  const std::shared_ptr<Mesh> mesh_;
  const std::shared_ptr<LayerShards> shards_;  // has what exchange_ refers to
  const EditOptions options_;
  const std::unique_ptr<const FragmentSchedule> schedule_;  // layers that do not train are in none
  const std::unique_ptr<SyncTrigger> trigger_;
  const int layers_;
  const std::unique_ptr<DeviceRoom> room_;  // null: on the host

  // The caller's:
  int64_t step_ = 0;   // g
  int64_t moves_ = 0;  // calls by which the run has gone on
  bool requested_ = false;
  int32_t microbatches_ = 0;  // training forwards of this step, from its first micro-batch on
  // Since the last exchange, or rendezvous: what the next standing says.
  int64_t base_step_ = 0;
  int64_t tokens_ = 0;
  bool counted_ = false;  // what tokens_ is; else nobody has said anything
  double metric_sum_ = 0, metric_weight_ = 0;
  uint64_t wishes_ = 0;
  bool left_ = false;
  // By layer, 1: though no step was made since the last rendezvous, this replica may have something
  // of its own there: it was about other layers, or a mixed merge has kept it.
  std::vector<int64_t> unshared_;
  int64_t last_sync_step_ = -1;                // when the last rendezvous began
  int64_t rendezvous_ = 0;                     // begun
  std::shared_ptr<Round> round_;               // the last that layers wait for, or had to
  std::deque<std::shared_ptr<Round>> behind_;  // those behind further steps that are not merged
  std::vector<int64_t>
      begun_behind_;  // by layer, when its round there began, or -1; for checkpoints
  // On a device, by layer: the job that ends its last exchange that layers wait for; 0: none.
  std::vector<uint32_t> jobs_;
  uint64_t reductions_ = 0;  // of the shards when the step began
  CallersArrays callers_;
  uint64_t exposed_ns_ = 0;
  uint64_t base_shard_ = 0, base_sync_ = 0;  // bytes sent while this was created

  // The caller's while nothing is under way, the courier's otherwise; the caller's part of exchange_ is said there.
  Exchange exchange_;
  int64_t syncs_ = 0;
  int64_t rejections_ = 0, rollbacks_ = 0;
  std::atomic<uint64_t> sync_ns_{0};

  mutable absl::Mutex mutex_;
  std::vector<LayerState> states_ ABSL_GUARDED_BY(mutex_);
  int allowed_ ABSL_GUARDED_BY(mutex_) = -1;  // the last turn of round_ that the courier may take
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Finished finished_ ABSL_GUARDED_BY(mutex_);
  std::vector<Standing> standings_ ABSL_GUARDED_BY(mutex_);
  int64_t met_ ABSL_GUARDED_BY(mutex_) = 0;  // rendezvous that are over

  // Last: their jobs use the rest. One of them is used.
  Courier courier_;
  std::unique_ptr<DeviceCourier> onto_;
};

}  // namespace entrain
