// What an exchange does after a loss, for Recovery.
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

// The communicators have ended, and so have their calls.
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

// The result goes to memory of its own first: if its sender is lost too, the layer may have to be
// finished from the old anchor.
absl::Status Exchange::Share(int layer, int root, bool finished, const LayerOutcome& outcome) {
  const int64_t count = slab_.layer(layer).shard;
  if (outcome.rolled_back != 0) {
    if (!finished) {
      verdicts_[static_cast<size_t>(layer)].accepted = 0;
      return FinishWith(layer, nullptr);
    }
    return absl::OkStatus();
  }
  std::vector<float*> parts = {anchors_.anchor(layer)};
  for (int array = 0; array < anchors_.outer_arrays(); ++array) {
    parts.push_back(anchors_.outer(array, layer));
  }
  const bool sends = groups_.sync->rank() == root;
  OwnedBuffer received;
  if (!sends) {
    ENTRAIN_ASSIGN_OR_RETURN(
        received, OwnedBuffer::Allocate(static_cast<int64_t>(parts.size()) * count * kFloat));
  }
  auto* const room = reinterpret_cast<float*>(received.data());
  for (size_t i = 0; i < parts.size(); ++i) {
    const CallOptions options = Options(layer);
    WorkerThread::Doing(absl::StrCat("layer ", layer, ": the result of replica ",
                                     replicas_[static_cast<size_t>(root)]),
                        options.timeout_ns);
    ENTRAIN_RETURN_IF_ERROR(
        groups_.sync->Broadcast(sends ? parts[i] : room + static_cast<int64_t>(i) * count, count,
                                DType::kF32, root, options));
  }
  if (finished) {
    return absl::OkStatus();
  }
  KeepOldAnchor(layer);
  for (size_t i = 0; i < parts.size(); ++i) {
    CopyArray(parts[i], room + static_cast<int64_t>(i) * count, count * kFloat);
  }
  anchors_.Seal(layer);
  outer_.SetSteps(layer, outcome.outer_steps);
  NoteScales(layer, outcome.scales);
  if (!overlapped(layer)) {
    live_.Write(layer, anchors_.anchor(layer), slab_.layer(layer).valid);
  }
  outcomes_[static_cast<size_t>(layer)] = outcome;
  return absl::OkStatus();
}

}  // namespace entrain
