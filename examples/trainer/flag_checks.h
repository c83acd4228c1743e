// Finds contradictions between flags that are valid by themselves.
#pragma once

#include "examples/trainer/flags.h"

namespace CLI {
class App;
}

namespace trainer {

constexpr int kUsageExit = 2;

// Groups of flags. The checks look up in them which flags the user has given.
struct FlagGroups {
  const CLI::App *run = nullptr, *model = nullptr, *inner = nullptr, *wsam = nullptr,
                 *both = nullptr, *edit = nullptr, *channel = nullptr, *checkpoints = nullptr,
                 *conditions = nullptr, *results = nullptr;
};

// Throws Error with one line for a flag without an effect, because a user expects that each flag
// has an effect. The library itself checks EDiT's options for contradictions.
void CheckFlags(const Options& options, const FlagGroups& groups);

}  // namespace trainer
