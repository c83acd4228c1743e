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

struct Preset {
  const char* name;  // for kReplicas also that of the library's preset
  Engine engine;
  int32_t acco_method = 0;  // for kChannel
};

constexpr Preset kPresets[] = {
    {"ddp", Engine::kEveryStep},
    {"post-local-sgd", Engine::kReplicas},
    {"diloco", Engine::kReplicas},
    {"streaming-diloco", Engine::kReplicas},
    {"decoupled-diloco", Engine::kReplicas},
    {"co2", Engine::kReplicas},
    {"edit", Engine::kReplicas},
    {"a-edit", Engine::kReplicas},
    {"sparseloco", Engine::kReplicas},
    {"zero1", Engine::kChannel, ENTRAIN_ACCO_ZERO1},
    {"acco", Engine::kChannel, ENTRAIN_ACCO},
    {"dpu", Engine::kChannel, ENTRAIN_ACCO_DPU},
    {"wp", Engine::kChannel, ENTRAIN_ACCO_WP},
};

// Returns the row of `name`, which must be in the table.
const Preset& PresetOf(const std::string& name);
// Return the options of EDiT, and of a gradient channel, as the library describes them.
using DescribedOptions = std::vector<entrain_option_t>;
DescribedOptions OptionsOfEdit();
DescribedOptions OptionsOfChannel();
// Returns the value that the option has in a config.
double ValueIn(const entrain_edit_config_t& config, const entrain_option_t& option);
// Writes the given options to the config that `described` describes.
void SetGiven(const GivenOptions& given, const DescribedOptions& described, void* config);
// Returns the options of EDiT for a model with `layers` layers. Does not set the options of the
// shard. Throws Error for a value out of range.
entrain_edit_config_t ConfigOf(const Options& options, int layers);
// Returns what makes the run what it is, for the field `identity` of the library's configs.
// `entropy`: of the data's symbols; it stands for the data.
std::string IdentityOf(const Options& options, double entropy);

}  // namespace trainer
