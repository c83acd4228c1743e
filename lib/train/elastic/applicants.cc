#include "lib/train/elastic/applicants.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/create/applications.h"
#include "lib/comm/create/runtime.h"
#include "lib/train/elastic/admission_meeting.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// Returns an error if replicas of the run have another number of ranks, as far as this is known.
absl::Status CheckRanks(int ranks, int of_members) {
  return of_members == 0 || of_members == ranks
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat(
                   "joining: this replica has ", ranks, ranks == 1 ? " rank" : " ranks",
                   ", those of the run have ", of_members, "; start it with as many ranks"));
}

}  // namespace

int64_t Applicants::Count() {
  if (silent_ && !look_again_.Passed(Clock::Real().Now())) {
    return 0;
  }
  Worker::Doing("newcomers: looking into the store", kLookNs + kSecond);
  const Stop stop{Deadline::After(kLookNs)};
  const auto count = [&]() -> absl::StatusOr<int64_t> {
    if (store_ == nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(store_, open_(stop));
      ENTRAIN_RETURN_IF_ERROR(SetRanksOfReplica(*store_, name_, ranks_, stop));
    }
    return CountApplications(*store_, name_, stop);
  };
  const absl::StatusOr<int64_t> waiting = count();
  if (waiting.ok()) {
    silent_ = false;
    return *waiting;
  }
  store_ = nullptr;  // another server may take the place of the one that has ended
  look_again_ = Deadline::After(kSilentNs);
  if (!std::exchange(silent_, true)) {
    ENTRAIN_LOG(kWarning, object_,
                ": newcomers: the store does not answer: ", waiting.status().message());
  }
  return 0;
}

absl::StatusOr<std::shared_ptr<Communicator>> Applicants::Grow(Communicator& from, int least,
                                                               int most, int64_t timeout_ns) {
  GrowOptions options;
  options.store = open_;
  options.min_newcomers = least;
  options.max_newcomers = most;
  options.timeout_ns = timeout_ns;
  options.attempt_ns = kAdmissionNs;
  options.name = name_;
  options.connect_only = true;
  Worker::Doing("newcomers: connecting them", 2 * timeout_ns);
  return from.Grow(options);
}

absl::StatusOr<uint64_t> GroupOf(Communicator& own) {
  const PeerId& id = own.runtime().id();
  uint64_t group = 0;
  std::memcpy(&group, id.data(), std::min(sizeof(group), id.size()));
  ENTRAIN_RETURN_IF_ERROR(own.Broadcast(&group, 1, DType::kU64, /*root=*/0));
  return group;
}

absl::Status ApplyUntilTakenIn(
    absl::string_view object, int ranks, Communicator& own, const OpenStoreFn& open,
    const std::string& name, int64_t wait_ns,
    absl::FunctionRef<absl::Status(const std::shared_ptr<Communicator>& world)> attempt) {
  const Deadline until = Deadline::After(wait_ns);
  ENTRAIN_ASSIGN_OR_RETURN(const auto store, open({until}));
  const auto known = [&] {  // 0 while the store does not tell
    return RanksOfReplica(*store, name, {Deadline::After(kSecond)}).value_or(0);
  };
  // The ranks of a replica must not look at different times, because some would go on alone.
  int32_t of_members = known();
  ENTRAIN_RETURN_IF_ERROR(own.Broadcast(&of_members, 1, DType::kI32, /*root=*/0));
  ENTRAIN_RETURN_IF_ERROR(CheckRanks(ranks, of_members));
  absl::Status last;
  while (true) {
    const int64_t left_ns = std::max<int64_t>(until.at_ns - Clock::Real().Now(), 1);
    const auto world = own.JoinOther(store, name, left_ns);
    if (!world.ok()) {
      ENTRAIN_RETURN_IF_ERROR(CheckRanks(ranks, known()));
      return last.ok() ? world.status()
                       : Annotate(world.status(),
                                  absl::StrCat("after an attempt (", last.message(), ")"));
    }
    last = attempt(*world);
    if (last.ok()) {
      return last;
    }
    (*world)->LeaveWith(absl::AbortedError(last.message()));
    if (absl::IsDataLoss(last) || absl::IsInvalidArgument(last)) {
      return last;
    }
    ENTRAIN_RETURN_IF_ERROR(CheckRanks(ranks, known()));
    ENTRAIN_LOG(kInfo, object, ": joining: applying again: ", last.message());
  }
}

}  // namespace entrain
