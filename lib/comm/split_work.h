// A split that was started: over when every rank has started it. This rank's part then takes part in the engine's traffic, as it
// does on the other ranks, so that what they send is received; it waits here until somebody takes it. A part that nobody takes
// ends on all ranks when the work goes.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/mark.h"
#include "lib/comm/comm_core.h"
#include "lib/engine/engine.h"
#include "lib/engine/work.h"

namespace entrain {

class Runtime;

class SplitWork final : public Work, public Job {
 public:
  static constexpr uint64_t kYields = MarkOf("part");

  // `color`: -1 or more. `runtime`: the parent's.
  static absl::StatusOr<RefPtr<Work>> Start(std::shared_ptr<CommCore> parent,
                                            std::weak_ptr<Runtime> runtime, int color, int key);
  // The part, once, when the work is over; null: color -1. kFailedPrecondition: it was taken before.
  absl::StatusOr<std::shared_ptr<CommCore>> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: it is gone. The work does not keep it: the last reference to a work may go on the engine's thread, which a runtime
  // waits for.
  std::shared_ptr<Runtime> runtime() const { return runtime_.lock(); }

  WorkInfo Info() const override { return records_->Info(); }
  uint64_t yields() const override { return kYields; }
  void Run() override;  // Job: opens the part; holds a reference until then

 private:
  // What a rank tells the others.
  struct Record {
    int32_t color, key;
    uint32_t context;  // 0: this rank has no context number left
    uint32_t reserved;
  };

  SplitWork(std::shared_ptr<CommCore> parent, std::weak_ptr<Runtime> runtime, int color, int key);
  ~SplitWork() override;
  absl::Status Begin();
  // On whatever thread the exchange of records ends.
  void OnRecords(const absl::Status& status);
  void GiveUp(const absl::Status& why);
  absl::StatusOr<std::shared_ptr<CommCore>> MakePart();

  const std::shared_ptr<CommCore> parent_;
  const std::weak_ptr<Runtime> runtime_;
  Record mine_;
  std::vector<Record> all_;
  RefPtr<Work> records_;  // their all-gather
  absl::Mutex mutex_;
  std::shared_ptr<CommCore> part_ ABSL_GUARDED_BY(mutex_);
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace entrain
