#include "lib/device/calls/device_call.h"

#include <atomic>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/packed_call.h"

namespace entrain {
namespace {

// The longest time that the thread that starts a call waits until the library begins the call.
// Usually the library begins at once.
constexpr int64_t kBeginLimitNs = 100 * kMicrosecond;

}  // namespace

DeviceCall::DeviceCall(std::shared_ptr<CommCore> core, DeviceSide& side, const Call& call,
                       int64_t started_ns, bool holds)
    : Work(&core->engine()),
      core_(std::move(core)),
      side_(side),
      device_(side.device()),
      call_(std::make_shared<const Call>(call)),
      started_ns_(started_ns),
      input_(device_),
      must_hold_(holds && call.options.on_stream),
      settled_(!MayChoose(call)) {}

bool DeviceCall::MayChoose(const Call& call) {
  return call.options.device && call.options.user_tag < 0 && !IsMessage(call.kind);
}

size_t DeviceCall::NumbersFor(const Call& call, int size, bool with_meeting) {
  return (with_meeting ? kMeetingParts : 0) + StagedParts(call, size);
}

// ---- The start of a call

bool DeviceCall::IsOffloaded() const {
  return MayChoose(*call_) && side_.offload() != nullptr && side_.offload()->offload->Takes(*call_);
}

WorkInfo DeviceCall::Info() const {
  return InfoOf(core_->config().name, *call_, numbers_[0].sequence + 1, started_ns_);
}

absl::Status DeviceCall::Reserve() {
  // Before the meeting, a call that may choose takes the memory of both methods.
  const bool chooses_later = MayChoose(*call_) && !side_.met();
  const bool offloaded = !chooses_later && IsOffloaded();
  if (!offloaded) {
    ENTRAIN_ASSIGN_OR_RETURN(staged_, MakeStagedWay(*this));
  }
  if ((offloaded || chooses_later) && side_.library() != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(scratch_, side_.scratch().Take(side_.library()->ScratchBytes(*call_)));
  }
  if (must_hold_) {
    ENTRAIN_ASSIGN_OR_RETURN(word_, side_.words().Take());
  }
  return absl::OkStatus();
}

absl::Status DeviceCall::MarkInput() {
  return call_->options.on_stream ? input_.Record(call_->options.stream) : absl::OkStatus();
}

void DeviceCall::SetNumbers(std::vector<Wiring> numbers, bool with_meeting) {
  numbers_ = std::move(numbers);
  if (with_meeting) {
    meeting_ = MakeMeeting(*this);
  }
}

absl::Status DeviceCall::GiveToLibrary() {
  input_is_ready_ = true;  // the library waits for the input on the device
  way_ = MakeOffloadWay(*this, *side_.offload());
  const Clock& clock = Clock::Real();
  const int64_t since = clock.Now();
  for (int64_t now = since;; now = clock.Now()) {
    bool moved = false;
    ENTRAIN_RETURN_IF_ERROR(way_->Step(&moved).status());
    if (way_->settled() || now - since >= kBeginLimitNs) {
      return absl::OkStatus();
    }
    PauseAfter(now - since);
  }
}

absl::Status DeviceCall::OffloadOrHold(bool may_offload) {
  absl::Status status;
  if (may_offload && side_.met() && IsOffloaded()) {
    status = GiveToLibrary();
    if (status.ok() && way_->settled()) {
      settled_.store(true, std::memory_order_release);
      return absl::OkStatus();
    }
  }
  if (std::exchange(must_hold_, false)) {
    holds_ = true;
    status.Update(device().AwaitWord(call_->options.stream, word_, *word_ + 1));
  }
  return status;
}

// ---- Called by the runner

bool DeviceCall::Step(int64_t now_ns, bool* moved) {
  if (failed_.ok()) {
    failed_ = core_->end().status();
  }
  if (failed_.ok()) {
    const auto over = Advance(moved);
    if (over.ok() && *over) {
      End(absl::OkStatus());
      return true;
    }
    failed_ = over.status();
    if (over.ok() && call_->options.deadline.Passed(now_ns)) {
      const DeviceWay* const way = meeting_ != nullptr ? meeting_.get() : way_.get();
      const char* const missing = !input_is_ready_ ? "what its stream had to do before"
                                  : way == nullptr ? "its turn"
                                                   : way->WaitsFor();
      failed_ = missing == nullptr ? absl::OkStatus() : TimeIsUp(missing, now_ns);
    }
    if (!failed_.ok()) {
      *moved = true;
      core_->EndHere(failed_);  // the other ranks wait for this rank
      failed_ = core_->end().status();
    }
  }
  if (failed_.ok()) {
    return false;
  }
  side_.AbortOffload();
  if ((meeting_ != nullptr && !meeting_->Quiet()) || (way_ != nullptr && !way_->Quiet())) {
    return false;
  }
  End(failed_);
  return true;
}

absl::StatusOr<bool> DeviceCall::Advance(bool* moved) {
  if (!input_is_ready_) {
    ENTRAIN_ASSIGN_OR_RETURN(input_is_ready_, input_.Reached());
    if (!input_is_ready_) {
      return false;
    }
    *moved = true;
  }
  if (meeting_ != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(const bool met, meeting_->Step(moved));
    if (!met) {
      return false;
    }
    meeting_.reset();
    first_number_ = kMeetingParts;
  }
  if (way_ == nullptr) {
    *moved = true;
    way_ =
        side_.met() && IsOffloaded() ? MakeOffloadWay(*this, *side_.offload()) : std::move(staged_);
  }
  ENTRAIN_ASSIGN_OR_RETURN(const bool over, way_->Step(moved));
  if (way_->settled()) {
    settled_.store(true, std::memory_order_release);
  }
  return over;
}

absl::StatusOr<RefPtr<Work>> DeviceCall::Launch(size_t number, Call part) {
  part.options = call_->options;
  part.whole = call_;
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work,
                           core_->funnel().LaunchPart(part, numbers_[first_number_ + number],
                                                      RefPtr<Work>::Share(this), started_ns_));
  core_->engine().seat().Kick();
  return work;
}

absl::StatusOr<RefPtr<Work>> DeviceCall::LaunchPacked(const Call& staged) {
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<PackedCall> packed,
                           PackedCall::Make(core_->packed_parts(), staged, started_ns_));
  const auto first = numbers_.begin() + static_cast<std::ptrdiff_t>(first_number_);
  const auto parts = static_cast<std::ptrdiff_t>(PackedCall::PartsOf(staged));
  ENTRAIN_RETURN_IF_ERROR(packed->Begin(std::vector<Wiring>(first, first + parts)));
  core_->engine().seat().Kick();
  return RefPtr<Work>::Adopt(packed.Leak());
}

// ---- The end of a call

// Calls Work::Finish. Only the engine's driver may do this.
class DeviceCall::FinishJob final : public Job {
 public:
  FinishJob(RefPtr<DeviceCall> call, absl::Status status)
      : call_(std::move(call)), status_(std::move(status)) {}
  void Run() override {
    call_->Finish(std::move(status_));
    delete this;
  }

 private:
  const RefPtr<DeviceCall> call_;
  absl::Status status_;
};

void DeviceCall::End(absl::Status status) {
  over_.store(true, std::memory_order_release);
  way_.reset();
  meeting_.reset();
  staged_.reset();
  if (holds_) {
    // Release order: the device sees the host's earlier writes before it sees the word's new value.
    std::atomic_ref<uint32_t>(*word_).fetch_add(1, std::memory_order_release);
  }
  GiveBack();
  Engine& engine = core_->engine();
  engine.seat().Submit(new FinishJob(RefPtr<DeviceCall>::Share(this), std::move(status)));
  engine.seat().Kick();
}

void DeviceCall::GiveBack() {
  if (scratch_.data != nullptr) {
    side_.scratch().Give(std::exchange(scratch_, {}));
  }
  if (word_ != nullptr) {
    side_.words().Give(std::exchange(word_, nullptr));
  }
}

absl::Status DeviceCall::TimeIsUp(const char* missing, int64_t now_ns) const {
  const Wiring& number = numbers_.front();
  Blame blame;
  blame.rank = core_->rank();
  const absl::string_view name = NameOf(call_->kind);
  blame.operation.assign(name.data(), name.size());
  blame.tag = call_->options.user_tag;
  blame.sequence = number.sequence + 1;
  blame.phase = Phase::kTransfer;
  blame.elapsed_ns = now_ns - started_ns_;
  blame.deadline_ns = call_->options.timeout_ns;
  return WithBlame(absl::DeadlineExceededError(absl::StrCat(
                       core_->config().name, ": ", ToString(call_->descriptor()), " #",
                       blame.sequence, " of rank ", core_->rank(), ": no end after ",
                       (now_ns - started_ns_) / kMillisecond, " ms: waiting for ", missing,
                       " on device ", device().ordinal(), " (", device().name(), ")")),
                   blame);
}

}  // namespace entrain
