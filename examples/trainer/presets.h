// The table of methods (kPresets), and the options of EDiT that follow from a method and a command
// line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <entrain/train.h>

#include "examples/trainer/flags.h"

namespace trainer {

// The part of the library that exchanges gradients and parameters.
enum class Engine {
  kEveryStep,  // gradients are averaged over all ranks at every step
  kReplicas,   // EDiT: entrain_edit_*
  kChannel,    // a gradient channel: entrain_acco_*
};

// A value of an option of EDiT. `option` is the name of the option's field.
struct Setting {
  const char* option;
  double value;
};
// Placeholders for values that depend on the run.
constexpr double kInterval = -1;    // stands for local_sgd_sync_interval
constexpr double kALayerEach = -2;  // stands for the number of layers, at most 8

// A setting applies if it has an effect together with the settings before it, and if the command
// line does not set the option.
struct Preset {
  const char* name;
  Engine engine;
  int32_t acco_method = 0;    // for kChannel
  Setting settings[16] = {};  // for kReplicas; unused entries have no option
};

constexpr Preset kPresets[] = {
    {"ddp", Engine::kEveryStep},
    {"post-local-sgd", Engine::kReplicas, 0, {{"local_sgd_sync_interval", 16}}},
    {"diloco",
     Engine::kReplicas,
     0,
     {{"local_sgd_sync_interval", 16},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1}}},
    {"streaming-diloco",
     Engine::kReplicas,
     0,
     {{"local_sgd_sync_interval", 16},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"overlap_steps", 1},
      {"overlap_merge", ENTRAIN_MERGE_MIX},
      {"fragments", kALayerEach},
      {"fragment_pattern", ENTRAIN_FRAGMENT_STRIDED},
      {"wire_format", ENTRAIN_WIRE_INT4}}},
    // arXiv 2604.21428. Here the replicas themselves are the paper's synchroniser
    // (background_rounds.h). A replica that is late keeps its steps for its next round. overlap_mix:
    // docs/lab/quality.md.
    {"decoupled-diloco",
     Engine::kReplicas,
     0,
     {{"local_sgd_sync_interval", 16},
      {"reducer", ENTRAIN_REDUCER_LINEAR},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"overlap_steps", kInterval},
      {"overlap_merge", ENTRAIN_MERGE_MIX},
      {"overlap_mix", 0.25},
      {"fragments", kALayerEach},
      {"fragment_pattern", ENTRAIN_FRAGMENT_STRIDED},
      {"quorum", 1},
      {"round_deadline", 10},
      {"late", ENTRAIN_LATE_CARRY},
      {"use_step_weight", 1},
      {"step_weight_ratio", 1},
      {"silence", 1}}},
    {"co2",
     Engine::kReplicas,
     0,
     {{"local_sgd_sync_interval", 16},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_lr", 1},
      {"outer_momentum", 0.2},
      {"overlap_steps", kInterval},
      {"overlap_merge", ENTRAIN_MERGE_RESTART},
      {"staleness_penalty", 1},
      {"outer_momentum_clip", 10}}},
    {"edit",
     Engine::kReplicas,
     0,
     {{"local_sgd_sync_interval", 16},
      {"reducer", ENTRAIN_REDUCER_LINEAR},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"pseudo_gradnorm_reduce", 1},
      {"clip_pseudo_grad", 10},
      {"skip_anomaly", 1}}},
    {"a-edit",
     Engine::kReplicas,
     0,
     {{"use_async", 1},
      {"reducer", ENTRAIN_REDUCER_LINEAR},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"pseudo_gradnorm_reduce", 1},
      {"clip_pseudo_grad", 10},
      {"skip_anomaly", 1}}},
    // SparseLoCo, arXiv 2508.15706: sends 1/64 of the elements in two bits each. The unsent part
    // decays and takes the place of momentum.
    {"sparseloco",
     Engine::kReplicas,
     0,
     {{"local_sgd_sync_interval", 16},
      {"reducer", ENTRAIN_REDUCER_GTA},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_lr", 1},
      {"outer_momentum", 0},
      {"sparsification_method", ENTRAIN_SPARSIFY_MAGNITUDE},
      {"sparsify_chunk", 4096},
      {"density", 1.0 / 64},
      {"wire_format", ENTRAIN_WIRE_INT2},
      {"wire_block", 64},
      {"error_feedback", 1},
      {"error_decay", 0.95}}},
    {"zero1", Engine::kChannel, ENTRAIN_ACCO_ZERO1},
    {"acco", Engine::kChannel, ENTRAIN_ACCO},
    {"dpu", Engine::kChannel, ENTRAIN_ACCO_DPU},
    {"wp", Engine::kChannel, ENTRAIN_ACCO_WP},
};

// Returns the row of `name`, which must be in the table.
const Preset& PresetOf(const std::string& name);
// Return the options of EDiT, and of a gradient channel, as the library describes them.
using DescribedOptions = std::vector<entrain_edit_option_t>;
DescribedOptions OptionsOfEdit();
DescribedOptions OptionsOfChannel();
// Writes the given options to the config that `described` describes.
void SetGiven(const GivenOptions& given, const DescribedOptions& described, void* config);
// Returns the options of EDiT for a model with `layers` layers. Does not set the options of the
// shard. Throws Error for a value out of range.
entrain_edit_config_t ConfigOf(const Options& options, int layers);
// Returns what makes the run what it is, for the field `identity` of the library's configs.
// `entropy`: of the data's symbols; it stands for the data.
std::string IdentityOf(const Options& options, double entropy);

}  // namespace trainer
