// Decides which replicas count in the exchange of a layer, and with which weights (eq. 2). The
// decisions follow from the table of a rendezvous. The class keeps their state from one exchange to
// the next: the anomaly detectors, the totals, and the number of exchanges in which a newcomer has
// counted.
//
// Does not communicate. Ranks with the same tables compute the same bits for weights and totals.
// Detectors differ between replicas. The fields of a report about this replica differ too.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/edit/anomaly.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/penalty.h"
#include "lib/train/edit/rendezvous.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// The decisions of an exchange about a layer.
struct LayerReport {
  // Indexed by the number of the replica. A weight of 0 means that the replica was rejected. A norm
  // and a weight of 0 mean that the replica was lost or absent.
  std::vector<double> norms, weights;
  double clip_factor = 1;        // beta
  double staleness = 1;          // divisor of the mean, with staleness_penalty
  bool accepted = true;          // false: this replica was rejected
  AnomalyDetector::Score score;  // score of this replica's norm, with skip_anomaly
  bool rolled_back = false;      // all replicas were rejected, or the result was not finite
  // Totals over all exchanges of the layer, including those of a loaded run. brought_ever counts
  // the replicas that had a delta. accepted_ever counts the accepted replicas. The totals are the
  // same on all ranks.
  int64_t brought_ever = 0, accepted_ever = 0;
};

class Verdicts {
 public:
  // The arguments must outlive this object.
  Verdicts(const Slab& slab, const EditOptions& options);

  // Returns true if this replica's anomaly detector of the layer rejects `norm`. Does not change
  // the detector.
  bool Rejects(int layer, double norm);
  // Returns the number at kNewShift (rendezvous.h) in this replica's standing for an exchange of
  // these layers.
  uint64_t Growing(const std::vector<int>& layers) const;

  // Computes the weights of all layers of `table`, and updates this replica's detectors with its
  // norms. `me` is the number of this replica. The numbers of all replicas are below `most`.
  void Judge(const NormTable& table, int me, int most);
  // Computes the weights of a layer again, without replicas that were lost. `table` has only the
  // rows of the remaining replicas. With `counts`, also changes the layer's report and totals.
  void JudgeAgain(const NormTable& table, int layer, int most, bool counts);
  // Rejects all replicas in the exchange of this layer.
  void RejectAll(int layer) { verdicts_[static_cast<size_t>(layer)].accepted = 0; }

  // Returns the verdict about the layer. Its weights are indexed by row of the table.
  const Verdict& of(int layer) const { return verdicts_[static_cast<size_t>(layer)]; }
  const LayerReport& report(int layer) const { return reports_[static_cast<size_t>(layer)]; }
  LayerReport& report(int layer) { return reports_[static_cast<size_t>(layer)]; }

  // Must be called if this replica is a newcomer. Its weight then grows from exchange to exchange
  // (option newcomer_warmup).
  void BeginGrowing() { newcomer_rounds_.assign(newcomer_rounds_.size(), 0); }

  void VisitDetectors(StateVisitor& visitor);
  void VisitCounts(StateVisitor& visitor);
  // Must be called after loading. `portable`: the state comes from a portable checkpoint.
  void Adopt(bool portable);

 private:
  std::vector<Candidate> Weigh(const NormTable& table, size_t index, int most, bool counts);
  void Report(const NormTable& table, size_t index, int most,
              const std::vector<Candidate>& brought);
  void Learn(int layer, const Candidate& own);

  const Slab& slab_;
  const EditOptions& options_;
  std::vector<AnomalyDetector> detectors_;  // by layer, of this replica; empty without skip_anomaly
  std::vector<int> empty_rounds_;           // by layer: consecutive exchanges that rejected all
  std::vector<int64_t> brought_, accepted_;  // by layer: brought_ever and accepted_ever of reports
  // By layer: the number of exchanges in which this replica has counted as a newcomer. The number
  // stops at newcomer_warmup; the weight is then full.
  std::vector<int64_t> newcomer_rounds_;
  std::vector<Verdict> verdicts_;     // by layer
  std::vector<Verdict> counted_;      // by layer: the verdict that is in the totals
  std::vector<LayerReport> reports_;  // by layer
};

}  // namespace entrain
