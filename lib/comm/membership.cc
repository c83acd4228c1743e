#include "lib/comm/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace entrain {

Membership::Membership(int rank, int size)
    : rank_(rank),
      answers_(static_cast<size_t>(size), Answer::kNone),
      left_(static_cast<size_t>(size), false) {}

std::optional<Membership::Query> Membership::OnExpired(CallId call, int64_t now_ns) {
  if (inquiring_) {
    return std::nullopt;
  }
  inquiring_ = true;
  call_ = call;
  until_ = {now_ns + kAnswerNs};
  std::fill(answers_.begin(), answers_.end(), Answer::kNone);
  answers_[static_cast<size_t>(rank_)] = Answer::kStarted;
  return Query{++nonce_, call};
}

void Membership::OnAnswer(int rank, uint32_t nonce, bool started) {
  if (inquiring_ && nonce == nonce_) {
    answers_[static_cast<size_t>(rank)] = started ? Answer::kStarted : Answer::kAbsent;
  }
}

void Membership::OnLeft(int rank) {
  left_[static_cast<size_t>(rank)] = true;
}

void Membership::OnLost(int rank, int64_t now_ns) {
  if (lost_ < 0) {
    lost_ = rank;
    lost_until_ = {now_ns + kGraceNs};
  }
  // It will not answer, and that it does not is no sign of guilt.
  if (inquiring_ && answers_[static_cast<size_t>(rank)] == Answer::kNone) {
    answers_[static_cast<size_t>(rank)] = Answer::kStarted;
  }
}

void Membership::OnFinished() {
  inquiring_ = false;
}

Deadline Membership::next_tick() const {
  const Deadline inquiry = !inquiring_ ? Deadline::Never() : AllAnswered() ? Deadline{0} : until_;
  return losing() ? std::min(inquiry, lost_until_) : inquiry;
}

bool Membership::AllAnswered() const {
  for (size_t r = 0; r < answers_.size(); ++r) {
    if (answers_[r] == Answer::kNone && !left_[r]) {
      return false;
    }
  }
  return true;
}

std::optional<Membership::Verdict> Membership::OnTick(int64_t now_ns) {
  if (losing() && lost_until_.Passed(now_ns)) {
    return Verdict{true, {}, std::exchange(lost_, -1), ""};
  }
  if (!inquiring_ || !(AllAnswered() || until_.Passed(now_ns))) {
    return std::nullopt;
  }
  inquiring_ = false;
  std::vector<int> silent, absent;
  for (size_t r = 0; r < answers_.size(); ++r) {
    if (answers_[r] == Answer::kNone && !left_[r]) {
      silent.push_back(static_cast<int>(r));
    } else if (answers_[r] == Answer::kAbsent) {
      absent.push_back(static_cast<int>(r));
    }
  }
  const auto others = [](const std::vector<int>& ranks, absl::string_view what) {
    return ranks.size() < 2 ? std::string()
                            : absl::StrCat(" (", what, ": ranks ", absl::StrJoin(ranks, ", "), ")");
  };
  if (!silent.empty()) {
    return Verdict{false, call_, silent[0],
                   absl::StrCat("it does not answer", others(silent, "silent"))};
  }
  if (!absent.empty()) {
    return Verdict{false, call_, absent[0],
                   absl::StrCat("it has not started the call", others(absent, "not started"))};
  }
  const auto left = std::find(left_.begin(), left_.end(), true);
  if (left != left_.end()) {
    return Verdict{false, call_, static_cast<int>(left - left_.begin()),
                   "it has destroyed its communicator"};
  }
  return Verdict{false, call_, -1,
                 "every rank has started the call, but the data did not arrive in time"};
}

}  // namespace entrain
