// Works that are not calls on a communicator. A SignalWork ends when some thread calls Over.
// StartedCalls runs blocking calls on a thread of its own, one at a time, and returns a work for
// each of them.
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
#include "lib/train/worker/worker.h"

namespace entrain::api {

class SignalWork final : public Work, public Job {
 public:
  // `comm` is the name of a communicator. `operation` must be a static text. `tag` is -1 or a
  // layer.
  static RefPtr<SignalWork> Make(std::shared_ptr<Engine> engine, std::string comm,
                                 absl::string_view operation, int64_t tag);
  // Ends the work with `status`. The engine does this the next time that it runs its jobs. Must be
  // called once, by any thread.
  void Over(const absl::Status& status);

  WorkInfo Info() const override { return info_; }
  void Run() override;  // Job

 private:
  SignalWork(std::shared_ptr<Engine> engine, WorkInfo info);

  const std::shared_ptr<Engine> engine_holder_;
  const WorkInfo info_;
  absl::Status ends_with_;
};

// The works of a group of objects: a shard, the EDiT object on it and its open states, or a channel
// and its open states. While a started call on one of these objects is not over, no other call may
// use any of them.
class StartedCalls {
 public:
  // The works use the engine and the name of `comm`.
  explicit StartedCalls(const Communicator& comm);

  // Returns a work. The caller must end it by Over.
  RefPtr<SignalWork> NewWork(absl::string_view operation, int64_t tag = -1) const;
  // Starts `call` on a thread of the library and returns its work. `owner`: the object that makes
  // the call fail when it is destroyed. No other call may be in progress. When the work is over,
  // `call` has returned and the objects are idle.
  RefPtr<Work> Start(const void* owner, absl::string_view operation,
                     absl::AnyInvocable<absl::Status()> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns FAILED_PRECONDITION if a call is not over, for example "`name`: edit_leave, which was
  // started, is not over".
  absl::Status CheckIdle(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns true if a call of this owner is not over.
  bool RunsFor(const void* owner) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the call in progress is over. The owner must make the call fail first.
  void Join() { worker_.Drain().IgnoreError(); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::string comm_;
  mutable absl::Mutex mutex_;
  const void* owner_ ABSL_GUARDED_BY(mutex_) = nullptr;  // owner of the last call
  absl::string_view operation_ ABSL_GUARDED_BY(mutex_);  // operation of the last call
  // No time limit, because each call has its own.
  Worker worker_{std::numeric_limits<int64_t>::max(), [](const absl::Status&) {}};
};

}  // namespace entrain::api
