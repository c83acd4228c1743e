#include "lib/api/signal_work.h"

#include "absl/strings/str_cat.h"

#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"

namespace entrain::api {

SignalWork::SignalWork(std::shared_ptr<Engine> engine, WorkInfo info)
    : Work(engine.get()), engine_holder_(std::move(engine)), info_(std::move(info)) {}

RefPtr<SignalWork> SignalWork::Make(std::shared_ptr<Engine> engine, std::string comm,
                                    absl::string_view operation, int64_t tag) {
  WorkInfo info;
  info.comm = std::move(comm);
  info.operation = operation;
  info.tag = tag;
  info.started_ns = Clock::Real().Now();
  return RefPtr<SignalWork>::Adopt(new SignalWork(std::move(engine), std::move(info)));
}

void SignalWork::Over(const absl::Status& status) {
  const std::shared_ptr<Engine> engine = engine_holder_;
  ends_with_ = status;
  AddRef();
  engine->seat().Submit(this);
  engine->seat().Kick();
}

void SignalWork::Run() {
  Finish(ends_with_);
  Release();
}

StartedCalls::StartedCalls(const Communicator& comm)
    : engine_(comm.runtime().shared_engine()), comm_(comm.name()) {}

RefPtr<SignalWork> StartedCalls::NewWork(absl::string_view operation, int64_t tag) const {
  return SignalWork::Make(engine_, comm_, operation, tag);
}

RefPtr<Work> StartedCalls::Start(const void* owner, absl::string_view operation,
                                 absl::AnyInvocable<absl::Status()> call) {
  {
    absl::MutexLock lock(&mutex_);
    owner_ = owner;
    operation_ = operation;
  }
  RefPtr<SignalWork> work = NewWork(operation);
  const auto result = std::make_shared<absl::Status>(absl::AbortedError("it was not made"));
  const uint64_t number = worker_.Post([result, call = std::move(call)]() mutable {
    *result = call();
    return absl::OkStatus();
  });
  worker_.WhenDone(number, [result, work](const absl::Status&) { work->Over(*result); });
  return RefPtr<Work>::Adopt(work.Leak());
}

absl::Status StartedCalls::CheckIdle(absl::string_view name) const {
  if (worker_.idle()) {
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mutex_);
  return absl::FailedPreconditionError(
      absl::StrCat(name, ": ", operation_, ", which was started, is not over"));
}

bool StartedCalls::RunsFor(const void* owner) const {
  absl::MutexLock lock(&mutex_);
  return owner_ == owner && !worker_.idle();
}

}  // namespace entrain::api
