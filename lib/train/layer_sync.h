// EDiT: when replicas exchange, and how an exchange of layer l + 1 hides under the computation of
// layer l. Behind entrain_edit_*; include/entrain/train.h has the contract of each function, and
// exchange.h the arithmetic.
//
//   caller    begin_forward | wait(0)      compute 0       wait(1)     compute 1
//   courier   Judge, 0      |.......| layer 1, gather(1) |       | layer 2, gather(2)
//
// The courier is allowed to come `prefetch` layers further than the layer last waited for; 0: each
// layer is exchanged in its own wait. Gathers of layers still in exchange are held back and start
// on the courier, the moment the layer is done.
//
// Every error begins with "edit: "; once an exchange has failed, it is told to all ranks and every
// later call fails with it.
//
// Thread safety: one thread at a time, but for the LayerGate part.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/comm/mesh.h"
#include "lib/train/courier.h"
#include "lib/train/edit_options.h"
#include "lib/train/exchange.h"
#include "lib/train/layer_gate.h"
#include "lib/train/layer_shards.h"
#include "lib/train/trigger.h"

namespace entrain {

struct EditInfo {
  int64_t steps = 0, syncs = 0, last_sync_step = -1;
  uint64_t anchor_checksum = 0;
  uint64_t exposed_ns = 0, sync_ns = 0;
  uint64_t bytes_sent_shard = 0, bytes_sent_sync = 0;
  bool in_warmup = false;
};

class LayerSync final : public LayerGate {
 public:
  // Collective; compares the options of all ranks. `shards`: bound, made on `mesh`, outlives this.
  static absl::StatusOr<std::unique_ptr<LayerSync>> Create(std::shared_ptr<Mesh> mesh,
                                                           LayerShards* shards,
                                                           const EditOptions& options);
  // Ends an exchange under way, on all ranks.
  ~LayerSync() override;

  // True: an exchange has begun.
  absl::StatusOr<bool> BeginForward(bool training, bool first_microbatch);
  absl::Status WaitLayer(int layer);
  absl::Status EndStep();
  absl::Status RequestSync();

  EditInfo info() const;
  // slab().count() elements of kF32, kF64, kBF16 or kF16.
  absl::Status CopyAnchor(void* anchor, DType to = DType::kF32) const;
  // kFailedPrecondition before the first exchange and during one. Of a layer that trains.
  absl::StatusOr<LayerReport> Report(int layer) const;

  // LayerGate
  void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) override;
  absl::Status WaitOpen(int layer) override { return WaitLayer(layer); }

 private:
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;
  struct LayerState {
    bool pending = false;  // its exchange is under way or yet to begin
    std::vector<Continuation> then;
  };
  // The part of EditInfo that changes when an exchange ends.
  struct Finished {
    int64_t syncs = 0, last_sync_step = -1;
    uint64_t anchor_checksum = 0;
  };

  LayerSync(std::shared_ptr<Mesh> mesh, LayerShards* shards, const EditOptions& options,
            Exchange::Groups groups);
  absl::Status CheckLayer(int layer) const;
  absl::Status CountMicrobatch(bool first);
  absl::StatusOr<bool> StartIfDue();
  absl::Status StartFirst();
  absl::Status StartExchange();
  absl::Status Block(int layer);
  // Lets the courier run up to this turn.
  void Allow(int turn);
  int FirstPending() const;
  absl::Status status() const;
  uint64_t BytesSent(bool sync) const;

  // On the courier:
  void Post(absl::Status (LayerSync::*job)());
  absl::Status Judge();
  absl::Status RunAllowed();
  absl::Status RunTurn(int allowed);
  void Publish(int layer, bool last);
  // From any thread; the first reason counts.
  void Fail(const absl::Status& why);

  const std::shared_ptr<Mesh> mesh_;
  LayerShards* const shards_;
  const EditOptions options_;
  const std::unique_ptr<SyncTrigger> trigger_;
  const int layers_;
  const std::vector<int>& order_;  // turn -> layer: those that train; others are never exchanged

  // The caller's:
  int64_t step_ = 0;  // g
  bool requested_ = false;
  int32_t microbatches_ = 0;  // training forwards of this step, from its first micro-batch on
  uint64_t exposed_ns_ = 0;
  uint64_t base_shard_ = 0, base_sync_ = 0;  // bytes sent while this was created

  // The caller's while nothing is under way, the courier's otherwise:
  Exchange exchange_;
  int next_begin_ = 0, next_finish_ = 0;  // turns
  int64_t last_sync_step_ = -1;           // as of the last one begun
  int64_t round_ = 0;
  std::atomic<uint64_t> sync_ns_{0};

  mutable absl::Mutex mutex_;
  std::vector<LayerState> states_ ABSL_GUARDED_BY(mutex_);
  int allowed_ ABSL_GUARDED_BY(mutex_) = -1;  // the last turn that the courier may take
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Finished finished_ ABSL_GUARDED_BY(mutex_);

  Courier courier_;  // last: its jobs use the rest
};

}  // namespace entrain
