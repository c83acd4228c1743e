#include "lib/train/edit/anomaly.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace entrain {
namespace {

// The penalty of the published code. Before that code ingests a rejected norm, it adds this to the
// norm.
constexpr double kPublishedPenalty = 1e6;
// sigma is at least this share of mu. So norms that differ by less count as equal. The noise of any
// real training is larger.
constexpr double kLeastDeviation = 0.01;
// In the factor s, kappa is limited to this value, because the distribution of norms so far from
// the mean is unknown.
constexpr double kRarest = 4;

}  // namespace

AnomalyDetector::AnomalyDetector(const AnomalyOptions& options)
    : options_(options), scores_(static_cast<size_t>(options.warmup)) {}

void AnomalyDetector::VisitState(absl::string_view name, StateVisitor& visitor) {
  visitor.Value(absl::StrCat(name, "/mean"), Holder::kReplica, &mean_);
  visitor.Value(absl::StrCat(name, "/variance"), Holder::kReplica, &variance_);
  if (!options_.as_published) {
    visitor.Value(absl::StrCat(name, "/weight"), Holder::kReplica, &weight_);
  }
  visitor.Value(absl::StrCat(name, "/count"), Holder::kReplica, &count_);
  visitor.Value(absl::StrCat(name, "/rejected_in_a_row"), Holder::kReplica, &rejected_in_a_row_);
  visitor.Value(absl::StrCat(name, "/kept"), Holder::kReplica, &kept_);
  visitor.Value(absl::StrCat(name, "/next"), Holder::kReplica, &next_);
  visitor.Array(absl::StrCat(name, "/scores"), Holder::kReplica, DType::kF64, scores_.data(),
                static_cast<int64_t>(scores_.size()));
}

void AnomalyDetector::Settle() {
  const auto room = static_cast<int64_t>(scores_.size());
  kept_ = std::clamp<int64_t>(kept_, 0, room);
  next_ = std::clamp<int64_t>(next_, 0, room - 1);
  count_ = std::max<int64_t>(count_, 0);
  if (!options_.as_published && !(weight_ >= 1)) {
    mean_ = variance_ = weight_ = 0;
    count_ = 0;
  } else if (weight_ > (1 + 1e-9) / options_.alpha) {  // was loaded from a run with another alpha
    weight_ = 1 / options_.alpha;
  }
}

double AnomalyDetector::Deviation() const {
  if (options_.as_published) {
    return count_ < 2 ? 0 : std::sqrt(variance_);
  }
  // 1 - q = (2 n - 2) / (2 n - alpha n)
  const double square =
      weight_ > 1 ? variance_ * weight_ * (2 - options_.alpha) / (2 * weight_ - 2) : 0;
  return std::max(std::sqrt(square), kLeastDeviation * mean_);
}

// Returns s, the factor that widens the limit because mu and sigma are only estimates. The variance
// of the distance between the next norm and mu is 1 + q times the variance of a norm. This
// distance, divided by its estimated standard deviation sigma sqrt(1 + q), has Student's t
// distribution. The quantile of that distribution is the normal quantile times
// 1 + (kappa^2 + 1) / (4 nu) + ...
double AnomalyDetector::Widening() const {
  if (options_.as_published) {
    return 1;
  }
  const double q = (2 / weight_ - options_.alpha) / (2 - options_.alpha);
  const double nu = 1 / q - 1;
  const double kappa = std::min(options_.threshold, kRarest);
  return std::sqrt(1 + q) * (1 + (kappa * kappa + 1) / (4 * nu));
}

// Returns the upper limit of z, which is kappa max(1, stdev(Z)) s.
double AnomalyDetector::Limit() const {
  const auto n = static_cast<double>(kept_);
  const double limit = options_.threshold * Widening();
  if (n < 2) {
    return limit;
  }
  const absl::Span<const double> kept(scores_.data(), static_cast<size_t>(kept_));
  double mean = 0;
  for (const double z : kept) {
    mean += z / n;
  }
  double square = 0;
  for (const double z : kept) {
    square += (z - mean) * (z - mean);
  }
  return limit * std::max(1.0, std::sqrt(square / (n - 1)));
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
    return;  // has no information about the usual size of norms
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
  if (weight_ == 0 && norm == 0 && !options_.as_published) {
    return;  // zeros before the first other norm are ignored
  }
  ++count_;
  const double before = norm - mean_;
  if (options_.as_published) {
    mean_ += options_.alpha * before;
    variance_ = (1 - options_.alpha) * (variance_ + options_.alpha * before * (norm - mean_));
  } else {
    weight_ = 1 + (1 - options_.alpha) * weight_;
    mean_ += before / weight_;
    variance_ = (1 - 1 / weight_) * (variance_ + before * before / weight_);
  }
  const bool warm = count_ >= options_.warmup && Deviation() > 0;
  const double z = warm ? (norm - mean_) / Deviation() : 0;
  const auto room = static_cast<int64_t>(scores_.size());
  scores_[static_cast<size_t>(next_)] = z;
  next_ = (next_ + 1) % room;
  kept_ = std::min(kept_ + 1, room);
}

}  // namespace entrain
