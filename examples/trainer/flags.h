// The command line of entrain-train, with all checks that one process can make alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "examples/trainer/model.h"

namespace trainer {

// The options of EDiT or of a gradient channel that the command line sets, by their names in
// entrain_edit_config_t or entrain_acco_config_t. The value of a choice is its index.
using GivenOptions = std::map<std::string, double>;

// The optimizer that each replica runs by itself.
struct InnerOptions {
  std::string optimizer = "adamw";  // "adamw", "sgd", "agd"
  double lr = 2e-3, min_lr = -1.0;  // min_lr below 0: a tenth of lr
  int64_t lr_warmup_steps = -1;     // below 0: a twentieth of the steps
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01, momentum = 0.0;
  bool nesterov = false;
  double agd_delta = 1e-14, agd_clip = 0.0;  // agd_clip 0: off
  std::string agd_decay = "decoupled";       // "decoupled", "fixed", "coupled"
  bool agd_amsgrad = false, agd_win = false;
  double grad_clip = 1.0;  // 0: off
};

// Sharpness-aware steps around the inner optimizer.
struct WsamOptions {
  std::string form = "off";            // "off", "coupled", "decoupled"
  std::string perturbation = "local";  // "local", "global"
  double rho = 0.05, gamma = 0.9, eps = 1e-12;
  bool adaptive = false;
};

// Emulated conditions: slow steps, slow replicas, wrong labels, unlike texts. They show how a method copes.
struct ConditionOptions {
  double step_ms = 0.0;              // least time of a step, without the wait for other replicas
  std::string straggler = "none";    // "random": another replica each step; "fixed"
  double straggler_ms = 0.0;         // time by which the step of the slow replica is longer
  int straggler_replica = 0;         // the slow replica if `straggler` is "fixed"
  int64_t shuffle_labels_every = 0;  // labels are shuffled in one interval of this many; 0: never
  int shuffle_labels_replica = 0;
  int64_t text_parts = 1;  // replica r draws from part r modulo text_parts of the training text
};

struct Options {
  std::string method = "edit";  // the name of a preset of kPresets (presets.h)
  std::string task = "text";    // "text", "digits"
  std::string data;
  int64_t steps = 0, tokens = 0;  // at most one of them is set; both 0: 1000 steps
  bool steps_together = false;    // a-edit: `steps` is a mean over the replicas
  uint64_t seed = 1;
  int shard_size = 1;
  ModelConfig model;
  int batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  std::string precision = "f32";  // "f32", "bf16"
  int shard_prefetch = 1;
  GivenOptions edit, channel;
  InnerOptions inner;
  WsamOptions wsam;
  ConditionOptions conditions;
  int64_t eval_interval = 0, val_batches = 32;
  int64_t sample = 0;
  std::string prompt;
  double sample_temperature = 0.7;
  std::string log, summary;
  std::vector<double> sharpness_rho;  // the rho at which the loss rise is measured after training
  // Checkpoints: the directory, the file to resume from, and the number of steps between two
  // checkpoints (0: only one at the end).
  std::string save_dir;
  std::string resume;                     // a file, or "latest": the newest in save_dir
  bool overwrite = false;                 // the run begins anew in a save_dir with checkpoints
  int64_t save_every = 0, keep = 0;       // keep: number of checkpoints that stay; 0: all
  std::string failed_saves = "end";       // "end", "continue"
  std::string checkpoint_kind = "exact";  // "portable", "exact"
  bool full_state_dict = true, rank0_only = true;
  std::vector<std::string> warnings;  // one line for each given flag without an effect

  bool by_channel() const;
  // Returns true if the run takes in newcomers (--admit): replicas, or with a channel single ranks.
  bool admits() const {
    const GivenOptions& options = by_channel() ? channel : edit;
    const auto given = options.find("admit");
    return given != options.end() && given->second != 0;
  }
  // Returns the number of bytes of text, or the number of images.
  int64_t tokens_per_microbatch() const {
    return int64_t{batch_size} * (task == "digits" ? 1 : model.length);
  }
  // Returns the number of tokens of a step of `ranks` ranks. With a channel a step may have more
  // tokens, and this is the smallest number. A step of acco has two rounds.
  int64_t tokens_per_step(int ranks) const;
  // Returns the number of optimizer steps for this many ranks.
  int64_t total_steps(int ranks) const;
};

// Parses the words after the program's name. Underscores in flag names count as dashes. Throws
// Error with exit code 2 and one line, or, for --help, with exit code 0 and the help text.
Options ParseFlags(std::vector<std::string> words);

}  // namespace trainer
