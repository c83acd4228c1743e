#include "lib/comm/failure/blame.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace entrain {

BlameDecision::BlameDecision(int rank, int size)
    : rank_(rank),
      answers_(static_cast<size_t>(size), Answer::kNone),
      left_(static_cast<size_t>(size), false) {}

std::optional<BlameDecision::Query> BlameDecision::OnExpired(CallId call, int64_t now_ns,
                                                             int64_t answer_ns) {
  if (inquiring_) {
    return std::nullopt;
  }
  inquiring_ = true;
  call_ = call;
  until_ = {now_ns + answer_ns};
  std::fill(answers_.begin(), answers_.end(), Answer::kNone);
  answers_[static_cast<size_t>(rank_)] = Answer::kStarted;
  return Query{++nonce_, call};
}

bool BlameDecision::OnAnswer(int rank, uint32_t nonce, Answer answer, Deadline more_by) {
  if (!inquiring_ || nonce != nonce_) {
    return false;
  }
  // Extend the time only at the member's first answer. If the member waits for a rank that itself
  // waits for this rank, further extensions would never end.
  if (answer == Answer::kElsewhere && answers_[static_cast<size_t>(rank)] == Answer::kNone) {
    until_ = std::max(until_, more_by);
  }
  answers_[static_cast<size_t>(rank)] = answer;
  return true;
}

void BlameDecision::OnBytes(int rank) {
  Answer& answer = answers_[static_cast<size_t>(rank)];
  if (answer == Answer::kNone) {
    answer = Answer::kStarted;
  }
}

void BlameDecision::OnLeft(int rank) {
  left_[static_cast<size_t>(rank)] = true;
}

void BlameDecision::OnLost(int rank, int64_t now_ns, int64_t grace_ns) {
  if (lost_ < 0) {
    lost_ = rank;
    lost_until_ = {now_ns + grace_ns};
  }
  // The rank cannot answer any more, so a missing answer does not prove guilt.
  Answer& answer = answers_[static_cast<size_t>(rank)];
  if (inquiring_ && (answer == Answer::kNone || answer == Answer::kElsewhere)) {
    answer = Answer::kStarted;
  }
}

void BlameDecision::OnFinished() {
  inquiring_ = false;
}

Deadline BlameDecision::next_tick() const {
  const Deadline inquiry = !inquiring_ ? Deadline::Never() : AllAnswered() ? Deadline{0} : until_;
  return losing() ? std::min(inquiry, lost_until_) : inquiry;
}

bool BlameDecision::AllAnswered() const {
  for (size_t r = 0; r < answers_.size(); ++r) {
    if ((answers_[r] == Answer::kNone && !left_[r]) || answers_[r] == Answer::kElsewhere) {
      return false;
    }
  }
  return true;
}

std::vector<int> BlameDecision::With(Answer answer) const {
  std::vector<int> ranks;
  for (size_t r = 0; r < answers_.size(); ++r) {
    if (answers_[r] == answer && !(answer == Answer::kNone && left_[r])) {
      ranks.push_back(static_cast<int>(r));
    }
  }
  return ranks;
}

std::optional<BlameDecision::Verdict> BlameDecision::OnTick(int64_t now_ns) {
  if (losing() && lost_until_.Passed(now_ns)) {
    return Verdict{true, {}, std::exchange(lost_, -1), Answer::kNone, "", {}};
  }
  if (!inquiring_ || !(AllAnswered() || until_.Passed(now_ns))) {
    return std::nullopt;
  }
  inquiring_ = false;
  struct Fault {
    Answer answer;
    absl::string_view reason, others;
  };
  const std::vector<int> absent = With(Answer::kAbsent);
  std::vector<int> late;
  for (const Answer answer :
       {Answer::kNone, Answer::kAbsent, Answer::kExcused, Answer::kElsewhere}) {
    const std::vector<int> ranks = With(answer);
    late.insert(late.end(), ranks.begin(), ranks.end());
  }
  std::sort(late.begin(), late.end());
  for (const Fault& fault :
       {Fault{Answer::kNone, "it does not answer", "silent"},
        Fault{Answer::kAbsent, "it has not started the call", "not started"},
        Fault{Answer::kExcused, "it has not started the call", "not started"},
        Fault{Answer::kElsewhere, "it has not started the call", "not started"}}) {
    const std::vector<int> ranks = With(fault.answer);
    if (!ranks.empty()) {
      const std::string others = ranks.size() < 2 ? std::string()
                                                  : absl::StrCat(" (", fault.others, ": ranks ",
                                                                 absl::StrJoin(ranks, ", "), ")");
      const std::string all =
          fault.answer == Answer::kNone && !absent.empty()
              ? absl::StrCat(" (not started: ranks ", absl::StrJoin(absent, ", "), ")")
              : std::string();
      const std::string reason = absl::StrCat(fault.reason, others, all);
      return Verdict{false, call_, ranks[0], fault.answer, reason, std::move(late)};
    }
  }
  const auto left = std::find(left_.begin(), left_.end(), true);
  if (left != left_.end()) {
    return Verdict{false,
                   call_,
                   static_cast<int>(left - left_.begin()),
                   Answer::kStarted,
                   "it has destroyed its communicator",
                   {}};
  }
  return Verdict{false,
                 call_,
                 -1,
                 Answer::kStarted,
                 "every rank has started the call, but the data did not arrive in time",
                 {}};
}

}  // namespace entrain
