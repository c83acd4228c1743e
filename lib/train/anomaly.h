// Judges the norms of one layer's pseudo-gradients over time: a norm far above what this replica has brought before is an
// outlier, and its replica is left out of that exchange of the layer.
//
// Keeps the mean mu and the variance v of the accepted norms, each weighed by (1 - alpha)^age, and a ring Z of the last W
// z-scores. With n the sum of these weights, which grows from 1 to 1 / alpha:
//
//   ingest(x)    c ← c + 1;  n ← 1 + (1 - alpha) n;  d = x - mu;  mu ← mu + d / n;  v ← (1 - 1/n) (v + d^2 / n);  push z(x)
//   z(x)         (x - mu) / sigma,  sigma = max(sqrt(v / (1 - q)), mu / 100)
//   outlier(x)   c >= W  and  z(x) > kappa max(1, stdev(Z)) s
//
// q is the sum of the squares of the weights, divided by n^2: 1 - q takes the bias from v, and nu = 1 / q - 1 is the number
// of degrees of freedom that v has. s = sqrt(1 + q) (1 + (min(kappa, 4)^2 + 1) / (4 nu)) widens the limit by what mu and sigma may be
// off, so that normal noise is rejected as rarely after a short warm-up as after a long one. docs/lab/detector.md derives it.
//
// c counts from the first norm that is not zero. What was rejected is not ingested, so one spike does not deafen the
// detector; and since a lasting change of level would then be rejected for ever, `restart_after` rejections in a row begin the
// warm-up anew, with mu, v and n as they are.
//
// Source: the detector of the published code (OnlineDynamicEWMA), in double, with other moments and a wider limit;
// `as_published` has those of the code. All arithmetic is + - * / and sqrt, so all ranks of a replica come to the same bits.
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
  // As published: mu and v begin at 0, every norm moves mu by alpha d, v gets (1 - alpha)^2 alpha d^2 and is the square of
  // sigma, s is 1, and c counts zeros too ...
  bool as_published = false;
  // ... rejected norms are ingested, with a million added, and warm-up never begins anew.
  bool ingest_rejected = false;
};

class AnomalyDetector {
 public:
  explicit AnomalyDetector(const AnomalyOptions& options);

  struct Score {
    double z = 0;      // 0 while warming up; infinity: the norm is not finite
    double limit = 0;  // what z may be; 0 while warming up
    bool outlier = false;
  };
  // What to think of the next norm. One that is not finite is an outlier whenever it comes.
  Score Look(double norm) const;
  // What became of it; each norm once.
  void Accept(double norm);
  void Reject(double norm);
  // Begins the warm-up anew.
  void Restart();
  // `name`: what its arrays' begin with. After loading, Settle: numbers that cannot be are put right.
  void VisitState(absl::string_view name, StateVisitor& visitor);
  void Settle();

  double mean() const { return mean_; }
  double variance() const { return variance_; }
  // sigma; 0 where nothing is known of it.
  double Deviation() const;
  int64_t count() const { return count_; }
  int64_t rejected_in_a_row() const { return rejected_in_a_row_; }

 private:
  void Ingest(double norm);
  double Widening() const;
  double Limit() const;

  AnomalyOptions options_;
  double mean_ = 0, variance_ = 0;
  double weight_ = 0;  // n; not as_published
  int64_t count_ = 0;
  int64_t rejected_in_a_row_ = 0;
  std::vector<double> scores_;  // Z: a ring of W ...
  int64_t kept_ = 0;            // ... of which so many are there, the first ones ...
  int64_t next_ = 0;            // ... and here goes the next
};

}  // namespace entrain
