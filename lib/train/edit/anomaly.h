// Judges the norms of one layer's pseudo-gradients over time. A norm that is far above the earlier
// norms of this replica is an outlier. Then the replica is left out of that exchange of the layer.
//
// The detector keeps the mean mu and the variance v of the accepted norms. A norm has weight
// (1 - alpha)^age. n is the sum of the weights, which grows from 1 to 1 / alpha. The ring Z has the
// last W z-scores. c counts the ingested norms since the warm-up began:
//
//   ingest(x)    c ← c + 1;  n ← 1 + (1 - alpha) n;  d = x - mu;  mu ← mu + d / n;  v ← (1 - 1/n) (v + d^2 / n);  push z(x)
//   z(x)         (x - mu) / sigma,  sigma = max(sqrt(v / (1 - q)), mu / 100)
//   outlier(x)   c >= W  and  z(x) > kappa max(1, stdev(Z)) s
//   s            sqrt(1 + q) (1 + (min(kappa, 4)^2 + 1) / (4 nu))
//
// q is the sum of the squared weights divided by n^2. The factor 1 - q removes the bias of v, and
// nu = 1 / q - 1 is the number of degrees of freedom of v.
//
// The factor s widens the limit by the uncertainty of mu and sigma. So the detector rejects normal
// noise equally rarely after a short and after a long warm-up. docs/lab/detector.md derives s.
//
// The first norm that c counts is the first norm that is not zero. Rejected norms are not ingested,
// so that one spike does not make the detector insensitive. But then, after a lasting change of
// level, every norm would be rejected. Therefore `restart_after` rejections in a row restart the
// warm-up: c becomes 0, while mu, v and n keep their values.
//
// Source: the detector of the published code (OnlineDynamicEWMA). This class computes in double,
// and has other moments and a wider limit. `as_published` selects the moments and the limit of the
// published code. All arithmetic is + - * / and sqrt, so all ranks of a replica compute the same
// bits.
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
  // Uses the moments and the limit of the published code. mu and v begin at 0. For each norm:
  //   mu ← mu + alpha d;  v ← (1 - alpha) v + (1 - alpha)^2 alpha d^2
  // sigma is the square root of v, s is 1, and c also counts zeros.
  bool as_published = false;
  // A rejected norm is ingested after a million was added to it. Rejections then never restart the
  // warm-up.
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
  // Inform the detector of the decision about a norm. Exactly one of them must be called for each
  // norm.
  void Accept(double norm);
  void Reject(double norm);
  // Restarts the warm-up.
  void Restart();
  // `name` is the prefix of the array names. After a load, Settle must be called. It replaces
  // impossible values by valid ones.
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
  int64_t kept_ = 0;            // number of valid scores, which are the first elements
  int64_t next_ = 0;            // index of the next score
};

}  // namespace entrain
