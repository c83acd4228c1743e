// The table of methods: the gradients that each round takes, and the result that it computes. G:
// the gradients added since the previous round. acc: the accumulator. A, B: the two halves of a
// batch of acco.
//
//   method  round            takes   makes                                                    acc then  install
//   any     warm-up          G       commit    theta  = Opt(theta, G / N_G)                   empty     waits for this round
//   zero1   each             G       commit    theta  = Opt(theta, G / N_G)                   empty     waits for this round
//   dpu     each             G       commit    theta  = Opt(theta, G / N_G)                   empty     takes the round before
//   wp      each             G       predict   a commit, and theta^ = Opt(theta, G / N_G)     empty     takes the round before
//                                              once more, a preview
//   acco    acc was empty    A       estimate  theta~ = Opt(theta, A / N_A), a preview        A         takes the round before
//           A is in acc      A + B   commit    theta  = Opt(theta, (A + B) / (N_A + N_B))     empty     takes the round before
//
// A preview leaves no trace: neither theta nor the state of Opt changes. ShardStep has a function
// for each of the three kinds.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>

#include "lib/train/gradient_channel_options.h"

namespace entrain {

enum class RoundKind { kEstimate, kCommit, kPredict };

// Returns true if a round of this kind moves theta. Such a round spends the gradients and leaves
// acc empty.
inline bool Commits(RoundKind kind) {
  return kind != RoundKind::kEstimate;
}

class DelayRule {
 public:
  DelayRule(DelayMethod method, int64_t warmup_rounds)
      : method_(method), warmup_rounds_(warmup_rounds) {}

  // Returns true if install waits for round number `round`, counted from 0.
  bool Synchronous(int64_t round) const {
    return method_ == DelayMethod::kZero1 || round < warmup_rounds_;
  }
  // Moves on to round number `round`, and returns its kind.
  RoundKind Next(int64_t round);
  // Returns the kind of the last round; kCommit before the first round.
  RoundKind kind() const { return kind_; }
  // Returns true if acc holds half A of a batch, with which an estimate was made.
  bool half_held() const { return kind_ == RoundKind::kEstimate; }
  // Continues from a loaded state. `half_held` is true if the last round left half a batch in acc,
  // and false if it left acc empty.
  void Restore(bool half_held) { kind_ = half_held ? RoundKind::kEstimate : RoundKind::kCommit; }

 private:
  const DelayMethod method_;
  const int64_t warmup_rounds_;
  RoundKind kind_ = RoundKind::kCommit;
};

}  // namespace entrain
