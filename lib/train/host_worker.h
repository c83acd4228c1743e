// A worker whose jobs are on arrays of the host: a thread, and nothing else.
//
// Thread safety: Worker's.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/train/courier.h"
#include "lib/train/worker.h"

namespace entrain {

class HostWorker final : public Worker {
 public:
  // The arguments are those of Courier.
  HostWorker(int64_t limit_ns, absl::AnyInvocable<void(const absl::Status&)> give_up,
             absl::AnyInvocable<void(absl::string_view)> inside = nullptr)
      : courier_(limit_ns, std::move(give_up), std::move(inside)) {}

  absl::StatusOr<uint64_t> PostThen(Job job, absl::AnyInvocable<void()> then) override;
  void Limit(uint64_t number) override { courier_.Limit(number); }
  absl::Status Wait(uint64_t number) override { return courier_.Wait(number); }
  void WhenDone(uint64_t number, Continuation then) override {
    courier_.WhenDone(number, std::move(then));
  }
  uint64_t last() const override { return courier_.last(); }
  absl::Status status() const override { return courier_.status(); }

  absl::Status Hold(uint64_t number) override;
  bool Holds(uint64_t number) const override { return courier_.IsDone(number); }
  absl::StatusOr<uint64_t> Start(uint64_t after, Job job) override;
  absl::Status RunHere(absl::FunctionRef<absl::Status()> body) override { return body(); }
  absl::Status ComeToRest(int64_t /*timeout_ns*/) override { return absl::OkStatus(); }
  absl::Status Sound() const override { return absl::OkStatus(); }
  ArraysAt arrays() const override { return {}; }
  StreamHandle stream() const override { return nullptr; }

  bool StopSoon(const absl::Status& /*why*/) override { return courier_.StopSoon(); }
  void Leave(absl::AnyInvocable<void() &&> last) override { courier_.Leave(std::move(last)); }
  void Abandon(const absl::Status& why) override { courier_.Abandon(why); }

 private:
  Courier courier_;
};

}  // namespace entrain
