// The method by which replicas stay together. With ddp, gradients are averaged over all ranks at
// every step, and there is nothing else to do. With all other methods, entrain_edit_* exchanges
// data between replicas: every H steps, or with a-edit at intervals of time. The data are
// pseudo-gradients. With post-local-sgd the data are parameters.
//
// No other unit uses the EDiT calls. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

class Method {
 public:
  // `session` and `shard` must outlive the object. Collective. If session->joins(), this replica
  // joins running replicas. Throws Error with the library's message if options contradict each
  // other.
  Method(const Options& options, const Task& task, Session* session, entrain_shard_t* shard);

  // Must be called before each forward pass. Returns true if an exchange has begun, or, if
  // decoupled, if an exchange with this replica's steps has come since the last call.
  bool BeginForward(bool training, bool first_microbatch);
  // Must be called before a layer is gathered.
  void WaitLayer(int layer);
  // Must be called after the inner optimizer's step, with this rank's tokens of the step and their
  // mean loss.
  void EndStep(int64_t tokens, double loss);
  // Waits for the exchange that has begun.
  void WaitAll(int layers);
  // Must be called after the last step. Makes a last exchange, so that all replicas hold the
  // consensus. With a-edit, continues until all other replicas have finished too. Does nothing, and
  // returns false, if replicas already hold the consensus (ddp, or still in warm-up). Collective.
  bool Finish(int layers);

  // Adds `count` elements at `data` to the checkpoints. `data` must outlive the object.
  void AddState(const char* name, float* data, size_t count);
  // entrain_edit_reduce. Collective.
  entrain_status_t Reduce(const void* in, void* out, size_t count, entrain_dtype_t dtype,
                          entrain_op_t op, int32_t* rank, int32_t* ranks);
  // Asks for a checkpoint. Used with a-edit, because its replicas do not know in advance at which
  // steps they have a rendezvous. CheckpointIsDue then returns true on all replicas at the same
  // rendezvous, if no replica is leaving. A replica that leaves would not take part in the
  // checkpoint.
  void WishCheckpoint();
  bool CheckpointIsDue(int replicas) const;
  bool by_time() const { return by_time_; }
  // Returns true if an exchange may go without some replicas (--quorum, --round-deadline). Then all
  // replicas come together only where RequestExchange was called on all of them before
  // BeginForward.
  bool closes_early() const { return closes_early_; }
  // Returns true if no replica waits for an exchange: closes_early with --overlap-steps.
  bool decoupled() const { return closes_early_ && late_; }
  void RequestExchange();
  // Returns true if exchanges continue during later steps. Otherwise a layer waits for its
  // exchange.
  bool late() const { return late_; }
  // Saves a checkpoint. Must follow an exchange. Collective.
  void Save(const Options& options, const std::string& name);
  // Loads a checkpoint. Collective. On failure, throws Error with the same message on all ranks,
  // and changes nothing.
  void Load(const Options& options, const std::string& file);
  // Returns the number of optimizer steps, including those of the run that this run has resumed.
  int64_t steps() const { return Info().steps; }

  // Returns the number of the interval between exchanges that the current step is in, counted from
  // 1. Returns 0 in warm-up, and for ddp. Valid after BeginForward of the step.
  int64_t interval() const;
  // For a-edit. `replicas`: how many replicas took part in the last rendezvous (0: none yet).
  // `steps`: the sum of their steps. `own`: the steps of this replica.
  struct Met {
    int64_t replicas = 0, steps = 0, own = 0;
  };
  Met StepsWhenMet(int replicas, int own) const;

  // Returns the number of steps at the last exchange. A replica that has joined: at that of the others
  // before it joined.
  int64_t last_exchange() const { return Info().last_sync_step; }
  // Returns true if there are exchanges from now on: not with ddp, and not in warm-up.
  bool exchanges() const { return edit_ != nullptr && Info().in_warmup == 0; }

  // Returns true if replicas that are lost do not end the run (--on-loss finish).
  bool goes_on_after_losses() const { return goes_on_after_losses_; }
  // Return the number of this replica, and the number of replicas.
  int replica() const { return edit_ ? Info().replica : 0; }
  int replicas() const { return edit_ ? Info().replicas : 0; }
  // Returns the numbers of the replicas that were lost, in the order of the losses.
  std::vector<int> Lost() const;

  // Returns the checksum of this rank's anchors after the last exchange; 0: none.
  uint64_t anchor_checksum() const;
  // Return the number of exchanges, and the number of rejected layers of this replica.
  int64_t syncs() const { return edit_ ? Info().syncs : 0; }
  int64_t rejections() const { return edit_ ? Info().rejections : 0; }
  // Return the time spent waiting in the calls above, and the payload bytes sent for exchanges,
  // since creation.
  double waited_s() const { return waited_s_; }
  uint64_t bytes_sent_shard() const;
  uint64_t bytes_sent_sync() const;

 private:
  void NoteInfo();
  entrain_edit_info_t Info() const;
  std::optional<entrain_edit_replica_t> Said(int replica) const;

  EditHandle edit_;  // null: ddp
  bool by_time_ = false, closes_early_ = false, late_ = false, goes_on_after_losses_ = false;
  int64_t interval_steps_ = 0;  // H
  int64_t warmup_steps_ = 0;
  int64_t exchanges_ = 0;   // exchanges that have begun
  int64_t taken_part_ = 0;  // decoupled: rounds with this replica
  double waited_s_ = 0.0;
};

}  // namespace trainer
