#include "lib/train/joint_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker_thread.h"

namespace entrain {
namespace {

// What a rank says in Settle. Ranks send this struct as it is in memory.
struct Place {
  int64_t round = 0, made = 0, bytes = 0;
};
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
  WorkerThread::Doing("after a loss: which joint calls are over", options.timeout_ns);
  const Place mine = {.round = round,
                      .made = round == round_ ? made_ : 0,
                      .bytes = static_cast<int64_t>(outcome_.size())};
  std::vector<Place> places(static_cast<size_t>(all.size()));
  ENTRAIN_RETURN_IF_ERROR(all.AllGather(&mine, places.data(), kNumbers, DType::kI64, options));
  const auto most = std::max_element(
      places.begin(), places.end(), [](const Place& a, const Place& b) { return a.made < b.made; });
  const bool in_one_round = std::all_of(
      places.begin(), places.end(), [&](const Place& place) { return place.round == mine.round; });
  const bool alike = std::all_of(places.begin(), places.end(),
                                 [&](const Place& place) { return place.made == most->made; });
  if (!in_one_round || alike) {
    return absl::OkStatus();
  }
  const auto from = static_cast<int>(most - places.begin());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].made + 1 < most->made) {
      return absl::DataLossError(absl::StrCat("after a loss rank ", rank, " has made ",
                                              places[rank].made, " calls since round ", round,
                                              ", and rank ", from, " has made ", most->made));
    }
  }
  std::string outcome = outcome_;
  outcome.resize(static_cast<size_t>(most->bytes));
  ENTRAIN_RETURN_IF_ERROR(all.Broadcast(outcome.data(), most->bytes, DType::kU8, from, options));
  if (mine.made < most->made) {
    outcome_ = std::move(outcome);
    made_ = most->made;
    round_ = round;
  }
  return absl::OkStatus();
}

}  // namespace entrain
