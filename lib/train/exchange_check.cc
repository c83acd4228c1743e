// The part of an exchange for anchors that differ (option anchor_check).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/train/exchange.h"
#include "lib/train/worker_thread.h"

namespace entrain {
namespace {

// The data that a repair sends beside the arrays. Ranks send this struct as it is in memory.
struct Counters {
  int64_t outer_steps = 0;
  StalenessGaps::Record gap;
};
static_assert(sizeof(Counters) == 4 * sizeof(int64_t));

}  // namespace

// Ends this rank's part in a rendezvous with an error. All ranks of all replicas have an error.
// They leave together, so that each rank reports its own error and not the abort of another rank. A
// rank that has passed both barriers knows that the ranks of every slot have come.
absl::Status Exchange::LeaveTogether(const absl::Status& why) {
  WorkerThread::Doing("rendezvous: leaving together");
  for (const auto& comm : {groups_.sync, groups_.model}) {
    if (comm != nullptr) {
      comm->Barrier(Options(slab_.layers())).IgnoreError();
    }
  }
  return why;
}

// Collective. The anchors of some layers of `table` differ between replicas, in this slot or in
// another. Returns OK if the anchors of this slot have been repaired.
absl::Status Exchange::SettleAnchors(const NormTable& table) {
  const std::vector<AnchorHash> mine = guard_.Hashes(table.layers);
  std::vector<AnchorHash> all(mine.size() * table.rows());
  const CallOptions options = Options(slab_.layers());
  WorkerThread::Doing("rendezvous: the checksums of all layers", options.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(groups_.sync->AllGather(
      mine.data(), all.data(), static_cast<int64_t>(2 * mine.size()), DType::kU64, options));
  std::vector<std::string> differ;
  std::vector<std::pair<int, AnchorVote>> votes;
  bool lacks_majority = false;
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<AnchorHash> hashes;
    for (size_t row = 0; row < table.rows(); ++row) {
      hashes.push_back(all[row * mine.size() + i]);
    }
    if (!SameAnchor(hashes)) {
      differ.push_back(DescribeAnchors(table.layers[i], hashes, table.replicas));
      votes.emplace_back(table.layers[i], Vote(hashes));
      lacks_majority = lacks_majority || (guard_.repairs() && votes.back().second.from < 0);
    }
  }
  // The ranks of a replica stop together. They do so when each rank knows the differences in its
  // slot.
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<double> stops,
                           sums_.Gather(slab_.layers(), {lacks_majority ? 1.0 : 0.0}));
  const bool stopped =
      std::count(stops.begin(), stops.end(), 0.0) < static_cast<std::ptrdiff_t>(stops.size());
  if (differ.empty() && (stopped || !guard_.repairs())) {
    return LeaveTogether(CheckAnchors(table.standings, table.replicas));
  }
  if (stopped || !guard_.repairs()) {
    return LeaveTogether(absl::DataLossError(
        absl::StrCat("anchors differ: ", absl::StrJoin(differ, "; "),
                     lacks_majority ? "; no majority of the replicas has the same anchor" : "")));
  }
  for (size_t i = 0; i < votes.size(); ++i) {
    ENTRAIN_RETURN_IF_ERROR(Repair(votes[i].first, votes[i].second, differ[i]));
  }
  return absl::OkStatus();
}

// Collective over the sync group. Each rank without the right anchor of the layer receives this
// anchor and its outer state.
absl::Status Exchange::Repair(int layer, const AnchorVote& vote, absl::string_view differs) {
  const int me = groups_.sync->rank();
  const int from = replicas_[static_cast<size_t>(vote.from)];
  const bool wrong = std::binary_search(vote.wrong.begin(), vote.wrong.end(), me);
  ENTRAIN_ASSIGN_OR_RETURN(const OwnedBuffer received, BroadcastState(layer, vote.from));
  WorkerThread::Doing(absl::StrCat("layer ", layer, ": the counters of replica ", from));
  Counters counters = {outer_.steps(layer), gaps_.Get(layer)};
  ENTRAIN_RETURN_IF_ERROR(
      groups_.sync->Broadcast(&counters, sizeof(counters), DType::kU8, vote.from, Options(layer)));
  repairs_ += static_cast<int64_t>(vote.wrong.size());
  if (wrong || me == vote.from) {
    ENTRAIN_LOG(kWarning, "edit: anchors differed: ", differs, "; that of replica ", from,
                " replaces the others");
  }
  if (!wrong) {
    return absl::OkStatus();
  }
  TakeState(layer, received);
  outer_.SetSteps(layer, counters.outer_steps);
  gaps_.Set(layer, counters.gap);
  guard_.SetDistrusted(layer, true);
  if (anchors_.seal(layer) != vote.right) {
    return absl::DataLossError(
        absl::StrFormat("layer %d: the anchor of replica %d was sent with checksum %016x, and has "
                        "arrived with %016x",
                        layer, from, vote.right, anchors_.seal(layer)));
  }
  return absl::OkStatus();
}

int Exchange::distrusted() const {
  const auto& layers = slab_.training();
  const auto found = std::find_if(layers.begin(), layers.end(),
                                  [this](int layer) { return guard_.distrusts(layer); });
  return found == layers.end() ? -1 : *found;
}

}  // namespace entrain
