// To create a communicator, its ranks meet in a store, compare the settings that must be equal, and
// connect. Communicator::Create, Grow and Join work in this way. A split needs no store.
//
// Thread safety: any thread may call the functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/comm/communicator.h"
#include "lib/comm/core_config.h"
#include "lib/comm/create/bootstrap.h"
#include "lib/comm/create/runtime.h"
#include "lib/comm/plan/overrides.h"
#include "lib/comm/plan/tuning.h"
#include "lib/store/store.h"

namespace entrain {

// The interval at which a waiting rank checks whether another rank has failed.
constexpr int64_t kLookNs = 50 * kMillisecond;

// The settings that must be equal on all ranks of a communicator.
struct SharedSettings {
  std::vector<Override> overrides;
  std::shared_ptr<const Tuning> tuning;
  Determinism determinism = Determinism::kDefault;
  bool probe = false;  // the ranks measure their links when they have connected

  // Returns the text that ranks compare. Errors also show this text.
  std::string ToText() const;
};
// Errors name the invalid option.
absl::StatusOr<SharedSettings> SettingsOf(const CommOptions& options);
SharedSettings SettingsOf(const CoreConfig& config);

// The objects that this rank prepares before it joins a meeting.
struct Preparation {
  std::shared_ptr<Runtime> runtime;
  std::string name;
  SharedSettings settings;
  Card card;                               // its context number is reserved
  int64_t timeout_ns = kDefaultTimeoutNs;  // default of operations
  int64_t silence_ns = 0;                  // Inquiry::SetSilence
  int64_t limit_ns = kDefaultTimeoutNs;    // time limit of the meeting
  uint64_t generation = 0;
  // Number of ranks of the parent. These ranks keep their numbers in the new communicator.
  int parents = 0;
};

// The place of this rank in a meeting.
struct MeetingSeat {
  std::string key;
  int rank = 0, size = 1;
  std::function<absl::Status()> watch = nullptr;  // see WatchedMeeting; null: nothing to watch
  bool hurries = false;  // this rank's time limit is earlier than that of the other ranks
};

// Returns this rank's card. The runtime must have started. kResourceExhausted: no context number is
// left.
absl::StatusOr<Card> MakeCard(Runtime& runtime, const SharedSettings& settings, int rank,
                              const CpuShare& cpus);

// A meeting in the store that can also fail for a reason outside the store.
class WatchedMeeting final : public StoreMeeting {
 public:
  // `watch` returns OK, or the reason why the meeting cannot succeed. `watch` must not block. Check
  // calls `watch`. Wait calls `watch` about every kLookNs. `base` must outlive this
  // object.
  WatchedMeeting(StoreMeeting& base, std::function<absl::Status()> watch)
      : base_(base), watch_(std::move(watch)) {}

  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override;
  absl::Status Check() override;
  void Fail(const absl::Status& why) override { base_.Fail(why); }
  void Finish() override { base_.Finish(); }
  absl::StatusOr<std::vector<int>> Absent(const Stop& stop) override { return base_.Absent(stop); }

 private:
  // Calls `watch`. If `watch` returns a reason, fails the meeting with this reason and returns the
  // reason.
  absl::Status Look();

  StoreMeeting& base_;
  const std::function<absl::Status()> watch_;
};

// Joins a meeting in the store, and makes the communicator of the ranks of this meeting. If
// `prepared` is an error or this function fails, tells the other ranks.
absl::StatusOr<std::shared_ptr<Communicator>> MeetIn(Store& store, const MeetingSeat& seat,
                                                     absl::StatusOr<Preparation> prepared,
                                                     const Stop& stop);

// Tells the other ranks of a meeting that this rank cannot take part because of the error `why`.
// Blocks for 2 s at most.
void TellUnable(Store& store, const MeetingSeat& seat, const absl::Status& why, const Stop& stop);

// Returns the key of the meeting in which a communicator is made. `use`: the number of earlier
// attempts of this process with this store and name (UseCounts).
std::string MeetingKey(absl::string_view name, int use);

// Rank 0 of a grown communicator tells the newcomers that all members are connected. `members`: the
// number of ranks that are no newcomers. Blocks a newcomer until it is told, and rank 0 until it has
// told all. Returns at once on the other members. Errors of rank 0 are left to the next call.
//
// A newcomer must wait for this before it makes a call of the members. Otherwise it could wait for a
// silent rank while the members drop the attempt.
absl::Status TellConnected(Communicator& grown, int members, const CallOptions& options);

// The ranks of a grown communicator agree to use it. `well`: on a newcomer true; on a member, it
// knows that the attempt succeeded on all members. Returns OK if all live ranks use it. Without this
// agreement, members could decide differently if a rank is lost while they compare their results.
absl::Status ConfirmGrown(Communicator& grown, int members, bool well, int64_t timeout_ns);

}  // namespace entrain
