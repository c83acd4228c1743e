// What contradicts in a command line whose words are right one by one.
#pragma once

#include "examples/trainer/flags.h"

namespace CLI {
class App;
}

namespace trainer {

constexpr int kUsageExit = 2;

// The groups of flags in which it matters which ones were given.
struct FlagGroups {
  const CLI::App *run = nullptr, *model = nullptr, *inner = nullptr, *wsam = nullptr,
                 *edit = nullptr, *channel = nullptr, *checkpoints = nullptr, *conditions = nullptr,
                 *results = nullptr;
};

// Whoever gives a flag expects an effect: refuses, with an Error of one line, those without. What
// contradicts within EDiT's options the library says.
void CheckFlags(const Options& options, const FlagGroups& groups);

}  // namespace trainer
