#include "lib/train/replica_sums.h"

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker.h"

namespace entrain {

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
