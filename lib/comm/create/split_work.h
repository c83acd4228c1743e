// The work of a started split. A split makes one part for each color. A part is a communicator of
// the ranks that gave this color.
//
// The work is over when every rank has started the split. The part is then open in the engine, so
// this rank receives messages of the part even before the caller takes it. The work owns the part
// until the caller takes it. If the caller never takes the part, the destructor of the work ends
// the part on all ranks.
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

  // `color`: -1 or more. -1: this rank gets no part. `runtime`: the parent's runtime.
  static absl::StatusOr<RefPtr<Work>> Start(std::shared_ptr<CommCore> parent,
                                            std::weak_ptr<Runtime> runtime, int color, int key);
  // Returns the part, or null if the color is -1. Must be called when the work is over. Returns the
  // work's error if the split has failed. kFailedPrecondition: the part was already taken.
  absl::StatusOr<std::shared_ptr<CommCore>> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns null if the runtime was destroyed. The work must not keep the runtime alive. The
  // engine's thread may release the last reference to a work, and a runtime's destructor waits for
  // this thread.
  std::shared_ptr<Runtime> runtime() const { return runtime_.lock(); }

  WorkInfo Info() const override { return records_->Info(); }
  uint64_t yields() const override { return kYields; }
  // Job. Makes and opens the part. Releases the reference that Begin has taken.
  void Run() override;

 private:
  // The values that a rank sends to all ranks of the parent.
  struct Record {
    int32_t color, key;
    uint32_t context;  // 0: this rank has no context number left
    uint32_t reserved;
  };

  SplitWork(std::shared_ptr<CommCore> parent, std::weak_ptr<Runtime> runtime, int color, int key);
  ~SplitWork() override;
  absl::Status Begin();
  // Called when the exchange of records is over, on the thread that finishes the exchange.
  void OnRecords(const absl::Status& status);
  // Releases the reserved context number and finishes the work. `why` is OK only if the color is -1
  // and the exchange has succeeded.
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
