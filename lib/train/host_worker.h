// A Worker for jobs on arrays in host memory. The jobs run on a thread.
//
// Thread safety: that of Worker.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/kernels/kernel_threads.h"
#include "lib/train/worker.h"
#include "lib/train/worker_thread.h"

namespace entrain {

class HostWorker final : public Worker {
 public:
  // The arguments but the last are passed to WorkerThread. Jobs and bodies share their passes over
  // arrays with `threads`, which must outlive the worker; null: with no threads.
  HostWorker(int64_t limit_ns, absl::AnyInvocable<void(const absl::Status&)> give_up,
             absl::AnyInvocable<void(absl::string_view)> inside = nullptr,
             absl::AnyInvocable<absl::Status()> watch = nullptr, KernelThreads* threads = nullptr)
      : threads_(threads),
        thread_(limit_ns, std::move(give_up), std::move(inside), std::move(watch)) {}

  absl::StatusOr<uint64_t> PostThen(Job job, absl::AnyInvocable<void()> then) override;
  void Limit(uint64_t number) override { thread_.Limit(number); }
  absl::Status Wait(uint64_t number) override { return thread_.Wait(number); }
  void WhenDone(uint64_t number, Continuation then) override {
    thread_.WhenDone(number, std::move(then));
  }
  uint64_t last() const override { return thread_.last(); }
  absl::Status status() const override { return thread_.status(); }

  absl::Status Hold(uint64_t number) override;
  bool Holds(uint64_t number) const override { return thread_.IsDone(number); }
  absl::StatusOr<uint64_t> Start(uint64_t after, Job job) override;
  absl::Status RunHere(absl::FunctionRef<absl::Status()> body) override {
    const KernelThreads::Scope scope(threads_);
    return body();
  }
  absl::Status ComeToRest(int64_t /*timeout_ns*/) override { return absl::OkStatus(); }
  absl::Status Sound() const override { return absl::OkStatus(); }
  ArraysAt arrays() const override { return {}; }
  StreamHandle stream() const override { return nullptr; }

  void Stop() override { thread_.Stop(); }
  bool StopSoon(const absl::Status& /*why*/) override { return thread_.StopSoon(); }
  void Leave(absl::AnyInvocable<void() &&> last) override { thread_.Leave(std::move(last)); }
  void Abandon(const absl::Status& why) override { thread_.Abandon(why); }

 private:
  KernelThreads* const threads_;
  WorkerThread thread_;
};

}  // namespace entrain
