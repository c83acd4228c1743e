#include "tools/restarts.h"

#include "absl/strings/str_cat.h"

namespace entrain {

Restarts::Decision Restarts::OnFailure(int rank, const State& state) {
  if (state.finished && count(rank) > 0 && !state.joined) {
    return {Verdict::kGoOn, "other ranks have finished, and it had not joined them"};
  }
  if (state.finished) {
    return {Verdict::kEnd, "other ranks have finished, so it is not restarted"};
  }
  if (!state.members && !state.revives) {
    return {Verdict::kEnd,
            "no other rank has a communicator that it could join, so it is not restarted"};
  }
  int& count = counts_[static_cast<size_t>(rank)];
  const bool again = count < limits_.max_restarts;
  const int ranks = state.running + (again ? 1 : 0);
  const std::string used = absl::StrCat("its ", limits_.max_restarts, " restarts are used up");
  if (ranks < limits_.min_ranks) {
    return {Verdict::kEnd, absl::StrCat(again ? "" : absl::StrCat(used, ", and "), ranks,
                                        " ranks are less than --min-ranks ", limits_.min_ranks)};
  }
  if (!again) {
    return {Verdict::kGoOn, absl::StrCat(used, ", going on with ", ranks, " ranks")};
  }
  ++count;
  return {Verdict::kRestart, absl::StrCat("restarting it, ", count, " of ", limits_.max_restarts)};
}

}  // namespace entrain
