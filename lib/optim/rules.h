// The update rules behind MakeOptimizer, each in a source of its own. The hyper-parameters must
// have been checked.
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

// Lion (arXiv 2302.06675): p ← (1 − η λ) p − η sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g.
// State: m.
std::unique_ptr<Optimizer> MakeLion(const OptimizerConfig& config);

// AGD (arXiv 2312.01658): the second moment is that of the change of the mean gradient. For each
// element at each step, delta decides between an adaptive step and one of SGD with momentum.
// The numbers also mark the corresponding lines of the loops (lib/kernels/kernels_updates.inc, and
// the device's), which use these names. m' is m of the step before, c₁' = 1 − β₁ᵗ⁻¹:
//   (1)  decoupled: p ← (1 − η λ) p;  fixed: p ← (1 − λ) p;  coupled: g ← g + λ p
//   (2)  m ← β₁ m' + (1 − β₁) g
//   (3)  c₁ = 1 − β₁ᵗ,  c₂ = 1 − β₂ᵗ,  a = η √c₂ / c₁
//   (4)  s = m / c₁ − m' / c₁',  at t = 1 m / c₁;  computed as (1 − β₁) / c₁ · (g − m' / c₁'), which
//        is the same because β₁ / c₁ − 1 / c₁' = −(1 − β₁) / (c₁ c₁'), and does not cancel
//   (5)  b ← β₂ b + (1 − β₂) s²
//   (6)  v = b, with amsgrad the largest b so far
//   (7)  d = max(√v, δ √c₂)
//   (8)  u = m / d, clipped to [−clip, clip]
//   (9)  p ← p − a u
// With win (decay within an accelerated step) instead of (1) and (9), z = p before the first step:
//   (10) z ← (z − a u) / (1 + a λ)
//   (11) p ← τ p − 2 τ a u + 2 τ z,  τ = 1 / (3 + 2 a λ)
// State: m, b, amsgrad's largest b, win's z.
std::unique_ptr<Optimizer> MakeAgd(const OptimizerConfig& config);

}  // namespace entrain
