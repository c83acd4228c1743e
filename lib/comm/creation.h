// To create a communicator, its ranks meet in a store, compare the settings that must be equal, and
// connect. Communicator::Create, Grow and Join work in this way. A split needs no store.
//
// Thread safety: any thread may call the functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/comm/bootstrap.h"
#include "lib/comm/communicator.h"
#include "lib/comm/core_config.h"
#include "lib/comm/overrides.h"
#include "lib/comm/runtime.h"
#include "lib/comm/tuning.h"

namespace entrain {

// Interval at which a rank that waits for others checks whether one of them has failed.
constexpr int64_t kLookNs = 50 * kMillisecond;

// The settings that must be equal on all ranks of a communicator.
struct SharedSettings {
  std::vector<Override> overrides;
  std::shared_ptr<const Tuning> tuning;
  Determinism determinism = Determinism::kDefault;
  bool probe = false;  // the ranks measure their links when they have connected

  // Returns the text that ranks compare, and that errors show.
  std::string ToText() const;
};
// Errors name the option.
absl::StatusOr<SharedSettings> SettingsOf(const CommOptions& options);
SharedSettings SettingsOf(const CoreConfig& config);

// The objects that this rank prepares before it meets the others.
struct Preparation {
  std::shared_ptr<Runtime> runtime;
  std::string name;
  SharedSettings settings;
  Card card;                               // its context number is reserved
  int64_t timeout_ns = kDefaultTimeoutNs;  // default of operations
  int64_t limit_ns = kDefaultTimeoutNs;    // time limit of the meeting
  uint64_t generation = 0;
  int parents = 0;  // number of ranks of the parent; they keep their ranks in the new communicator
};

// The place of this rank in a meeting.
struct MeetingSeat {
  std::string key;
  int rank = 0, size = 1;
  std::function<absl::Status()> watch = nullptr;  // see WatchedMeeting; null: nothing to watch
  bool hurries = false;  // the rank's own time limit is earlier than that of the others
};

// Returns this rank's card. The runtime must have started. kResourceExhausted: no context number is
// left.
absl::StatusOr<Card> MakeCard(Runtime& runtime, const SharedSettings& settings, int rank,
                              const CpuShare& cpus);

// Joins a meeting in the store, and makes the communicator of the ranks that meet there. If this
// rank fails, or if it was not prepared, the other ranks are told.
absl::StatusOr<std::shared_ptr<Communicator>> MeetIn(Store& store, const MeetingSeat& seat,
                                                     absl::StatusOr<Preparation> prepared,
                                                     const Stop& stop);

// The ranks of a grown communicator agree on whether all of them use it. Without this agreement,
// members that lose a rank while they compare the results of an attempt could decide differently.
struct Confirmation {
  int members = 0;   // number of ranks that are not newcomers
  bool well = true;  // on a member: false if it does not know that the attempt succeeded on all
                     // members
  // Time limit of the message by which rank 0 tells a newcomer that the members have compared.
  CallOptions compare = {};
  int64_t timeout_ns = 0;  // time limit of the agreement
};
// Returns OK if all ranks that live use the communicator.
absl::Status ConfirmGrown(Communicator& grown, const Confirmation& confirmation);

}  // namespace entrain
