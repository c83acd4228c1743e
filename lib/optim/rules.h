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

// Lion (arXiv 2302.06675): p ← (1 − η λ) p − η sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g.  State: m.
std::unique_ptr<Optimizer> MakeLion(const OptimizerConfig& config);

// AGD (arXiv 2312.01658): the second moment is that of the change of the mean gradient, and delta
// decides, for each element at each step, between an adaptive step and one of SGD with momentum.
// With c₁ = 1 − β₁ᵗ, c₂ = 1 − β₂ᵗ:
//   decoupled: p ← (1 − η λ) p;  fixed: p ← (1 − λ) p;  coupled: g ← g + λ p
//   m ← β₁ m + (1 − β₁) g;  s = m / c₁ − m' / c₁', of this step and the one before, at first m / c₁
//   b ← β₂ b + (1 − β₂) s²;  v = b, or with amsgrad the largest b so far
//   u = m / max(√v, δ √c₂), clipped to [−clip, clip];  p ← p − η √c₂ / c₁ · u
// s is computed as (1 − β₁) / c₁ · (g − m' / c₁'), the same without the cancellation. With win
// (decay within an accelerated step), a = η √c₂ / c₁, and z = p before the first step:
//   z ← (z − a u) / (1 + λ a);  τ = 1 / (3 + 2 a λ);  p ← τ p − 2 τ a u + 2 τ z
// State: m, b, amsgrad's largest b, win's z.
std::unique_ptr<Optimizer> MakeAgd(const OptimizerConfig& config);

}  // namespace entrain
