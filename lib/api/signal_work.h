// Works that are no calls on a communicator. A SignalWork ends when another thread says so. StartedCalls makes calls that block, one
// at a time on a thread of its own, so that their caller has a work to wait for.
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
  // `comm`: the name of a communicator. `operation` lives for ever; `tag`: -1, or a layer.
  static RefPtr<SignalWork> Make(std::shared_ptr<Engine> engine, std::string comm,
                                 absl::string_view operation, int64_t tag);
  // Any thread, once: the work ends with this as soon as the engine has a turn.
  void Over(const absl::Status& status);

  WorkInfo Info() const override { return info_; }
  void Run() override;  // Job

 private:
  SignalWork(std::shared_ptr<Engine> engine, WorkInfo info);

  const std::shared_ptr<Engine> engine_holder_;
  const WorkInfo info_;
  absl::Status ends_with_;
};

// The works of objects that share their state: a shard, the EDiT object on it, and its open states. While a call that was started on
// one of them is not over, none must be used.
class StartedCalls {
 public:
  // Its works are on the engine of `comm`, and have its name.
  explicit StartedCalls(const Communicator& comm);

  // A work that ends when its maker says so.
  RefPtr<SignalWork> NewWork(absl::string_view operation, int64_t tag = -1) const;
  // The work of `call`, which a thread of the library's makes. `owner`: the object whose destruction ends it. Nothing else may be
  // under way. The work is over when `call` has returned; by then the objects are idle.
  RefPtr<Work> Start(const void* owner, absl::string_view operation,
                     absl::AnyInvocable<absl::Status()> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // FAILED_PRECONDITION "`name`: edit_leave, which was started, is not over".
  absl::Status CheckIdle(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether a call of the owner's is not over. Join waits until it is: the owner has to make it fail before.
  bool RunsFor(const void* owner) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Join() { worker_.Drain().IgnoreError(); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::string comm_;
  mutable absl::Mutex mutex_;
  const void* owner_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the last call
  absl::string_view operation_ ABSL_GUARDED_BY(mutex_);  // its
  // No limit: what it runs has time limits.
  WorkerThread worker_{std::numeric_limits<int64_t>::max(), [](const absl::Status&) {}};
};

}  // namespace entrain::api
