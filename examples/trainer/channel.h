// A gradient channel: acco, dpu, wp or zero1. This file is the only one that knows the
// entrain_acco_* calls. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/inner_optimizer.h"
#include "examples/trainer/session.h"
#include "examples/trainer/whole_model.h"

namespace trainer {

class Channel {
 public:
  // All parameters of `model`, in the precision of the options; every rank starts with rank 0's.
  // They, the options and the optimizer, whose arrays the channel keeps itself, must outlive the
  // object; all are on the device. Collective. Throws Error with the library's sentence when
  // options contradict.
  Channel(const Options& options, Session* session, const InnerOptimizer& inner,
          const Device& device, WholeModel* model);

  // `count` f32 elements to which gradients are added, until Install takes them.
  float* gradients() const { return gradients_; }
  // Those of one micro-batch have been, of so many tokens.
  void Add(int64_t tokens);
  // Whether it is time for Install.
  bool Ready() const;
  // Takes new parameters, and sends off what has been added.
  void Install();
  // As of the last Install: so the same on all ranks, when it comes to rounds, commits and tokens.
  entrain_acco_info_t info() const;

  // The number of this rank's that checkpoints hold, too: exactly, or, when another set of ranks
  // goes on, not at all.
  void AddCursor(int64_t* cursor);
  // After an Install. Collective.
  void Save(const std::string& name);
  // Collective. Throws Error with the same line on all ranks, and nothing has changed then.
  void Load();

 private:
  static double Schedule(void* self, int64_t progress);

  const Options& options_;
  const int64_t steps_, tokens_per_step_;
  AccoHandle acco_;
  float* gradients_ = nullptr;
};

}  // namespace trainer
