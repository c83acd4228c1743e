// The update rules behind MakeOptimizer, each in a source of its own. The hyper-parameters have
// been checked.
#pragma once

#include <memory>

#include "lib/optim/optimizer.h"

namespace entrain {

// b ← μ b + (g + λ p), the first time b ← g + λ p;  p ← p − η b, or p − η ((g + λ p) + μ b) with
// Nesterov's look-ahead. State: b, unless μ = 0.
std::unique_ptr<Optimizer> MakeSgd(const OptimizerConfig& config);

// p ← (1 − η λ) p;  m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;
// p ← p − η / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε).  State: m, v.
std::unique_ptr<Optimizer> MakeAdamw(const OptimizerConfig& config);

}  // namespace entrain
