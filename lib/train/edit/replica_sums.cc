#include "lib/train/edit/replica_sums.h"

#include <algorithm>
#include <cmath>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {

namespace {

// Returns the first rank that holds the same parameters as `rank`.
size_t FirstOf(const std::vector<int64_t>& holds, size_t rank) {
  return static_cast<size_t>(std::find(holds.begin(), holds.end(), holds[rank]) - holds.begin());
}

bool SameBits(double a, double b) {
  return absl::bit_cast<uint64_t>(a) == absl::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

absl::StatusOr<Copies> Copies::Find(const Mesh& mesh, Communicator& model) {
  const int64_t shard =
      mesh.coordinate(Axis::kPipeline) * mesh.length(Axis::kShard) + mesh.coordinate(Axis::kShard);
  const int64_t mine[] = {shard * mesh.length(Axis::kTensor) + mesh.coordinate(Axis::kTensor),
                          shard};
  std::vector<int64_t> all(2 * static_cast<size_t>(model.size()));
  ENTRAIN_RETURN_IF_ERROR(model.AllGather(mine, all.data(), 2, DType::kI64));
  Copies copies;
  for (size_t at = 0; at < all.size(); at += 2) {
    copies.holds_.push_back(all[at]);
    copies.holds_replicated_.push_back(all[at + 1]);
  }
  return copies;
}

absl::Status Copies::CheckSquares(const Slab& slab, absl::Span<const int> layers,
                                  absl::Span<const double> all) const {
  for (size_t rank = 0; rank < holds_.size(); ++rank) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const size_t first =
          FirstOf(slab.layer(layers[i]).replicated ? holds_replicated_ : holds_, rank);
      const double want = all[first * layers.size() + i], got = all[rank * layers.size() + i];
      if (!SameBits(want, got)) {
        return absl::DataLossError(absl::StrFormat(
            "layer %d: the copies of ranks %d and %d of the replica have drifted apart: the "
            "squares of their pseudo-gradients are %.17g and %.17g",
            layers[i], first, rank, want, got));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Copies::CheckAnchors(absl::Span<const uint64_t> all) const {
  for (size_t rank = 0; rank < holds_.size(); ++rank) {
    const size_t first = FirstOf(holds_, rank);
    if (all[first] != all[rank]) {
      return absl::DataLossError(
          absl::StrFormat("the anchors of ranks %d and %d of the replica, which hold copies, "
                          "differ: checksums %016x and %016x",
                          first, rank, all[first], all[rank]));
    }
  }
  return absl::OkStatus();
}

double ReplicaSums::SumOfColumn(const std::vector<double>& table, size_t width, size_t column) {
  double sum = 0;
  for (size_t at = column; at < table.size(); at += width) {
    sum += table[at];
  }
  return sum;
}

double ReplicaSums::Share(int layer, double square) const {
  return square / (groups_.copies * (slab_.layer(layer).replicated ? groups_.tensor : 1));
}

absl::StatusOr<std::vector<double>> ReplicaSums::Gather(int64_t tag,
                                                        const std::vector<double>& values) const {
  if (groups_.model == nullptr) {
    return values;
  }
  std::vector<double> all(values.size() * static_cast<size_t>(groups_.model->size()));
  Worker::Doing(tag == slab_.layers() ? "rendezvous: the norms of the replica"
                                      : absl::StrCat("layer ", tag, ": the norms of the step"));
  ENTRAIN_RETURN_IF_ERROR(groups_.model->AllGather(values.data(), all.data(),
                                                   static_cast<int64_t>(values.size()), DType::kF64,
                                                   TimedCall(timeout_ns_, tag, true)));
  return all;
}

absl::Status ReplicaSums::CheckCopies(const std::vector<int>& layers,
                                      const std::vector<double>& all) const {
  if (!groups_.held.exist()) {
    return absl::OkStatus();
  }
  std::vector<double> squares;
  std::vector<uint64_t> checksums;
  const size_t width = all.size() / static_cast<size_t>(groups_.model->size());
  for (auto row = all.begin(); row != all.end(); row += static_cast<std::ptrdiff_t>(width)) {
    squares.insert(squares.end(), row, row + static_cast<std::ptrdiff_t>(layers.size()));
    checksums.push_back(absl::bit_cast<uint64_t>(row[static_cast<std::ptrdiff_t>(width) - 1]));
  }
  absl::Status same = groups_.held.CheckSquares(slab_, layers, squares);
  same.Update(groups_.held.CheckAnchors(checksums));
  if (!same.ok()) {
    // All ranks of the replica see the same values and get the same error. They wait for each other
    // before they leave, so that each rank reports this error and not the abort of another rank.
    Worker::Doing("rendezvous: leaving together");
    groups_.model->Barrier(TimedCall(timeout_ns_, slab_.layers(), true)).IgnoreError();
  }
  return same;
}

}  // namespace entrain
