// Judges the norms of one layer's pseudo-gradients over time: a norm far above what this replica has brought before is an
// outlier, and its replica is left out of that exchange of the layer.
//
// Exponentially weighted mean mu and variance v of the accepted norms, and a ring Z of the last W z-scores:
//
//   outlier(x)   c >= W  and  (x - mu) / sqrt(v) > kappa max(1, stdev(Z))                  looked at first
//   ingest(x)    c ← c + 1;  d = x - mu;  mu ← mu + alpha d;  v ← (1 - alpha)(v + alpha d (x - mu));  push z(x)
//
// What was rejected is not ingested, so one spike does not deafen the detector; and since a lasting change of level would
// then be rejected for ever, `restart_after` rejections in a row begin the warm-up anew, with mu and v as they are.
//
// Source: the detector of the published code (OnlineDynamicEWMA), in double. Thread safety: one thread at a time.
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
  // As published: mu begins at 0 instead of the first norm ...
  bool from_zero = false;
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
  int64_t count() const { return count_; }
  int64_t rejected_in_a_row() const { return rejected_in_a_row_; }

 private:
  void Ingest(double norm);
  double Deviation() const;
  double Limit() const;

  AnomalyOptions options_;
  double mean_ = 0, variance_ = 0;
  int64_t count_ = 0;
  int64_t rejected_in_a_row_ = 0;
  std::vector<double> scores_;  // Z: a ring of W ...
  int64_t kept_ = 0;            // ... of which so many are there, the first ones ...
  int64_t next_ = 0;            // ... and here goes the next
};

}  // namespace entrain
