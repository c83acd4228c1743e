#include "lib/train/acco/channel_admission.h"

#include <limits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/train/acco/channel_transfer.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {
namespace {

// Rank 0 queries the store for applications at most once in this time.
constexpr int64_t kLookEveryNs = 20 * kMillisecond;

void TurnAway(Communicator* grown, absl::string_view why) {
  if (grown != nullptr) {
    grown->LeaveWith(absl::AbortedError(absl::StrCat("the members did not take it in: ", why)));
  }
}

}  // namespace

struct ChannelAdmission::Growth {
  explicit Growth(std::shared_ptr<Communicator> comm) : from(std::move(comm)) {}
  bool IsOver() {
    absl::MutexLock lock(&mutex);
    return over;
  }

  const std::shared_ptr<Communicator> from;
  absl::Mutex mutex;
  bool over ABSL_GUARDED_BY(mutex) = false;
  std::string dropped ABSL_GUARDED_BY(mutex);  // why this attempt was dropped; "": it was not
  std::shared_ptr<Communicator> grown ABSL_GUARDED_BY(mutex);
};

ChannelAdmission::ChannelAdmission(const ChannelOptions& options, ReplicaWorld& world,
                                   absl::AnyInvocable<void(const absl::Status&)> give_up)
    : options_(options),
      world_(world),
      alike_(AlikeForNewcomers(options)),
      applicants_("acco", /*ranks=*/1, options.admit_store, options.admit_name),
      thread_(options.limit_ns, std::move(give_up)) {}

ChannelAdmission::~ChannelAdmission() {
  const std::shared_ptr<Growth> growth = growth_;
  Drop("the channel is destroyed");
  if (growth != nullptr && !growth->IsOver()) {
    growth->from->EndWith(absl::AbortedError("acco: destroyed while newcomers were connected"));
  }
  thread_.Stop();
}

int ChannelAdmission::Room() const {
  return kMostChannelRanks - world_.comm()->size();
}

AdmissionCounts ChannelAdmission::Tell() {
  AdmissionCounts mine;
  if (growth_ != nullptr) {
    absl::MutexLock lock(&growth_->mutex);
    mine.met = growth_->over && growth_->grown != nullptr ? 1 : 0;
    mine.unmet = growth_->over && growth_->grown == nullptr ? 1 : 0;
  } else if (world_.comm()->rank() == 0 && Room() > 0) {
    mine.applied = applied_.exchange(false) ? 1 : 0;
    Look();
  }
  return mine;
}

void ChannelAdmission::Look() {
  const int64_t now_ns = Clock::Real().Now();
  if (thread_.idle() && now_ns - looked_ns_ >= kLookEveryNs) {
    looked_ns_ = now_ns;
    thread_.Post([this] {
      applied_ = applicants_.Count() > 0;
      return absl::OkStatus();
    });
  }
}

void ChannelAdmission::Begin() {
  growth_ = std::make_shared<Growth>(world_.comm());
  thread_.Post([this, growth = growth_, room = Room()] {
    auto made = applicants_.Grow(*growth->from, 1, room, options_.limit_ns);
    if (!made.ok()) {
      ENTRAIN_LOG(kInfo, "acco: newcomers: none was taken in: ", made.status().message());
    }
    std::shared_ptr<Communicator> grown = made.ok() ? *std::move(made) : nullptr;
    std::string dropped;
    {
      absl::MutexLock lock(&growth->mutex);
      growth->over = true;
      dropped = growth->dropped;
      if (dropped.empty()) {
        growth->grown = std::move(grown);
      }
    }
    TurnAway(grown.get(), dropped);
    return absl::OkStatus();
  });
}

void ChannelAdmission::Drop(absl::string_view why) {
  heard_ = {};
  const std::shared_ptr<Growth> growth = std::exchange(growth_, nullptr);
  if (growth == nullptr) {
    return;
  }
  std::shared_ptr<Communicator> grown;
  {
    absl::MutexLock lock(&growth->mutex);
    growth->dropped = std::string(why);
    grown = std::exchange(growth->grown, nullptr);
  }
  TurnAway(grown.get(), why);
}

void ChannelAdmission::Await() {
  thread_.Drain().IgnoreError();  // if a job fails, give_up has ended the communicator
}

absl::StatusOr<AdmittedRanks> ChannelAdmission::Attend(bool committed, const ChannelShare& mine) {
  if (growth_ == nullptr) {
    if (heard_.applied > 0) {
      Begin();
    }
    return AdmittedRanks();
  }
  if (heard_.met + heard_.unmet < world_.comm()->size()) {
    return AdmittedRanks();
  }
  if (heard_.unmet > 0) {
    Drop("it was not connected to all of them");
    return AdmittedRanks();
  }
  if (!committed) {
    return AdmittedRanks();
  }
  heard_ = {};
  const std::shared_ptr<Growth> growth = std::exchange(growth_, nullptr);
  std::shared_ptr<Communicator> grown;
  {
    absl::MutexLock lock(&growth->mutex);
    grown = growth->grown;
  }
  world_.Consider(grown);
  auto admitted = Run(mine, grown);
  world_.Consider(nullptr);
  return admitted;
}

absl::Status ChannelAdmission::TakeIn(const std::shared_ptr<Communicator>& grown,
                                      const ChannelShare& mine, AdmittedRanks* admitted) const {
  const auto take_in = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CallIn(*grown, kAdmissionNs));
    const AdmissionCard card = {.replica = world_.mine().replica,
                                .most_replicas = std::numeric_limits<int32_t>::max(),
                                .first_number = mine.next_number};
    ENTRAIN_ASSIGN_OR_RETURN(admitted->enlarged, MeetNewcomers(grown, card, alike_));
    ChannelTotals totals = mine.totals;
    ENTRAIN_ASSIGN_OR_RETURN(
        admitted->cut, ShareChannel(admitted->enlarged, options_, mine.cut, mine.params, &totals));
    return absl::OkStatus();
  };
  const absl::Status own = take_in();
  int64_t step = 0;
  const absl::Status all = CompareOutcomes(*grown, world_.comm()->size(), own, &step);
  return own.ok() ? all : own;
}

absl::StatusOr<AdmittedRanks> ChannelAdmission::Run(const ChannelShare& mine,
                                                    const std::shared_ptr<Communicator>& grown) {
  const std::shared_ptr<Communicator> from = world_.comm();
  // A member reaches this barrier only after its caller's install. So after the barrier, no member
  // waits for the caller of another member.
  Worker::Doing("newcomers: waiting for the other members");
  if (const absl::Status here = from->Barrier(TimedCall(options_.timeout_ns, -1, true));
      !here.ok()) {
    TurnAway(grown.get(), here.message());
    return here;
  }
  AdmittedRanks admitted;
  const absl::Status taken = TakeIn(grown, mine, &admitted);
  const auto well = AgreeToTakeIn("acco", *from, *grown, taken, options_.limit_ns);
  if (!well.ok()) {
    const absl::Status loss = LossOf(from.get());
    return loss.ok() ? well.status() : loss;
  }
  return *well ? std::move(admitted) : AdmittedRanks();
}

void ChannelAdmission::WelcomeNewcomers() {
  const absl::Status told = Welcome(*world_.comm(), options_.limit_ns);
  if (!told.ok()) {  // a rank is lost, and the next round finds the loss
    ENTRAIN_LOG(kInfo, "acco: newcomers: ", told.message());
  }
}

}  // namespace entrain
