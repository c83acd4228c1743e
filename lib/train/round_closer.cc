#include "lib/train/round_closer.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/train/rendezvous.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker_thread.h"

namespace entrain {
namespace {

constexpr int64_t kRingTag = 1, kTickTag = 2;
// A ring may come after any length of time.
constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 4;

Call OneNumber(CallKind kind, int root, uint64_t* number, int64_t limit_ns) {
  Call call;
  call.kind = kind;
  call.dtype = DType::kU64;
  call.root = root;
  call.count = 1;
  (kind == CallKind::kSend ? call.in : call.out) = {number, sizeof(*number)};
  call.options = TimedCall(limit_ns, kRingTag, true);
  return call;
}

}  // namespace

RoundCloser::RoundCloser(std::unique_ptr<ReplicaWorld> world, const ClosingRule& rule,
                         int64_t timeout_ns)
    : world_(std::move(world)),
      rule_(rule),
      timeout_ns_(timeout_ns > 0 ? timeout_ns : world_->comm()->timeout_ns()) {
  const std::vector<int> numbers = ReplicasOf(world_->places());
  row_ = static_cast<size_t>(
      std::lower_bound(numbers.begin(), numbers.end(), world_->mine().replica) - numbers.begin());
  replicas_.resize(numbers.size());
  told_.resize(world_->places().size());
  Listen();
}

// Calls that are under way use this object's memory.
RoundCloser::~RoundCloser() {
  world_->comm()->Abort("destroyed");
  if (listening_) {
    listening_->Wait(Deadline::Never());
  }
  for (const RefPtr<Work>& ring : rings_) {
    ring->Wait(Deadline::Never());
  }
}

void RoundCloser::Arrive(uint64_t flags) {
  since_ns_.store(Clock::Real().Now(), std::memory_order_relaxed);
  flags_.store(static_cast<int64_t>(flags & (kLeaving | kInsist)), std::memory_order_relaxed);
  arrivals_.fetch_add(1, std::memory_order_release);  // see Mine
}

Attendance RoundCloser::Mine() const {
  Attendance mine;
  mine.arrivals = arrivals_.load(std::memory_order_acquire);  // see Arrive
  mine.flags = flags_.load(std::memory_order_relaxed);
  mine.has_anchors = ready_.load(std::memory_order_acquire) ? 1 : 0;  // see SetReady
  const bool waits = mine.arrivals > replicas_[row_].arrivals;
  mine.waited_ns = waits ? Clock::Real().Now() - since_ns_.load(std::memory_order_relaxed) : 0;
  return mine;
}

// Receives the rings that have come, and begins to receive the next ring.
void RoundCloser::Listen() {
  // Test, because without a thread of the engine nothing else makes progress meanwhile.
  while (!listening_ || (listening_->Test() && listening_->status().ok())) {
    heard_ = listening_ ? std::max(heard_, received_) : heard_;
    absl::StatusOr<RefPtr<Work>> work =
        world_->comm()->Start(OneNumber(CallKind::kRecvAny, -1, &received_, kForever));
    if (!work.ok()) {
      return;  // the communicator has ended; the next arrival returns its error
    }
    listening_ = *std::move(work);
  }
}

absl::Status RoundCloser::Ring() {
  WorkerThread::Doing("rendezvous: calling the other replicas", timeout_ns_);
  for (const RefPtr<Work>& ring : rings_) {  // the rings of the previous session have been received
    ring->Wait(Deadline::Never(), true);
  }
  rings_.clear();
  rung_ = session_ + 1;
  for (int rank = 0; rank < world_->comm()->size(); ++rank) {
    if (rank != world_->comm()->rank()) {
      ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> ring, world_->comm()->Start(OneNumber(
                                                      CallKind::kSend, rank, &rung_, timeout_ns_)));
      rings_.push_back(std::move(ring));
    }
  }
  return absl::OkStatus();
}

bool RoundCloser::Called() {
  Listen();
  in_session_ = in_session_ || heard_ > session_;
  return in_session_;
}

absl::StatusOr<Closing> RoundCloser::Tick() {
  if (kept_.has_value()) {
    return *std::exchange(kept_, std::nullopt);
  }
  if (!Called()) {
    ENTRAIN_RETURN_IF_ERROR(Ring());
    in_session_ = true;
  }
  const Attendance mine = Mine();
  const CallOptions options = TimedCall(timeout_ns_, kTickTag, true);
  WorkerThread::Doing("rendezvous: which replicas have come", options.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(world_->comm()->AllGather(
      &mine, told_.data(), sizeof(mine) / sizeof(int64_t), DType::kI64, options));
  Closing closing = CloseRound(rule_, told_, world_->places(), replicas_);
  missed_ = replicas_[row_].missed;
  Attend(closing, &replicas_);
  if (!closing.others_wait) {
    in_session_ = false;
    ++session_;
  }
  return closing;
}

absl::Status RoundCloser::CheckWait() const {
  const Attendance mine = Mine();
  if (mine.waited_ns <= timeout_ns_) {
    return absl::OkStatus();
  }
  const std::vector<int> numbers = ReplicasOf(world_->places());
  std::string missing;
  for (size_t row = 0; row < numbers.size(); ++row) {
    for (size_t rank = 0; rank < told_.size(); ++rank) {
      if (world_->places()[rank].replica == numbers[row] &&
          told_[rank].arrivals <= replicas_[row].arrivals) {
        absl::StrAppend(&missing, missing.empty() ? "" : ", ", numbers[row]);
        break;
      }
    }
  }
  return absl::DeadlineExceededError(absl::StrCat("the round was not closed within ",
                                                  timeout_ns_ / kMillisecond,
                                                  " ms: these replicas have not come: ", missing));
}

}  // namespace entrain
