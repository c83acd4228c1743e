// The update rules of MakeOptimizer, which must have checked the hyper-parameters.
#pragma once

#include <memory>

#include "lib/optim/optimizer.h"

namespace entrain {

// SGD: b ← μ b + (g + λ p), in the first step b ← g + λ p;  p ← p − η b.
// With Nesterov's look-ahead: p ← p − η ((g + λ p) + μ b).
// State: b; none if μ = 0.
std::unique_ptr<Optimizer> MakeSgd(const OptimizerConfig& config);

// AdamW: p ← (1 − η λ) p;  m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;
// p ← p − η / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε).
// State: m, v.
std::unique_ptr<Optimizer> MakeAdamw(const OptimizerConfig& config);

// Lion (arXiv 2302.06675): p ← (1 − η λ) p − η sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g.
// State: m.
std::unique_ptr<Optimizer> MakeLion(const OptimizerConfig& config);

// AGD (arXiv 2312.01658). The second moment is that of the change of the mean gradient. δ decides
// for each element and each step: an adaptive step, or a step of SGD with momentum.
//
// The numbers in parentheses are repeated in the kernels (lib/kernels/kernels_updates.inc and
// lib/device/cuda/loops_updates.h). The kernels use the same names. m' is m of the previous step,
// and c₁' = 1 − β₁ᵗ⁻¹.
//   (1)  decoupled: p ← (1 − η λ) p;  fixed: p ← (1 − λ) p;  coupled: g ← g + λ p
//   (2)  m ← β₁ m' + (1 − β₁) g
//   (3)  c₁ = 1 − β₁ᵗ,  c₂ = 1 − β₂ᵗ,  a = η √c₂ / c₁
//   (4)  s = m / c₁ − m' / c₁';  s = m / c₁ at t = 1. Computed as (1 − β₁) / c₁ · (g − m' / c₁'),
//        which has no cancellation. The two are equal because
//        β₁ / c₁ − 1 / c₁' = −(1 − β₁) / (c₁ c₁')
//   (5)  b ← β₂ b + (1 − β₂) s²
//   (6)  v = b; with amsgrad: v = the largest b of all steps so far
//   (7)  d = max(√v, δ √c₂)
//   (8)  u = m / d, clipped to [−clip, clip]
//   (9)  p ← p − a u
// With win (weight decay integrated into an accelerated step), (10) and (11) replace (1) and (9).
// Before the first step, z = p.
//   (10) z ← (z − a u) / (1 + a λ)
//   (11) p ← τ p − 2 τ a u + 2 τ z,  τ = 1 / (3 + 2 a λ)
// State: m, b; with amsgrad: the largest b; with win: z.
std::unique_ptr<Optimizer> MakeAgd(const OptimizerConfig& config);

}  // namespace entrain
