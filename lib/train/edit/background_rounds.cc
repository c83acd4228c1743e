#include "lib/train/edit/background_rounds.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"

namespace entrain {

BackgroundRounds::BackgroundRounds(const EditOptions& options, const FragmentSchedule& schedule,
                                   Snapshots& snapshots, RoundCloser& closer,
                                   std::shared_ptr<Communicator> replica)
    : options_(options),
      schedule_(schedule),
      snapshots_(snapshots),
      closer_(closer),
      alone_(replica == nullptr),
      agreement_(std::move(replica), options.timeout_ns) {
  for (int index = 0; index < schedule.fragments(); ++index) {
    fragments_.emplace_back().layers = schedule.LayersOf(index);
  }
}

void BackgroundRounds::Begin(const Trained& now) {
  const absl::MutexLock lock(&mutex_);
  for (Fragment& fragment : fragments_) {
    fragment.mark = fragment.before = now;
    fragment.wanted = false;
    fragment.rounds_late = 0;
  }
}

bool BackgroundRounds::Ready(const Fragment& fragment) {
  return !fragment.running && (fragment.state == State::kLate || fragment.state == State::kResult);
}

absl::StatusOr<std::vector<bool>> BackgroundRounds::Mergeable() {
  std::vector<bool> ready;
  {
    const absl::MutexLock lock(&mutex_);
    for (const Fragment& fragment : fragments_) {
      ready.push_back(Ready(fragment));
    }
  }
  absl::StatusOr<std::vector<bool>> all = agreement_.Agree(ready);
  return all.ok() ? all : Annotate(all.status(), "the replica's rounds");
}

void BackgroundRounds::Merge(const Trained& now, const std::vector<bool>& which) {
  const absl::MutexLock lock(&mutex_);
  for (size_t at = 0; at < fragments_.size(); ++at) {
    Fragment& fragment = fragments_[at];
    if (!which[at] || !Ready(fragment)) {
      continue;
    }
    if (fragment.state == State::kResult) {
      snapshots_.Merge(fragment.layers);
    } else if (!snapshots_.CatchUp(fragment.layers, 0)) {
      fragment.mark = fragment.before = now;  // the changes were dropped
    }
    fragment.state = State::kTraining;
    fragment.out = false;
  }
}

void BackgroundRounds::MergeAll(const Trained& now) {
  Merge(now, std::vector<bool>(static_cast<size_t>(schedule_.fragments()), true));
}

void BackgroundRounds::AddNews(const Standing& untold, Standing* standing) {
  standing->flags |= untold.flags & kWishes;
  standing->metric_sum += untold.metric_sum;
  standing->metric_weight += untold.metric_weight;
}

// Takes an offer back, so that its training counts in the next one.
void BackgroundRounds::TakeBack(int index) {
  Fragment& fragment = fragments_[static_cast<size_t>(index)];
  closer_.Withdraw(index);
  fragment.mark = fragment.before;
  fragment.state = State::kTraining;
}

absl::StatusOr<bool> BackgroundRounds::Offer(const Trained& now, int64_t since_warmup,
                                             absl::FunctionRef<absl::Status()> fetch,
                                             absl::FunctionRef<Standing()> take_news,
                                             int64_t due_ns) {
  const absl::MutexLock lock(&mutex_);
  const std::vector<int> due = schedule_.DueFragments(since_warmup);
  bool offered = false;
  for (size_t at = 0; at < fragments_.size(); ++at) {
    Fragment& fragment = fragments_[at];
    const auto index = static_cast<int>(at);
    fragment.wanted = fragment.wanted || std::binary_search(due.begin(), due.end(), index);
    const bool again = fragment.state == State::kOffered && alone_;
    const Trained base = again ? fragment.before : fragment.mark;
    if (!fragment.wanted || (fragment.out && !again)) {
      continue;
    }
    fragment.out = true;
    if (fragment.running || now.steps == base.steps ||
        (fragment.state != State::kTraining && !again)) {
      continue;
    }
    ENTRAIN_RETURN_IF_ERROR(fetch());
    ENTRAIN_RETURN_IF_ERROR(snapshots_.Take(fragment.layers));
    const Standing untold = std::exchange(fragment.standing, take_news());
    AddNews(untold, &fragment.standing);
    fragment.standing.steps_since = static_cast<uint64_t>(now.steps - base.steps);
    fragment.standing.tokens_since = static_cast<uint64_t>(now.tokens - base.tokens);
    fragment.standing.flags |= now.tokens > base.tokens ? kCounted : 0;
    if (options_.late == Late::kWeighted) {
      fragment.standing.flags |= static_cast<uint64_t>(fragment.rounds_late) << kLateShift;
    }
    fragment.before = base;
    fragment.mark = now;
    fragment.state = State::kOffered;
    fragment.wanted = false;
    closer_.Offer(index, due_ns);
    offered = true;
  }
  return offered;
}

void BackgroundRounds::Settle(const Trained& now, Standing* standing) {
  {
    const absl::MutexLock lock(&mutex_);
    settled_ = now;
    for (size_t at = 0; at < fragments_.size(); ++at) {
      if (fragments_[at].state == State::kOffered) {
        TakeBack(static_cast<int>(at));
      }
      AddNews(std::exchange(fragments_[at].standing, Standing()), standing);
    }
  }
  MergeAll(now);
  agreement_.Forget();
  Trained since;
  const absl::MutexLock lock(&mutex_);
  for (Fragment& fragment : fragments_) {
    fragment.out = false;
    since.steps = std::max(since.steps, now.steps - fragment.mark.steps);
    since.tokens = std::max(since.tokens, now.tokens - fragment.mark.tokens);
  }
  standing->steps_since = static_cast<uint64_t>(since.steps);
  standing->tokens_since = static_cast<uint64_t>(since.tokens);
  standing->flags |= since.tokens > 0 ? kCounted : 0;
}

absl::StatusOr<std::unique_ptr<ExchangeRound>> BackgroundRounds::BeginRound(
    int index, bool included, const Standing& late, ExchangeRound::InFlight in_flight) {
  const absl::MutexLock lock(&mutex_);
  Fragment& fragment = fragments_[static_cast<size_t>(index)];
  fragment.takes_part = included && fragment.state == State::kOffered;
  if (fragment.takes_part) {
    closer_.Withdraw(index);
  } else {
    if (fragment.state == State::kOffered) {  // it came just after the decision
      TakeBack(index);
      fragment.wanted = true;
    }
    ENTRAIN_RETURN_IF_ERROR(snapshots_.BeginLate(fragment.layers));
    fragment.state = fragment.state == State::kTraining ? State::kLate : fragment.state;
    ++fragment.rounds_late;
  }
  fragment.running = true;
  Standing standing = fragment.takes_part ? fragment.standing : late;
  standing.round = late.round;
  return std::make_unique<ExchangeRound>(fragment.layers, standing, /*behind=*/fragment.takes_part,
                                         in_flight);
}

void BackgroundRounds::EndRound(int index) {
  const absl::MutexLock lock(&mutex_);
  Fragment& fragment = fragments_[static_cast<size_t>(index)];
  fragment.running = false;
  if (std::exchange(fragment.takes_part, false)) {
    fragment.standing = Standing();             // it has been told
    if (snapshots_.late(fragment.layers[0])) {  // another rank of the replica had no offer
      fragment.mark = fragment.before;
      fragment.wanted = true;
      ++fragment.rounds_late;
      fragment.state = State::kLate;
    } else {
      fragment.rounds_late = 0;
      fragment.state = State::kResult;
    }
  } else if (fragment.state == State::kResult) {
    snapshots_.EndLate(fragment.layers);
  }
}

void BackgroundRounds::CatchUp() {
  Trained now;
  {
    const absl::MutexLock lock(&mutex_);
    now = settled_;
  }
  MergeAll(now);
}

}  // namespace entrain
