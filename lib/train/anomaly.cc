#include "lib/train/anomaly.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace entrain {
namespace {

// What the published code adds to a rejected norm before it ingests it.
constexpr double kPublishedPenalty = 1e6;

}  // namespace

AnomalyDetector::AnomalyDetector(const AnomalyOptions& options) : options_(options) {
  scores_.reserve(static_cast<size_t>(options.warmup));
}

double AnomalyDetector::Deviation() const {
  return count_ < 2 ? 0 : std::sqrt(variance_);
}

// kappa, widened where recent scores disperse by more than 1.
double AnomalyDetector::Limit() const {
  const auto n = static_cast<double>(scores_.size());
  if (n < 2) {
    return options_.threshold;
  }
  double mean = 0;
  for (const double z : scores_) {
    mean += z / n;
  }
  double square = 0;
  for (const double z : scores_) {
    square += (z - mean) * (z - mean);
  }
  return options_.threshold * std::max(1.0, std::sqrt(square / (n - 1)));
}

AnomalyDetector::Score AnomalyDetector::Look(double norm) const {
  Score score;
  const bool warm = count_ >= options_.warmup;
  score.limit = warm ? Limit() : 0;
  if (!std::isfinite(norm)) {
    score.z = std::numeric_limits<double>::infinity();
    score.outlier = true;
  } else if (warm && Deviation() > 0) {
    score.z = (norm - mean_) / Deviation();
    score.outlier = score.z > score.limit;
  }
  return score;
}

void AnomalyDetector::Accept(double norm) {
  rejected_in_a_row_ = 0;
  Ingest(norm);
}

void AnomalyDetector::Reject(double norm) {
  if (!std::isfinite(norm)) {
    return;  // says nothing about the level of norms
  }
  if (options_.ingest_rejected) {
    Ingest(norm + kPublishedPenalty);
  } else if (++rejected_in_a_row_ >= options_.restart_after) {
    Restart();
  }
}

void AnomalyDetector::Restart() {
  count_ = 0;
  rejected_in_a_row_ = 0;
}

void AnomalyDetector::Ingest(double norm) {
  if (mean_ == 0 && variance_ == 0 && !options_.from_zero) {
    mean_ = norm;
  }
  ++count_;
  const double before = norm - mean_;
  mean_ += options_.alpha * before;
  variance_ = (1 - options_.alpha) * (variance_ + options_.alpha * before * (norm - mean_));
  const bool warm = count_ >= options_.warmup && Deviation() > 0;
  const double z = warm ? (norm - mean_) / Deviation() : 0;
  if (scores_.size() < static_cast<size_t>(options_.warmup)) {
    scores_.push_back(z);
  } else {
    scores_[next_] = z;
    next_ = (next_ + 1) % scores_.size();
  }
}

}  // namespace entrain
