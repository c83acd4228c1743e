// A gradient channel: acco, dpu, wp or zero1. No other unit uses the entrain_acco_* calls. Thread
// safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/inner_optimizer.h"
#include "examples/trainer/session.h"
#include "examples/trainer/whole_model.h"

namespace trainer {

class Channel {
 public:
  // Collective. The channel has all parameters of `model`, in the precision of the options. Every
  // rank starts with the parameters of rank 0. The channel keeps the optimizer's arrays itself. Options,
  // optimizer and model must outlive the object. If this rank joins other ranks, blocks until they take it in. Throws Error with the library's message
  // if options contradict each other.
  Channel(const Options& options, const Task& task, Session* session, const InnerOptimizer& inner,
          WholeModel* model);

  // Returns `count` f32 elements, to which the caller adds gradients until Install takes them.
  float* gradients() const { return gradients_; }
  // Counts one micro-batch of `tokens` tokens. Its gradients must have been added before.
  void Add(int64_t tokens);
  // Returns true if it is time for Install.
  bool Ready() const;
  // Takes new parameters, and starts the exchange of the added gradients.
  void Install();
  // Returns the state after the last Install. Rounds, commits and tokens are equal on all ranks.
  entrain_acco_info_t info() const;
  // Returns the ranks that were lost before the last Install's round.
  std::vector<int> Lost() const;

  // Adds a number of this rank to the checkpoints. Exact checkpoints keep the number. If another
  // set of ranks loads a checkpoint, the number is not restored.
  void AddCursor(int64_t* cursor);
  // entrain_acco_reduce. Must follow an Install. Collective.
  entrain_status_t Reduce(const void* in, void* out, size_t count, entrain_dtype_t dtype,
                          entrain_op_t op, int32_t* rank, int32_t* ranks);
  // Saves a checkpoint. Must follow an Install. Collective.
  void Save(const std::string& name);
  // Loads a checkpoint. Collective. On failure, throws Error with the same message on all ranks,
  // and changes nothing.
  void Load(const Options& options, const std::string& file);

 private:
  static double Schedule(void* self, int64_t progress);

  const Options& options_;
  const int64_t steps_, tokens_per_step_;
  AccoHandle acco_;
  float* gradients_ = nullptr;
};

}  // namespace trainer
