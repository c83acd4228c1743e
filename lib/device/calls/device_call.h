// One call on device memory, from its start to its end. device_runner.h describes the methods, the
// streams and the threads of all calls.
//
// Thread safety: one thread starts the call. Afterwards only the runner (device_runner.h) uses it.
// Any thread may call the functions of Work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/call.h"
#include "lib/device/calls/device_side.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"

namespace entrain {

class CommCore;
class DeviceCall;

// One method of a call (device_runner.h), in steps that never block.
class DeviceWay {
 public:
  virtual ~DeviceWay() = default;
  // Does the steps that are possible now, and sets *moved if it did any. Returns true when the call
  // is complete. After an error, or after the end of the communicator, the caller must call only
  // Quiet.
  virtual absl::StatusOr<bool> Step(bool* moved) = 0;
  // Returns true if neither the device nor a part of the call uses a buffer any more.
  virtual bool Quiet() = 0;
  // Returns what the call waits for. The error at the deadline contains this text. Returns null if
  // the call waits for a part, because a part has a deadline of its own.
  virtual const char* WaitsFor() const = 0;
  // Returns true if later calls may choose their methods and begin. All ranks must give their calls
  // to the library in the same order. So a call is settled when the library has begun it, or when
  // it is staged.
  virtual bool settled() const { return true; }
};

class DeviceCall final : public Work {
 public:
  // `call` must have been checked and have a deadline. `side` must outlive the object. If `holds`
  // is true and the call has a stream, later work on the stream waits for the call.
  DeviceCall(std::shared_ptr<CommCore> core, DeviceSide& side, const Call& call, int64_t started_ns,
             bool holds);
  ~DeviceCall() override { GiveBack(); }
  WorkInfo Info() const override;

  // Returns true for untagged collectives on device memory. After the meeting, the library may do
  // these.
  static bool MayChoose(const Call& call);
  static size_t NumbersFor(const Call& call, int size, bool with_meeting);

  // ---- Called by the thread that starts the call, in this order
  // Takes all memory that the call may need. A later allocation could wait for all streams of the
  // device, and one of these streams will wait for this call.
  absl::Status Reserve();
  // Records an event on the caller's stream, behind the work that writes the input. This is the
  // last function that may fail without harm to other ranks.
  absl::Status MarkInput();
  void SetNumbers(std::vector<Wiring> numbers, bool with_meeting);
  // Gives the call to the library if that is possible now. If it is not, or after an error, makes
  // later work on the stream wait for the end of the call. After an error the caller must end the
  // communicator. The runner then finishes the call as usual.
  absl::Status OffloadOrHold(bool may_offload);

  // ---- Called by the runner
  // Does the steps that are possible now. Returns true when the call is over, with or without an
  // error. A job of the engine then calls Work::Finish.
  bool Step(int64_t now_ns, bool* moved);
  // Returns true if later calls may choose their methods and begin. Any thread may call this.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // Returns true once the end of the call has begun. At this time the caller's stream may still
  // wait, and this Work may not be done.
  bool over() const { return over_.load(std::memory_order_acquire); }

  // ---- Called by the call's DeviceWay objects
  const Call& call() const { return *call_; }
  CommCore& core() const { return *core_; }
  DeviceSide& side() const { return side_; }
  Device& device() const { return device_; }
  Deadline deadline() const { return call_->options.deadline; }
  // Returns null if the input was ready from the beginning.
  EventHandle input_ready() const { return input_.event(); }
  // Returns true if the stream must still be made to wait for the call.
  bool must_hold() const { return must_hold_; }
  // Returns the device memory that the library needs (OffloadLibrary::ScratchBytes).
  std::byte* scratch() const { return scratch_.data; }
  // Starts part `number`, counted from 0, of the meeting or of the DeviceWay. The part gets the
  // options and the descriptor of the whole call.
  absl::StatusOr<RefPtr<Work>> Launch(size_t number, Call part);
  // Starts all parts of a reduction with packed contributions. `staged` is the call, with its data
  // in page-locked memory.
  absl::StatusOr<RefPtr<Work>> LaunchPacked(const Call& staged);

 private:
  class FinishJob;
  void GiveBack();
  absl::StatusOr<bool> Advance(bool* moved);
  // Returns true if the library does the call. If MayChoose is true, the meeting must be over. The
  // result depends only on values that are equal on all ranks.
  bool IsOffloaded() const;
  // Blocks for at most kBeginLimitNs.
  absl::Status GiveToLibrary();
  void End(absl::Status status);
  absl::Status TimeIsUp(const char* missing, int64_t now_ns) const;

  const std::shared_ptr<CommCore> core_;
  DeviceSide& side_;  // not used after the end
  Device& device_;
  const std::shared_ptr<const Call> call_;
  const int64_t started_ns_;
  std::vector<Wiring> numbers_;
  size_t first_number_ = 0;  // first number of the meeting, then of way_
  DeviceMark input_;
  bool input_is_ready_ = false;
  uint32_t* word_ = nullptr;  // later work on the stream waits until this word grows
  bool must_hold_;            // the stream must still be made to wait
  bool holds_ = false;        // the stream waits for the word
  BlockPool::Block scratch_;
  std::unique_ptr<DeviceWay> meeting_, way_;
  std::unique_ptr<DeviceWay> staged_;  // with its memory, until the call chooses its method
  std::atomic<bool> settled_;
  std::atomic<bool> over_{false};
  absl::Status failed_;
};

std::unique_ptr<DeviceWay> MakeMeeting(DeviceCall& call);
constexpr size_t kMeetingParts = 1;
// The first Step gives the call to the library, behind the earlier work of the caller's stream.
// When the library has begun the call, a later Step checks must_hold(). If it is true, this Step
// makes the caller's stream wait for the end of the call.
std::unique_ptr<DeviceWay> MakeOffloadWay(DeviceCall& call, DeviceOffload& to);
// Takes all memory that the StagedWay needs.
absl::StatusOr<std::unique_ptr<DeviceWay>> MakeStagedWay(DeviceCall& call);
size_t StagedParts(const Call& call, int size);

// A part that may have been started.
class PartUnderWay {
 public:
  void Set(RefPtr<Work> work) { work_ = std::move(work); }
  bool started() const { return static_cast<bool>(work_); }
  // Returns true if the part was started and has succeeded.
  absl::StatusOr<bool> Over() const {
    if (!work_ || !work_->done()) {
      return false;
    }
    return work_->status().ok() ? absl::StatusOr<bool>(true) : work_->status();
  }
  bool quiet() const { return !work_ || work_->done(); }
  void Clear() { work_ = RefPtr<Work>(); }

 private:
  RefPtr<Work> work_;
};

}  // namespace entrain
