// One call on device memory, from its start to its end. device_runner.h describes calls as a whole.
//
// Thread safety: one thread starts the call, afterwards only the runner uses it. The functions of
// Work may be called from any thread.
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

// The work of a call, in steps that never block.
class DeviceWay {
 public:
  virtual ~DeviceWay() = default;
  // Does the steps that are possible now, and sets *moved if it did any. Returns true when the call
  // is complete. After an error, and after the end of the communicator, Step is not called again,
  // but Quiet is.
  virtual absl::StatusOr<bool> Step(bool* moved) = 0;
  // Returns true if the device and the parts no longer use any buffer.
  virtual bool Quiet() = 0;
  // Returns the cause of the wait, for the error at the deadline. Returns null if the call waits
  // for a part, which has a deadline of its own.
  virtual const char* WaitsFor() const = 0;
  // Returns true if the next calls may choose their methods and begin. From then on this call
  // enqueues nothing more on streams and libraries that the calls share. On these the order of
  // calls must be the same on all ranks.
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

  // Returns true for untagged collectives. Once the meeting is over, these may use another method
  // than the staged one.
  static bool MayChoose(const Call& call);
  static size_t NumbersFor(const Call& call, int size, bool with_meeting);

  // ---- Called by the thread that starts the call, in this order
  // Takes all memory that the call may need. Allocating it later could wait for streams of the
  // device, and one of these streams will wait for this call.
  absl::Status Reserve();
  // Marks the stream. This is the last function that may fail without harm to other ranks.
  absl::Status MarkInput();
  void SetNumbers(std::vector<Wiring> numbers, bool with_meeting);
  // Gives the call to the library if that is possible now. Otherwise, and after an error, makes
  // later work on the stream wait for the end of the call. After an error the caller must end the
  // communicator; the runner finishes the call as usual.
  absl::Status OffloadOrHold(bool may_offload);

  // ---- Called by the runner
  // Does the steps that are possible now. Returns true when the call is over, successful or not,
  // and Finish is under way.
  bool Step(int64_t now_ns, bool* moved);
  // Returns true if later calls may choose their methods and begin. Any thread may call this.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // Returns true once the end of the call has begun. The caller's stream may not have continued
  // yet, and this Work may not be done yet.
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
  // Returns device memory for results that must not be written to the output yet. The memory is
  // large enough for every method that the call may choose.
  std::byte* scratch() const { return scratch_.data; }
  // Skips the numbers of `parts` parts. Called when a DeviceWay has used these numbers and is then
  // replaced by another one.
  void LeaveBehind(size_t parts) { first_number_ += parts; }
  // Returns the StagedWay, for a direct call that has to be staged.
  std::unique_ptr<DeviceWay> TakeStaged() { return std::move(staged_); }
  // Starts part `number`, counted from 0, of the meeting or of the DeviceWay. The part has the
  // options and the descriptor of the whole call. `among` is the group of ranks that exchange the
  // part; null: all ranks.
  absl::StatusOr<RefPtr<Work>> Launch(size_t number, Call part, PartGroup* among = nullptr);
  // Starts all parts of a reduction with packed contributions, on staged data.
  absl::StatusOr<RefPtr<Work>> LaunchPacked(const Call& staged);

 private:
  class FinishJob;
  void GiveBack();
  absl::StatusOr<bool> Advance(bool* moved);
  enum class Way { kStaged, kOffloaded, kNodeGroups, kDirect };
  // Returns the call's method, once the meeting is over. The choice depends only on values that are
  // equal on all ranks.
  Way WayOnceMet() const;
  // Returns true if the call uses this method, or may still choose it.
  bool MayGo(Way way) const { return (MayChoose(*call_) && !side_.met()) || WayOnceMet() == way; }
  // Blocks for at most kBeginLimitNs.
  absl::Status GiveToLibrary();
  std::unique_ptr<DeviceWay> TakeWay();
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
  // The objects of the methods that the call may choose, with their memory.
  std::unique_ptr<DeviceWay> staged_, node_groups_;
  std::atomic<bool> settled_;
  std::atomic<bool> over_{false};
  absl::Status failed_;
};

std::unique_ptr<DeviceWay> MakeMeeting(DeviceCall& call);
constexpr size_t kMeetingParts = 2;
// Below this size the messages between hosts dominate the time of a call, and the staged method has
// the fewest messages. The value is a guess, not measured.
constexpr int64_t kLeastDeviceBytes = 128 << 10;
// Returns true if the direct method can do the call. Follows from values that are equal on all
// ranks.
bool DirectServes(const Call& call, int size, const Device& device);
int64_t DirectScratch(const Call& call);  // returns bytes
std::unique_ptr<DeviceWay> MakeDirectWay(DeviceCall& call);
constexpr size_t kDirectParts = 4;
constexpr size_t kDirectPartsBeforeStaging = 2;  // parts used before a call turns staged
// The first step of this DeviceWay gives the call to the library, behind the earlier work of the
// caller's stream. When the library has begun the call, and must_hold() is true, the caller's
// stream is made to wait for the end of the call.
std::unique_ptr<DeviceWay> MakeOffloadWay(DeviceCall& call, DeviceOffload& to);
// Takes all memory that the StagedWay needs.
absl::StatusOr<std::unique_ptr<DeviceWay>> MakeStagedWay(DeviceCall& call);
size_t StagedParts(const Call& call, int size);
// Returns true if the method of node groups can do the call. The node group's library must be asked
// separately.
bool NodeGroupsServe(const Call& call, const NodeGroups& node_groups);
int64_t NodeGroupsScratch(const Call& call, const NodeGroups& node_groups);
// Takes all page-locked memory that the NodeGroupsWay needs. `node_groups` must outlive the
// NodeGroupsWay, which has at most as many parts as the StagedWay.
absl::StatusOr<std::unique_ptr<DeviceWay>> MakeNodeGroupsWay(DeviceCall& call,
                                                             const NodeGroups& node_groups);

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
