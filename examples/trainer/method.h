// How replicas stay together. ddp: gradients are averaged over all ranks at every step, and there
// is nothing else to do. All others: entrain_edit_* exchanges pseudo-gradients (post-local-sgd:
// parameters) every H steps, a-edit by time.
// This file is the only one that knows the EDiT calls. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"

namespace trainer {

class Method {
 public:
  // `shard` must outlive the object. Collective. Throws Error with the library's sentence when
  // options contradict.
  Method(const Options& options, int layers, entrain_mesh_t* mesh, entrain_shard_t* shard);

  // Before each forward pass; true when an exchange has begun.
  bool BeginForward(bool training, bool first_microbatch);
  // Before a layer is gathered.
  void WaitLayer(int layer);
  // After the inner optimizer's step: the tokens of this rank in it, and their mean loss.
  void EndStep(int64_t tokens, double loss);
  // Waits for the exchange that has begun.
  void WaitAll(int layers);
  // After the last step: exchanges whatever has not been exchanged, so that all replicas hold the
  // consensus; a-edit: until all others are done too. Does nothing when they do anyhow (ddp, or
  // still in warm-up); whether it did. Collective.
  bool Finish(int layers);

  // What else a checkpoint holds: `count` elements at `data`, lent for good.
  void AddState(const char* name, float* data, size_t count);
  // Asks for a checkpoint where replicas do not meet at steps that all know (a-edit): all see at
  // the same rendezvous that somebody wants it, and that nobody is leaving, who would not take
  // part.
  void WishCheckpoint();
  bool CheckpointIsDue(int replicas) const;
  bool by_time() const { return by_time_; }
  // Whether exchanges run behind further steps; otherwise layers wait for them.
  bool late() const { return late_; }
  // Right after an exchange. Collective.
  void Save(const Options& options, const std::string& name);
  // Collective. Throws Error with the same line on all ranks, and nothing has changed then.
  void Load(const Options& options);
  // Optimizer steps made, by this run and the one it goes on from.
  int64_t steps() const { return Info().steps; }

  // The interval between exchanges that a step is in after its BeginForward, from 1; 0: in warm-up,
  // or ddp.
  int64_t interval() const;
  // What each replica had made when they last met (a-edit); empty before they have.
  std::vector<int64_t> StepsWhenMet(int replicas) const;

  // Of this rank's anchors as of the last exchange; 0: none. On a GPU, where exchanges go on behind
  // the host, it waits for one whose layers have all been waited for.
  uint64_t anchor_checksum() const;
  // What the replicas have agreed on so far: exchanges, and how often this one's layers were left
  // out of one.
  int64_t syncs() const { return edit_ ? Info().syncs : 0; }
  int64_t rejections() const { return edit_ ? Info().rejections : 0; }
  // Time spent waiting in the calls above, and payload bytes sent for exchanges, since creation.
  double waited_s() const { return waited_s_; }
  uint64_t bytes_sent_shard() const;
  uint64_t bytes_sent_sync() const;

 private:
  entrain_edit_info_t Info() const;
  void AwaitExchange() const;

  EditHandle edit_;  // null: ddp
  const bool on_gpu_;
  bool by_time_ = false, late_ = false;
  int64_t interval_steps_ = 0;  // H
  int64_t warmup_steps_ = 0;
  int64_t exchanges_ = 0;  // that have begun
  double waited_s_ = 0.0;
};

}  // namespace trainer
