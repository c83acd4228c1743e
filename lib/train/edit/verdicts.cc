#include "lib/train/edit/verdicts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

Weighing WeighingOf(const EditOptions& options) {
  Weighing how;
  how.compat = options.compat;
  if (options.pseudo_gradnorm_reduce) {
    how.kind = Weighting::kSoftmax;
    how.temperature = options.temperature();
  } else if (!options.normalize) {
    how.kind = Weighting::kSum;
  }
  if (options.use_step_weight) {
    how.step_ratio = options.reducer == ReducerKind::kNone ? 1 : options.step_weight_ratio;
  }
  return how;
}

AnomalyOptions DetectorOf(const EditOptions& options) {
  return {.alpha = options.ewma_alpha,
          .warmup = options.ewma_warmup_steps,
          .threshold = options.ewma_threshold,
          .as_published = options.compat || options.ewma_as_published,
          .ingest_rejected = options.compat};
}

}  // namespace

Verdicts::Verdicts(const Slab& slab, const EditOptions& options)
    : slab_(slab),
      options_(options),
      empty_rounds_(static_cast<size_t>(slab.layers()), 0),
      brought_(static_cast<size_t>(slab.layers()), 0),
      accepted_(static_cast<size_t>(slab.layers()), 0),
      newcomer_rounds_(static_cast<size_t>(slab.layers()), options.newcomer_warmup),
      verdicts_(static_cast<size_t>(slab.layers())),
      counted_(static_cast<size_t>(slab.layers())),
      reports_(static_cast<size_t>(slab.layers())) {
  if (options.skip_anomaly) {
    detectors_.assign(static_cast<size_t>(slab.layers()), AnomalyDetector(DetectorOf(options)));
  }
}

bool Verdicts::Rejects(int layer, double norm) {
  return !detectors_.empty() && detectors_[static_cast<size_t>(layer)].Look(norm).outlier;
}

void Verdicts::Judge(const NormTable& table, int me, int most) {
  const size_t row = table.RowOf(me);
  const bool brings = table.standings[row].steps_since > 0;
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const auto layer = static_cast<size_t>(table.layers[i]);
    const std::vector<Candidate> brought = Weigh(table, i, most, /*counts=*/true);
    const Candidate& own = brought[row];
    newcomer_rounds_[layer] = std::min(newcomer_rounds_[layer] + brings, options_.newcomer_warmup);
    reports_[layer].accepted = own.absent || own.accepted();
    if (!detectors_.empty()) {
      if (!own.absent) {
        reports_[layer].score = detectors_[layer].Look(own.norm);
      }
      Learn(table.layers[i], own);
    }
  }
}

void Verdicts::JudgeAgain(const NormTable& table, int layer, int most, bool counts) {
  const auto at = static_cast<size_t>(layer);
  const auto found = std::find(table.layers.begin(), table.layers.end(), layer);
  if (counts) {
    brought_[at] -= counted_[at].brought;
    accepted_[at] -= counted_[at].accepted;
  }
  Weigh(table, static_cast<size_t>(found - table.layers.begin()), most, counts);
}

// If the number of exchanges in which this replica has counted differs between `layers`, uses the
// smallest.
uint64_t Verdicts::Growing(const std::vector<int>& layers) const {
  int64_t least = options_.newcomer_warmup;
  for (const int layer : layers) {
    least = std::min(least, newcomer_rounds_[static_cast<size_t>(layer)]);
  }
  return least < options_.newcomer_warmup ? static_cast<uint64_t>(least) + 1 : 0;
}

// Computes the weights of one layer of the table. With `counts`, also changes the layer's report
// and totals.
std::vector<Candidate> Verdicts::Weigh(const NormTable& table, size_t index, int most,
                                       bool counts) {
  const auto layer = static_cast<size_t>(table.layers[index]);
  const Amount amount = options_.compat        ? Amount::kPublished
                        : options_.decoupled() ? Amount::kTimesRate
                                               : Amount::kTokens;
  const std::vector<double> trained = Trained(table.standings, amount);
  std::vector<Candidate> brought;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double norm = table.norm(row, index);
    brought.push_back({.norm = std::abs(norm),
                       .rejected = std::signbit(norm),
                       .absent = table.standings[row].steps_since == 0,
                       .trained = trained[row],
                       .late = static_cast<int64_t>(table.standings[row].flags >> kLateShift),
                       .grown = Grown(table.standings[row], options_.newcomer_warmup)});
  }
  verdicts_[layer] = entrain::Weigh(WeighingOf(options_), brought);
  if (counts) {
    Report(table, index, most, brought);
  }
  return brought;
}

// Writes the verdict about the layer to its report.
void Verdicts::Report(const NormTable& table, size_t index, int most,
                      const std::vector<Candidate>& brought) {
  const auto layer = static_cast<size_t>(table.layers[index]);
  LayerReport& report = reports_[layer];
  report.norms.assign(static_cast<size_t>(most), 0);
  report.weights.assign(static_cast<size_t>(most), 0);
  for (size_t row = 0; row < table.rows(); ++row) {
    const auto replica = static_cast<size_t>(table.replicas[row]);
    report.norms[replica] = brought[row].norm;
    report.weights[replica] = verdicts_[layer].weights[row];
  }
  counted_[layer] = verdicts_[layer];
  brought_[layer] += counted_[layer].brought;
  accepted_[layer] += counted_[layer].accepted;
  report.brought_ever = brought_[layer];
  report.accepted_ever = accepted_[layer];
  report.clip_factor = report.staleness = 1;
  report.rolled_back = false;
}

// Tells this replica's detector of the layer whether the norm was accepted.
void Verdicts::Learn(int layer, const Candidate& own) {
  const auto at = static_cast<size_t>(layer);
  if (own.absent) {
    // There is no norm.
  } else if (own.accepted()) {
    detectors_[at].Accept(own.norm);
  } else {
    detectors_[at].Reject(own.norm);
  }
  // The count is the same on all replicas, even if some were absent.
  empty_rounds_[at] = verdicts_[at].accepted > 0 ? 0 : empty_rounds_[at] + 1;
  if (empty_rounds_[at] >= 2 && !options_.compat) {
    // All replicas were rejected twice in a row: the level of norms has changed.
    detectors_[at].Restart();
    empty_rounds_[at] = 0;
  }
}

void Verdicts::VisitDetectors(StateVisitor& visitor) {
  if (detectors_.empty()) {
    return;
  }
  for (const int layer : slab_.training()) {
    detectors_[static_cast<size_t>(layer)].VisitState(absl::StrCat("detector/", layer), visitor);
  }
  // Equal on all replicas, but held like the detectors: a portable load without detectors drops both.
  visitor.Array("empty_rounds", Holder::kReplica, DType::kI32, empty_rounds_.data(),
                static_cast<int64_t>(empty_rounds_.size()));
}

void Verdicts::VisitCounts(StateVisitor& visitor) {
  if (options_.newcomer_warmup > 0 && visitor.kind() == CheckpointKind::kExact) {
    visitor.Array("newcomer/counted", Holder::kReplica, DType::kI64, newcomer_rounds_.data(),
                  static_cast<int64_t>(newcomer_rounds_.size()));
  }
  visitor.Array("layers/brought", Holder::kAll, DType::kI64, brought_.data(), slab_.layers());
  visitor.Array("layers/accepted", Holder::kAll, DType::kI64, accepted_.data(), slab_.layers());
}

void Verdicts::Adopt(bool portable) {
  for (int64_t& rounds : newcomer_rounds_) {
    // Replicas that begin from a portable checkpoint are no newcomers.
    rounds = portable ? options_.newcomer_warmup
                      : std::clamp<int64_t>(rounds, 0, options_.newcomer_warmup);
  }
  for (const int layer : slab_.training()) {
    if (!detectors_.empty()) {
      detectors_[static_cast<size_t>(layer)].Settle();
    }
    reports_[static_cast<size_t>(layer)] = {};
  }
}

}  // namespace entrain
