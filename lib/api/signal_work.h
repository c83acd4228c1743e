// Works that are not calls on a communicator. A SignalWork ends when another thread calls Over.
// StartedCalls runs blocking calls on a thread of its own, one at a time, and gives the caller a
// work to wait for.
//
// Thread safety: any thread.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/comm/communicator.h"
#include "lib/engine/engine.h"
#include "lib/engine/work.h"
#include "lib/train/worker_thread.h"

namespace entrain::api {

class SignalWork final : public Work, public Job {
 public:
  // `comm` is the name of a communicator. `operation` must live for ever. `tag` is -1 or a layer.
  static RefPtr<SignalWork> Make(std::shared_ptr<Engine> engine, std::string comm,
                                 absl::string_view operation, int64_t tag);
  // Ends the work with `status` the next time the engine runs its jobs. Must be called once, by any
  // thread.
  void Over(const absl::Status& status);

  WorkInfo Info() const override { return info_; }
  void Run() override;  // Job

 private:
  SignalWork(std::shared_ptr<Engine> engine, WorkInfo info);

  const std::shared_ptr<Engine> engine_holder_;
  const WorkInfo info_;
  absl::Status ends_with_;
};

// The works of objects that share their state: a shard, the EDiT object on it, and its open states.
// While a call that was started on one of these objects is not over, none of them may be used.
class StartedCalls {
 public:
  // The works use the engine and the name of `comm`.
  explicit StartedCalls(const Communicator& comm);

  // Returns a work that ends when its creator calls Over.
  RefPtr<SignalWork> NewWork(absl::string_view operation, int64_t tag = -1) const;
  // Starts `call` on a thread of the library and returns its work. `owner` is the object whose
  // destruction ends the call. No other call may be in progress. When the work is over, `call` has
  // returned and the objects are idle.
  RefPtr<Work> Start(const void* owner, absl::string_view operation,
                     absl::AnyInvocable<absl::Status()> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns FAILED_PRECONDITION if a call is not over, for example "`name`: edit_leave, which was
  // started, is not over".
  absl::Status CheckIdle(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // RunsFor returns true if a call of the owner is not over. Join blocks until the call is over, so
  // the owner must make the call fail first.
  bool RunsFor(const void* owner) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Join() { worker_.Drain().IgnoreError(); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::string comm_;
  mutable absl::Mutex mutex_;
  const void* owner_ ABSL_GUARDED_BY(mutex_) = nullptr;  // owner of the last call
  absl::string_view operation_ ABSL_GUARDED_BY(mutex_);  // operation of the last call
  // No limit, because the calls themselves have time limits.
  WorkerThread worker_{std::numeric_limits<int64_t>::max(), [](const absl::Status&) {}};
};

}  // namespace entrain::api
