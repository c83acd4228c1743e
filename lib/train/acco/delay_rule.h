// Decides the kind of each round. The table has, for each method (option `method`), the gradients
// that a round takes and the result that it computes:
//   G     gradients added since the previous round      N_G   number of micro-batches in G
//   A, B  gradients of the two halves of a batch        acc   accumulator
//   Opt   step of the optimizer
//
//   method  round            takes   makes                                                    acc then  install
//   any     warm-up          G       commit    theta  = Opt(theta, G / N_G)                   empty     waits for this round
//   zero1   each             G       commit    theta  = Opt(theta, G / N_G)                   empty     waits for this round
//   dpu     each             G       commit    theta  = Opt(theta, G / N_G)                   empty     takes the round before
//   wp      each             G       predict   theta  = Opt(theta, G / N_G), a commit; then   empty     takes the round before
//                                              theta^ = Opt(theta, G / N_G), a preview
//   acco    acc was empty    A       estimate  theta~ = Opt(theta, A / N_A), a preview        A         takes the round before
//           A is in acc      A + B   commit    theta  = Opt(theta, (A + B) / (N_A + N_B))     empty     takes the round before
//
// A preview changes neither theta nor the state of Opt. ShardStep has a function for each kind of
// round.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>

#include "lib/train/acco/gradient_channel_options.h"

namespace entrain {

enum class RoundKind { kEstimate, kCommit, kPredict };

// Returns true if a round of this kind changes theta. Such a round uses up the gradients and leaves
// acc empty.
inline bool Commits(RoundKind kind) {
  return kind != RoundKind::kEstimate;
}

class DelayRule {
 public:
  DelayRule(DelayMethod method, int64_t warmup_rounds)
      : method_(method), warmup_rounds_(warmup_rounds) {}

  // Returns true if Install waits for the round that it starts. `round` is the number of this
  // round, counted from 0.
  bool Synchronous(int64_t round) const {
    return method_ == DelayMethod::kZero1 || round < warmup_rounds_;
  }
  // Begins round number `round`, and returns its kind.
  RoundKind Next(int64_t round);
  // Returns the kind of the last round; kCommit before the first round.
  RoundKind kind() const { return kind_; }
  // Returns true if the last round was an estimate. Then acc contains half A of a batch.
  bool half_held() const { return kind_ == RoundKind::kEstimate; }
  // Continues from a loaded state. `half_held` is true if acc contains half A of a batch, and false
  // if acc is empty.
  void Restore(bool half_held) { kind_ = half_held ? RoundKind::kEstimate : RoundKind::kCommit; }

 private:
  const DelayMethod method_;
  const int64_t warmup_rounds_;
  RoundKind kind_ = RoundKind::kCommit;
};

}  // namespace entrain
