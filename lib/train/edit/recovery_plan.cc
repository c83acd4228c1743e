#include "lib/train/edit/recovery_plan.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

// Returns the number of the first round, counted from 0, that some rank has not finished.
int64_t RoundOf(absl::Span<const RoundPlace> places) {
  return std::min_element(places.begin(), places.end(),
                          [](const RoundPlace& a, const RoundPlace& b) { return a.over < b.over; })
      ->over;
}

bool Met(const RoundPlace& place, int64_t round) {
  return place.over > round || place.judged != 0;
}

int64_t Finished(const RoundPlace& place, int64_t round) {
  return place.over > round ? RecoveryPlan::kEnd : place.judged != 0 ? place.finished : 0;
}

}  // namespace

absl::StatusOr<RecoveryPlan> PlanRecovery(absl::Span<const RoundPlace> places) {
  const int64_t round = RoundOf(places);
  RecoveryPlan plan;
  plan.round = round;
  plan.first = RecoveryPlan::kEnd;
  bool lacks = false;
  int from = -1;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const RoundPlace& place = places[rank];
    if (place.over > round + 1 || (place.over == round + 1 && place.judged != 0)) {
      return absl::DataLossError(
          absl::StrCat("after a loss rank ", rank, " of those left is in round ", place.over + 1,
                       " of exchanges, and another is in round ", round + 1));
    }
    lacks = lacks || !Met(place, round);
    if (from < 0 && Met(place, round)) {
      from = static_cast<int>(rank);
    }
    plan.first = std::min(plan.first, Finished(place, round));
    plan.all = std::max(plan.all, Finished(place, round));
  }
  plan.met = from >= 0;
  plan.table_from = lacks ? from : -1;
  return plan;
}

int FinishedBy(absl::Span<const RoundPlace> places, int64_t turn) {
  const int64_t round = RoundOf(places);
  const auto found = std::find_if(places.begin(), places.end(), [&](const RoundPlace& place) {
    return Finished(place, round) > turn;
  });
  return found == places.end() ? -1 : static_cast<int>(found - places.begin());
}

int FinishedBy(absl::Span<const RoundPlace> places, int64_t turn, absl::Span<const ReplicaPlace> of,
               int slot) {
  const int64_t round = RoundOf(places);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (of[rank].slot == slot && Finished(places[rank], round) > turn) {
      return static_cast<int>(rank);
    }
  }
  return -1;
}

RunEnd RunEndOf(absl::Span<const RoundPlace> places, absl::Span<const ReplicaPlace> of,
                int replica) {
  RunEnd end = RunEnd::kUnknown;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const RunEnd one = places[rank].end;
    end = std::max(end, of[rank].replica == replica ? one : std::min(one, RunEnd::kAllFinished));
  }
  return end;
}

}  // namespace entrain
