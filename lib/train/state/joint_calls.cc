#include "lib/train/state/joint_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// In Settle each rank sends its round, the number of calls that it has finished since that round, and
// the size of the last outcome. The number is kNone if the rank has begun no call since its round. Ranks send
// this struct as it is in memory.
struct Place {
  int64_t round = 0, made = 0, bytes = 0;
};
constexpr int64_t kNone = -1;
constexpr int64_t kNumbers = sizeof(Place) / sizeof(int64_t);

std::string Encode(const absl::Status& status, absl::string_view result) {
  return Writer().PutText(EncodeStatus(status)).PutText(result).Take();
}

}  // namespace

JointCalls::Outcome JointCalls::Make(int64_t round, const Call& call) {
  int64_t before = 0;
  for (bool first = true;; first = false) {
    {
      const absl::MutexLock lock(&mutex_);
      if (round_ != round) {
        round_ = round;
        made_ = 0;
      }
      if (first) {
        before = made_;
      } else if (made_ > before) {  // another rank has finished the call
        Reader reader(outcome_);
        const auto status = DecodeStatus(reader.GetText());
        const absl::string_view result = reader.GetText(outcome_.size());
        return {.status = status.value_or(absl::InternalError(
                    "the outcome that another rank has sent was not understood")),
                .result = std::string(result)};
      }
      AllRanks all = call.everybody();
      std::string result;
      absl::Status status = call.attempt(all, &result);
      if (!all.broken()) {
        ++made_;
        outcome_ = Encode(status, result);
        return {.status = std::move(status), .result = std::move(result)};
      }
      if (call.lost().ok()) {
        return {.status = std::move(status), .result = "", .broken = true};
      }
    }
    if (absl::Status status = call.recover(); !status.ok()) {
      return {.status = std::move(status), .result = "", .broken = true};
    }
  }
}

absl::Status JointCalls::Recover(absl::FunctionRef<absl::Status()> body) {
  const absl::MutexLock lock(&mutex_);
  return body();
}

absl::Status JointCalls::Settle(Communicator& all, int64_t round, int64_t timeout_ns) {
  const CallOptions options = TimedCall(timeout_ns, -1, true);
  Worker::Doing("after a loss: which joint calls are over", options.timeout_ns);
  const Place mine = {.round = round,
                      .made = round == round_ ? made_ : kNone,
                      .bytes = static_cast<int64_t>(outcome_.size())};
  std::vector<Place> places(static_cast<size_t>(all.size()));
  ENTRAIN_RETURN_IF_ERROR(all.AllGather(&mine, places.data(), kNumbers, DType::kI64, options));
  // Ranks that make calls after the same round differ by one call at most. A newcomer that was
  // admitted behind these calls has made none, and may be in another round.
  const auto in_round_of = [](const Place& one) {
    return [&one](const Place& place) { return place.round == one.round; };
  };
  const auto lacks = [&](const Place& place) {
    return place.made != kNone &&
           std::any_of(places.begin(), places.end(), [&](const Place& other) {
             return in_round_of(place)(other) && other.made > place.made;
           });
  };
  const auto first = std::find_if(places.begin(), places.end(), lacks);
  if (first == places.end()) {
    return absl::OkStatus();
  }
  const auto most = std::find_if(places.begin(), places.end(), [&](const Place& place) {
    return in_round_of(*first)(place) && place.made != kNone && !lacks(place);
  });
  const auto from = static_cast<int>(most - places.begin());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (lacks(places[rank]) && places[rank].made + 1 < most->made) {
      return absl::DataLossError(absl::StrCat(
          "after a loss rank ", rank, " has made ", places[rank].made, " calls since round ",
          first->round, ", and rank ", from, " has made ", most->made));
    }
  }
  std::string outcome = outcome_;
  outcome.resize(static_cast<size_t>(most->bytes));
  ENTRAIN_RETURN_IF_ERROR(all.Broadcast(outcome.data(), most->bytes, DType::kU8, from, options));
  if (lacks(mine)) {
    outcome_ = std::move(outcome);
    made_ = most->made;
    round_ = round;
  }
  return absl::OkStatus();
}

}  // namespace entrain
