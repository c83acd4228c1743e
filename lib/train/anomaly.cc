#include "lib/train/anomaly.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace entrain {
namespace {

// What the published code adds to a rejected norm before it ingests it.
constexpr double kPublishedPenalty = 1e6;

}  // namespace

AnomalyDetector::AnomalyDetector(const AnomalyOptions& options)
    : options_(options), scores_(static_cast<size_t>(options.warmup)) {}

void AnomalyDetector::VisitState(absl::string_view name, StateVisitor& visitor) {
  visitor.Value(absl::StrCat(name, "/mean"), Holder::kReplica, &mean_);
  visitor.Value(absl::StrCat(name, "/variance"), Holder::kReplica, &variance_);
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
}

double AnomalyDetector::Deviation() const {
  return count_ < 2 ? 0 : std::sqrt(variance_);
}

// kappa, widened where recent scores disperse by more than 1.
double AnomalyDetector::Limit() const {
  const auto n = static_cast<double>(kept_);
  if (n < 2) {
    return options_.threshold;
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
  const auto room = static_cast<int64_t>(scores_.size());
  scores_[static_cast<size_t>(next_)] = z;
  next_ = (next_ + 1) % room;
  kept_ = std::min(kept_ + 1, room);
}

}  // namespace entrain
