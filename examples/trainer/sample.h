// Text that the language model writes.
#pragma once

#include <string>
#include <vector>

#include "examples/trainer/data.h"
#include "examples/trainer/flags.h"

namespace trainer {

// Continues the prompt by `options.sample` bytes drawn from the model. The result is a function of
// the parameters and the seed.
std::string Sample(const Options& options, const Text& text,
                   const std::vector<std::vector<float>>& layers);

}  // namespace trainer
