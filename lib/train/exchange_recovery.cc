// The functions of an exchange for Recovery, after a loss.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/exchange.h"
#include "lib/train/worker_thread.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

uint64_t SentBy(const std::shared_ptr<Communicator>& comm) {
  return comm == nullptr ? 0 : comm->stats().bytes_sent;
}

}  // namespace

ExchangeGroups Exchange::groups() const {
  absl::MutexLock lock(&groups_mutex_);
  return groups_;
}

ExchangeBytes Exchange::bytes_sent() const {
  absl::MutexLock lock(&groups_mutex_);
  return {sent_before_.model + SentBy(groups_.model), sent_before_.sync + SentBy(groups_.sync)};
}

// Waits for the calls of all layers under way and drops their deltas. The communicators must have
// ended, so that the calls end soon.
void Exchange::DropFlights() {
  for (Flight& flight : flights_) {
    if (flight.work) {
      flight.work->Wait(Deadline::Never());
    }
    if (flight.delta.data != nullptr) {
      deltas_.Give(std::move(flight.delta));
    }
    flight = Flight();
  }
}

void Exchange::Regroup(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
                       const std::vector<int>& replicas) {
  DropFlights();
  replicas_ = replicas;
  absl::MutexLock lock(&groups_mutex_);
  sent_before_.model += SentBy(groups_.model);
  sent_before_.sync += SentBy(groups_.sync);
  groups_.model = std::move(model);
  groups_.sync = std::move(sync);
}

void Exchange::SetNumbers(int me, int most) {
  me_ = me;
  all_replicas_ = static_cast<size_t>(most);
}

void Exchange::DropApplications() {
  for (Standing& one : table_.standings) {
    one.flags &= ~kApplied;
  }
}

void Exchange::WeighAgain(int layer, bool counts) {
  const auto at = static_cast<size_t>(layer);
  const auto found = std::find(table_.layers.begin(), table_.layers.end(), layer);
  if (counts) {
    brought_[at] -= counted_[at].brought;
    accepted_[at] -= counted_[at].accepted;
  }
  Weigh(table_.Of(replicas_), static_cast<size_t>(found - table_.layers.begin()), counts);
}

absl::Status Exchange::FinishLike(int layer, const LayerOutcome& outcome) {
  if (outcome.rolled_back != 0) {
    verdicts_[static_cast<size_t>(layer)].accepted = 0;
  }
  ENTRAIN_RETURN_IF_ERROR(Begin(layer));
  return FinishWith(layer, &outcome);
}

// Returns the arrays that a rank sends to another rank so that the receiver can finish the layer
// too: the anchor and the arrays of its outer state, or the combined delta.
std::vector<float*> Exchange::StateOf(int layer) {
  if (options_.keeps_means()) {
    return {MeanOf(layer)};
  }
  std::vector<float*> parts = {anchors_.anchor(layer)};
  for (int array = 0; array < anchors_.outer_arrays(); ++array) {
    parts.push_back(anchors_.outer(array, layer));
  }
  return parts;
}

// Collective over the sync group. Rank `root` sends its arrays of the layer. Returns a copy on the
// other ranks.
absl::StatusOr<OwnedBuffer> Exchange::BroadcastState(int layer, int root) {
  const std::vector<float*> parts = StateOf(layer);
  const int64_t count = slab_.layer(layer).shard;
  const bool sends = groups_.sync->rank() == root;
  OwnedBuffer received;
  if (!sends) {
    ENTRAIN_ASSIGN_OR_RETURN(
        received, OwnedBuffer::Allocate(static_cast<int64_t>(parts.size()) * count * kFloat));
  }
  auto* const room = reinterpret_cast<float*>(received.data());
  for (size_t i = 0; i < parts.size(); ++i) {
    const CallOptions options = Options(layer);
    WorkerThread::Doing(absl::StrCat("layer ", layer, ": the anchor of replica ",
                                     replicas_[static_cast<size_t>(root)]),
                        options.timeout_ns);
    ENTRAIN_RETURN_IF_ERROR(
        groups_.sync->Broadcast(sends ? parts[i] : room + static_cast<int64_t>(i) * count, count,
                                DType::kF32, root, options));
  }
  return received;
}

void Exchange::TakeState(int layer, const OwnedBuffer& received) {
  const int64_t count = slab_.layer(layer).shard;
  const auto* from = reinterpret_cast<const float*>(received.data());
  for (float* const part : StateOf(layer)) {
    CopyArray(part, from, count * kFloat);
    from += count;
  }
  anchors_.Seal(layer);
}

// The result is received into separate memory first. If the sender is lost too, the layer may have
// to be finished from the old anchor.
absl::Status Exchange::Share(int layer, int root, bool finished, const LayerOutcome& outcome) {
  if (outcome.rolled_back != 0) {
    if (!finished) {
      verdicts_[static_cast<size_t>(layer)].accepted = 0;
      return FinishWith(layer, nullptr);
    }
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(const OwnedBuffer received, BroadcastState(layer, root));
  if (finished) {
    return absl::OkStatus();
  }
  KeepOldAnchor(layer);
  NoteScales(layer, outcome.scales);
  outcomes_[static_cast<size_t>(layer)] = outcome;
  if (options_.keeps_means()) {
    outer_.SetSteps(layer, outcome.outer_steps - 1);
    return StepOuter(layer, reinterpret_cast<float*>(received.data()), outcome.scales);
  }
  TakeState(layer, received);
  outer_.SetSteps(layer, outcome.outer_steps);
  if (!overlapped(layer)) {
    live_.Write(layer, anchors_.anchor(layer), slab_.layer(layer).valid);
  }
  return absl::OkStatus();
}

}  // namespace entrain
