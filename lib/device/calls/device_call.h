// One call on device memory under way: see device_runner.h.
//
// Thread safety: one thread starts it, then it is the runner's; as a Work, any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/base/call.h"
#include "lib/device/calls/device_side.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"

namespace entrain {

class CommCore;
class DeviceCall;
struct PartGroup;

// What a call does, in steps that never wait.
class DeviceWay {
 public:
  virtual ~DeviceWay() = default;
  // True: all is done. After an error, or when the communicator has ended, not called again; but Quiet is.
  virtual absl::StatusOr<bool> Step(bool* moved) = 0;
  // Whether the device and the parts have let go of all buffers.
  virtual bool Quiet() = 0;
  // What is missing when the time is up; null: a part, which has its own time.
  virtual const char* WaitsFor() const = 0;
  // Whether calls after it may choose their way and begin: it gives nothing more to streams and libraries that all share,
  // where the order is the same on all ranks.
  virtual bool settled() const { return true; }
};

class DeviceCall final : public Work {
 public:
  // Checked, with a deadline. `side` outlives it. `holds`: what follows on the call's stream, if there is one, waits.
  DeviceCall(std::shared_ptr<CommCore> core, DeviceSide& side, const Call& call, int64_t started_ns,
             bool holds);
  ~DeviceCall() override { GiveBack(); }
  WorkInfo Info() const override;

  // Untagged collectives on device memory may go other ways than staged, once the ranks have met.
  static bool MayChoose(const Call& call);
  static size_t NumbersFor(const Call& call, int size, bool with_meeting);

  // ---- Where it is started, in this order
  // Finds what memory it may need. Whoever allocates such memory may wait for streams of the device, and one will wait for
  // the call.
  absl::Status Reserve();
  // The rest of what can fail without harm to others: marks the stream.
  absl::Status MarkInput();
  void SetNumbers(std::vector<Wiring> numbers, bool with_meeting);
  // Gives it to the library, if that can be now; else, also after an error, what follows on the stream waits for the end. After
  // an error the communicator is to be ended, and the call is the runner's like any other.
  absl::Status OffloadOrHold(bool may_offload);

  // ---- The runner's
  // What can be done now. True: over, whatever came of it, and Finish is under way.
  bool Step(int64_t now_ns, bool* moved);
  // Any thread: whether calls after it may choose their way and begin.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // Its end has begun: before its stream goes on, or its work is done.
  bool over() const { return over_.load(std::memory_order_acquire); }

  // ---- For its ways
  const Call& call() const { return *call_; }
  CommCore& core() const { return *core_; }
  DeviceSide& side() const { return side_; }
  Device& device() const { return device_; }
  Deadline deadline() const { return call_->options.deadline; }
  // Null: the input was ready from the beginning.
  EventHandle input_ready() const { return input_.event(); }
  // The stream has yet to be made to wait for the call.
  bool must_hold() const { return must_hold_; }
  // Device memory for what must not be written where it belongs yet; as much as its way has asked for.
  std::byte* scratch() const { return scratch_.data; }
  // Numbers of parts begin behind so many from now on: what has had these gives way to another.
  void LeaveBehind(size_t parts) { first_number_ += parts; }
  // The staged way, for a direct call that finds that it has to be staged.
  std::unique_ptr<DeviceWay> TakeStaged() { return std::move(staged_); }
  // Starts the part of this number, from 0, of the meeting or the way; its options and descriptor are the whole's.
  // `among`: whose ranks exchange it; null: all.
  absl::StatusOr<RefPtr<Work>> Launch(size_t number, Call part, PartGroup* among = nullptr);
  // A reduction whose contributions travel packed, of what has been staged: all of its parts.
  absl::StatusOr<RefPtr<Work>> LaunchPacked(const Call& staged);

 private:
  class FinishJob;
  void GiveBack();
  absl::StatusOr<bool> Advance(bool* moved);
  enum class Way { kStaged, kOffloaded, kNodeGroups, kDirect };
  // From what all ranks know alike, once they have met.
  Way WayOnceMet() const;
  // Whether it is this way, or may yet be.
  bool MayGo(Way way) const { return (MayChoose(*call_) && !side_.met()) || WayOnceMet() == way; }
  // Waits for kBeginLimitNs at most.
  absl::Status GiveToLibrary();
  std::unique_ptr<DeviceWay> TakeWay();
  void End(absl::Status status);
  absl::Status TimeIsUp(const char* missing, int64_t now_ns) const;

  const std::shared_ptr<CommCore> core_;
  DeviceSide& side_;  // not after the end
  Device& device_;
  const std::shared_ptr<const Call> call_;
  const int64_t started_ns_;
  std::vector<Wiring> numbers_;
  size_t first_number_ = 0;  // of the meeting, then of the way
  DeviceMark input_;
  bool input_is_ready_ = false;
  uint32_t* word_ = nullptr;  // for who follows on the stream
  bool must_hold_;            // the stream, which
  bool holds_ = false;        // waits for the word
  BlockPool::Block scratch_;
  std::unique_ptr<DeviceWay> meeting_, way_;
  std::unique_ptr<DeviceWay> staged_, node_groups_;  // what it may come to, with all their memory
  std::atomic<bool> settled_;
  std::atomic<bool> over_{false};
  absl::Status failed_;
};

std::unique_ptr<DeviceWay> MakeMeeting(DeviceCall& call);
constexpr size_t kMeetingParts = 2;
// Below this a call is bound by what hosts tell each other, which is least when it is staged. A guess: never measured.
constexpr int64_t kLeastDeviceBytes = 128 << 10;
// From what all ranks know alike.
bool DirectServes(const Call& call, int size, const Device& device);
int64_t DirectScratch(const Call& call);  // in bytes
std::unique_ptr<DeviceWay> MakeDirectWay(DeviceCall& call);
constexpr size_t kDirectParts = 4;
constexpr size_t kDirectPartsBeforeStaging = 2;  // where that is what comes of it
// Its first step gives the call to the library, behind what the call's stream had to do before. Once that has begun, the
// stream waits for it, unless something else makes it wait.
std::unique_ptr<DeviceWay> MakeOffloadWay(DeviceCall& call, DeviceOffload& to);
// With all the memory that it will need.
absl::StatusOr<std::unique_ptr<DeviceWay>> MakeStagedWay(DeviceCall& call);
size_t StagedParts(const Call& call, int size);
// With all the page-locked memory that it will need; what the node group's library takes of it is asked besides.
bool NodeGroupsServe(const Call& call, const NodeGroups& node_groups);
int64_t NodeGroupsScratch(const Call& call, const NodeGroups& node_groups);
// `node_groups` outlives it. No more parts than the staged way has.
absl::StatusOr<std::unique_ptr<DeviceWay>> MakeNodeGroupsWay(DeviceCall& call,
                                                             const NodeGroups& node_groups);

// A part that may be under way.
class PartUnderWay {
 public:
  void Set(RefPtr<Work> work) { work_ = std::move(work); }
  bool started() const { return static_cast<bool>(work_); }
  // Started, and well over.
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
