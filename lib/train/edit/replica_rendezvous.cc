#include "lib/train/edit/replica_rendezvous.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();

// The numbers that a repair sends in addition to the arrays. Ranks send this struct as it is in
// memory.
struct Counters {
  int64_t outer_steps = 0;
  StalenessGaps::Record gap;
};
static_assert(sizeof(Counters) == 4 * sizeof(int64_t));

}  // namespace

absl::StatusOr<NormTable> ReplicaRendezvous::Run(const std::vector<int>& layers, Standing mine,
                                                 int64_t extra_ns) {
  mine.flags |= std::exchange(announced_, 0);
  mine.flags |= static_cast<uint64_t>(parts_.snapshots.rounds_late()) << kLateShift;
  mine.flags |= parts_.verdicts.Growing(layers) << kNewShift;
  ENTRAIN_ASSIGN_OR_RETURN(NormTable table, Meet(layers, mine, extra_ns));
  if (!CheckAnchors(table.standings, table.replicas).ok()) {
    ENTRAIN_RETURN_IF_ERROR(SettleAnchors(table));
    ENTRAIN_ASSIGN_OR_RETURN(table, Meet(layers, mine, extra_ns));
    if (const absl::Status same = CheckAnchors(table.standings, table.replicas); !same.ok()) {
      return LeaveTogether(same);
    }
  }
  return table;
}

// Holds a rendezvous, but does not compare the anchors.
absl::StatusOr<NormTable> ReplicaRendezvous::Meet(const std::vector<int>& layers, Standing mine,
                                                  int64_t extra_ns) {
  std::vector<double> norms;
  ENTRAIN_RETURN_IF_ERROR(GatherReplica(layers, &mine, &norms));
  return ShareNorms(layers, mine, norms, extra_ns);
}

// Computes the replica's standing and the norms of whole layers, with one gather. All ranks of the
// replica get the same bits. A norm is negative if the replica's own detector rejects the norm.
absl::Status ReplicaRendezvous::GatherReplica(const std::vector<int>& layers, Standing* mine,
                                              std::vector<double>* norms) {
  std::vector<double> values;
  for (const int l : layers) {
    // While a replica is late, its caller trains and changes theta. So the anchor is used instead
    // of theta.
    const double square = guard_.Measure(l, parts_.snapshots.late(l)
                                                ? parts_.anchors.anchor(l)
                                                : parts_.theta.Source(l, parts_.snapshots.of(l)));
    values.push_back(guard_.distrusts(l) ? kNotFinite : parts_.sums.Share(l, square));
  }
  if (parts_.members.replicas().size() == 1) {
    ENTRAIN_RETURN_IF_ERROR(guard_.CheckSeals(layers));
  }
  values.insert(values.end(), {static_cast<double>(mine->tokens_since), mine->metric_sum,
                               mine->metric_weight, static_cast<double>(mine->flags),
                               absl::bit_cast<double>(guard_.Checksum(layers))});
  const size_t checksum = values.size() - 1;
  // A replica takes part in a round in the background if all of its ranks do (background_rounds.h).
  if (parts_.options.decoupled()) {
    values.push_back(static_cast<double>(mine->steps_since));
  }
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<double> all,
                           parts_.sums.Gather(parts_.slab.layers(), values));
  ENTRAIN_RETURN_IF_ERROR(parts_.sums.CheckCopies(layers, all));
  const size_t width = values.size();
  for (size_t i = 0; i < layers.size(); ++i) {
    const double norm = std::sqrt(ReplicaSums::SumOfColumn(all, width, i));
    const bool rejected = mine->steps_since > 0 && parts_.verdicts.Rejects(layers[i], norm);
    norms->push_back(rejected ? -norm : norm);
  }
  *mine = {.round = mine->round, .steps = mine->steps, .steps_since = mine->steps_since};
  for (size_t row = 0; row < all.size(); row += width) {
    mine->tokens_since += static_cast<uint64_t>(all[row + layers.size()]);
    mine->metric_sum += all[row + layers.size() + 1];
    mine->metric_weight += all[row + layers.size() + 2];
    mine->flags |= static_cast<uint64_t>(all[row + layers.size() + 3]);
    if (parts_.options.decoupled()) {
      mine->steps_since =
          std::min(mine->steps_since, static_cast<uint64_t>(all[row + checksum + 1]));
    }
    mine->anchor_checksum += guard_.compares() ? absl::bit_cast<uint64_t>(all[row + checksum]) : 0;
  }
  return absl::OkStatus();
}

// Gathers one record per replica: its standing, and the norms of `layers`.
absl::StatusOr<NormTable> ReplicaRendezvous::ShareNorms(const std::vector<int>& layers,
                                                        const Standing& mine,
                                                        const std::vector<double>& norms,
                                                        int64_t extra_ns) {
  constexpr size_t kHeader = sizeof(Standing) / sizeof(double);
  const size_t width = kHeader + norms.size();
  std::vector<uint64_t> record(width);
  std::memcpy(record.data(), &mine, sizeof(mine));
  std::memcpy(record.data() + kHeader, norms.data(), norms.size() * sizeof(double));
  std::vector<uint64_t> records = record;
  if (parts_.members.sync() != nullptr) {
    records.resize(width * static_cast<size_t>(parts_.members.sync()->size()));
    const CallOptions options = parts_.members.Options(parts_.slab.layers(), extra_ns);
    Worker::Doing("rendezvous: the standings of all replicas", options.timeout_ns);
    ENTRAIN_RETURN_IF_ERROR(parts_.members.sync()->AllGather(
        record.data(), records.data(), static_cast<int64_t>(width), DType::kU64, options));
  }
  NormTable table;
  table.replicas = parts_.members.replicas();
  table.layers = layers;
  for (size_t row = 0; row < records.size(); row += width) {
    std::memcpy(static_cast<void*>(&table.standings.emplace_back()), records.data() + row,
                sizeof(Standing));
    for (size_t i = kHeader; i < width; ++i) {
      table.norms.push_back(absl::bit_cast<double>(records[row + i]));
    }
  }
  absl::Status same = CheckRounds(table.standings, table.replicas);
  if (same.ok() && parts_.options.schedules_steps()) {
    same = CheckScheduledSteps(table.standings, table.replicas);
  }
  return same.ok() ? absl::StatusOr<NormTable>(std::move(table)) : LeaveTogether(same);
}

void ReplicaRendezvous::Keep(NormTable table) {
  table_ = std::move(table);
  if (exchanges()) {
    for (const int layer : table_.layers) {
      guard_.SetDistrusted(layer, false);
    }
  }
}

void ReplicaRendezvous::DropApplications() {
  for (Standing& one : table_.standings) {
    one.flags &= ~kApplied;
  }
}

void ReplicaRendezvous::TrustAll() {
  for (const int layer : parts_.slab.training()) {
    guard_.SetDistrusted(layer, false);
  }
}

// Collective. Must be called if the anchors of some layers of `table` differ between replicas, in
// this slot or in another. Returns OK if the anchors of this slot have been repaired.
absl::Status ReplicaRendezvous::SettleAnchors(const NormTable& table) {
  const std::vector<AnchorHash> mine = guard_.Hashes(table.layers);
  std::vector<AnchorHash> all(mine.size() * table.rows());
  const CallOptions options = parts_.members.Options(parts_.slab.layers());
  Worker::Doing("rendezvous: the checksums of all layers", options.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(parts_.members.sync()->AllGather(
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
  // If a repair is impossible in one slot, the ranks of all slots stop together. At this point each
  // rank knows the differences in its own slot, and can report them.
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<double> stops,
                           parts_.sums.Gather(parts_.slab.layers(), {lacks_majority ? 1.0 : 0.0}));
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

// Collective over the sync group. Each rank whose anchor of the layer is wrong receives the right
// anchor and the arrays of its outer optimizer.
absl::Status ReplicaRendezvous::Repair(int layer, const AnchorVote& vote,
                                       absl::string_view differs) {
  const int me = parts_.members.sync()->rank();
  const int from = parts_.members.replicas()[static_cast<size_t>(vote.from)];
  const bool wrong = std::binary_search(vote.wrong.begin(), vote.wrong.end(), me);
  ENTRAIN_ASSIGN_OR_RETURN(const OwnedBuffer received, parts_.state.Broadcast(layer, vote.from));
  Worker::Doing(absl::StrCat("layer ", layer, ": the counters of replica ", from));
  Counters counters = {parts_.outer.steps(layer), parts_.gaps.Get(layer)};
  ENTRAIN_RETURN_IF_ERROR(parts_.members.sync()->Broadcast(
      &counters, sizeof(counters), DType::kU8, vote.from, parts_.members.Options(layer)));
  repairs_ += static_cast<int64_t>(vote.wrong.size());
  if (wrong || me == vote.from) {
    ENTRAIN_LOG(kWarning, "edit: anchors differed: ", differs, "; that of replica ", from,
                " replaces the others");
  }
  if (!wrong) {
    return absl::OkStatus();
  }
  parts_.state.Take(layer, received);
  parts_.outer.SetSteps(layer, counters.outer_steps);
  parts_.gaps.Set(layer, counters.gap);
  guard_.SetDistrusted(layer, true);
  if (parts_.anchors.seal(layer) != vote.right) {
    return absl::DataLossError(
        absl::StrFormat("layer %d: the anchor of replica %d was sent with checksum %016x, and has "
                        "arrived with %016x",
                        layer, from, vote.right, parts_.anchors.seal(layer)));
  }
  return absl::OkStatus();
}

int ReplicaRendezvous::distrusted() const {
  const auto& layers = parts_.slab.training();
  const auto found = std::find_if(layers.begin(), layers.end(),
                                  [this](int layer) { return guard_.distrusts(layer); });
  return found == layers.end() ? -1 : *found;
}

}  // namespace entrain
