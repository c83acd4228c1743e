// Works that are no calls on a communicator. A SignalWork ends when another thread says so. StartedCalls makes calls that block, one
// after the other on a thread of its own, so that their caller has a work to wait for.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/comm/mesh.h"
#include "lib/engine/engine.h"
#include "lib/engine/work.h"
#include "lib/train/courier.h"

namespace entrain::api {

class SignalWork final : public Work, public Job {
 public:
  // On the engine of the mesh. `operation` lives for ever; `tag`: -1, or a layer.
  static RefPtr<SignalWork> Make(const Mesh& mesh, absl::string_view operation, int64_t tag = -1);
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

// The calls that were started on one object.
class StartedCalls {
 public:
  // The work is over when `call` has returned; by then the object is idle.
  RefPtr<Work> Start(RefPtr<SignalWork> work, absl::AnyInvocable<absl::Status()> call);
  bool idle() const { return courier_.idle(); }

 private:
  // Nobody waits for it by name, so its limit has no effect; what it runs has time limits.
  Courier courier_{kDefaultTimeoutNs, [](const absl::Status&) {}};
};

}  // namespace entrain::api
