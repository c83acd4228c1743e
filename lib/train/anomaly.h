// Judges the norms of one layer's pseudo-gradients over time. A norm far above the earlier norms of
// this replica is an outlier: the replica is then left out of that exchange of the layer.
//
// The detector keeps the mean mu and the variance v of the accepted norms, each weighed by (1 -
// alpha)^age, and a ring Z of the last W z-scores. n is the sum of the weights; it grows from 1 to
// 1 / alpha:
//
//   ingest(x)    c ← c + 1;  n ← 1 + (1 - alpha) n;  d = x - mu;  mu ← mu + d / n;  v ← (1 - 1/n) (v + d^2 / n);  push z(x)
//   z(x)         (x - mu) / sigma,  sigma = max(sqrt(v / (1 - q)), mu / 100)
//   outlier(x)   c >= W  and  z(x) > kappa max(1, stdev(Z)) s
//
// q is the sum of the squared weights divided by n^2. The factor 1 - q removes the bias of v, and
// nu = 1 / q - 1 is the number of degrees of freedom of v. s = sqrt(1 + q) (1 + (min(kappa, 4)^2 +
// 1) / (4 nu)) widens the limit by the uncertainty of mu and sigma, so that the detector rejects
// normal noise equally rarely after a short warm-up and after a long one. docs/lab/detector.md
// derives it.
//
// c counts from the first norm that is not zero. Rejected norms are not ingested, so that one spike
// does not make the detector insensitive. A lasting change of level would then be rejected for
// ever; therefore `restart_after` rejections in a row restart the warm-up, while mu, v and n keep
// their values.
//
// Source: the detector of the published code (OnlineDynamicEWMA), here in double, with other
// moments and a wider limit. `as_published` selects the moments and the limit of that code. All
// arithmetic is + - * / and sqrt, so all ranks of a replica compute the same bits.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

#include "lib/checkpoint/state_visitor.h"

namespace entrain {

struct AnomalyOptions {
  double alpha = 0.02;
  int64_t warmup = 120;  // W: accepted norms before any is rejected; >= 2
  double threshold = 3;  // kappa
  int restart_after = 5;
  // Uses the published moments. mu and v begin at 0. For each norm mu ← mu + alpha d and v ← (1 -
  // alpha) v + (1 - alpha)^2 alpha d^2. sigma is the square root of v, s is 1, and c counts zeros
  // too.
  bool as_published = false;
  // Ingests a rejected norm plus a million. The detector itself then never restarts the warm-up.
  bool ingest_rejected = false;
};

class AnomalyDetector {
 public:
  explicit AnomalyDetector(const AnomalyOptions& options);

  struct Score {
    double z = 0;      // 0 during warm-up; infinity if the norm is not finite
    double limit = 0;  // upper limit of z; 0 during warm-up
    bool outlier = false;
  };
  // Judges the next norm without ingesting it. A norm that is not finite is always an outlier.
  Score Look(double norm) const;
  // Accept and Reject tell the detector the decision about a norm. One of the two must be called
  // per norm.
  void Accept(double norm);
  void Reject(double norm);
  // Restarts the warm-up.
  void Restart();
  // `name` is the prefix of the array names. After loading, call Settle, which corrects impossible
  // numbers.
  void VisitState(absl::string_view name, StateVisitor& visitor);
  void Settle();

  double mean() const { return mean_; }
  double variance() const { return variance_; }
  // Returns sigma, or 0 if it is not known yet.
  double Deviation() const;
  int64_t count() const { return count_; }
  int64_t rejected_in_a_row() const { return rejected_in_a_row_; }

 private:
  void Ingest(double norm);
  double Widening() const;
  double Limit() const;

  AnomalyOptions options_;
  double mean_ = 0, variance_ = 0;
  double weight_ = 0;  // n; unused with as_published
  int64_t count_ = 0;
  int64_t rejected_in_a_row_ = 0;
  std::vector<double> scores_;  // Z: a ring of W
  int64_t kept_ = 0;            // number of valid scores; they come first in the ring
  int64_t next_ = 0;            // index of the next score
};

}  // namespace entrain
