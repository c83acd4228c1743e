// A split that was started. The work is over when every rank has started the split. From then on
// this rank's part takes part in the engine's traffic, as on the other ranks, so that their
// messages are received. The part waits here until the caller takes it. If the caller never takes
// it, the part ends on all ranks when the work is destroyed.
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

  // `color`: -1 or more. `runtime`: the parent's runtime.
  static absl::StatusOr<RefPtr<Work>> Start(std::shared_ptr<CommCore> parent,
                                            std::weak_ptr<Runtime> runtime, int color, int key);
  // Returns the part, once, when the work is over. Null: color -1. kFailedPrecondition: the part
  // was taken before.
  absl::StatusOr<std::shared_ptr<CommCore>> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns null if the runtime is gone. The work must not keep the runtime alive: the engine's
  // thread may drop the last reference to a work, and a runtime's destructor waits for this thread.
  std::shared_ptr<Runtime> runtime() const { return runtime_.lock(); }

  WorkInfo Info() const override { return records_->Info(); }
  uint64_t yields() const override { return kYields; }
  // Job: opens the part. A reference is held until then.
  void Run() override;

 private:
  // The values that a rank sends to the others.
  struct Record {
    int32_t color, key;
    uint32_t context;  // 0: this rank has no context number left
    uint32_t reserved;
  };

  SplitWork(std::shared_ptr<CommCore> parent, std::weak_ptr<Runtime> runtime, int color, int key);
  ~SplitWork() override;
  absl::Status Begin();
  // Runs on the thread on which the exchange of records ends.
  void OnRecords(const absl::Status& status);
  void GiveUp(const absl::Status& why);
  absl::StatusOr<std::shared_ptr<CommCore>> MakePart();

  const std::shared_ptr<CommCore> parent_;
  const std::weak_ptr<Runtime> runtime_;
  Record mine_;
  std::vector<Record> all_;
  RefPtr<Work> records_;  // the all-gather of records
  absl::Mutex mutex_;
  std::shared_ptr<CommCore> part_ ABSL_GUARDED_BY(mutex_);
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace entrain
