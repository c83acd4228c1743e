// A meeting in the store that can also fail for a reason outside the store.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/store/store.h"

namespace entrain {

class WatchedMeeting final : public StoreMeeting {
 public:
  // `watch` returns OK, or the reason why the meeting cannot succeed. `watch` must not block. Check
  // calls `watch`. Wait calls `watch` about every kLookNs (creation.h). `base` must outlive this
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

}  // namespace entrain
