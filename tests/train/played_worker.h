// A worker without a thread. It keeps its jobs until the test runs them.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "lib/train/worker.h"

namespace entrain {

class PlayedWorker final : public Worker {
 public:
  absl::StatusOr<uint64_t> PostThen(Job job, absl::AnyInvocable<void()> then) override {
    if (!refusal.ok()) {
      return refusal;
    }
    jobs_.push_back([job = std::move(job), then = std::move(then)]() mutable {
      const absl::Status status = job();
      if (status.ok() && then) {
        then();
      }
      return status;
    });
    return ++last_;
  }
  absl::StatusOr<uint64_t> Start(uint64_t after, Job job) override {
    started_after.push_back(after);
    return Post(std::move(job));
  }
  absl::Status Hold(uint64_t number) override {
    held.push_back(number);
    return absl::OkStatus();
  }
  void Limit(uint64_t) override {}
  absl::Status Wait(uint64_t) override { return absl::OkStatus(); }
  void WhenDone(uint64_t, Continuation then) override { then(absl::OkStatus()); }
  uint64_t last() const override { return last_; }
  absl::Status status() const override { return absl::OkStatus(); }
  bool Holds(uint64_t number) const override { return number <= done_; }
  absl::Status RunHere(absl::FunctionRef<absl::Status()> body) override { return body(); }
  absl::Status ComeToRest(int64_t) override { return rest; }
  absl::Status Sound() const override { return sound; }
  ArraysAt arrays() const override { return {}; }
  StreamHandle stream() const override { return nullptr; }
  void Stop() override {}
  bool StopSoon(const absl::Status&) override { return true; }
  void Leave(absl::AnyInvocable<void() &&> last) override { std::move(last)(); }
  void Abandon(const absl::Status&) override {}

  // Runs the oldest job that has not run. Returns its status.
  absl::Status RunNext() {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    ++done_;
    return job();
  }
  // Returns the number of jobs that have not run.
  size_t waiting() const { return jobs_.size(); }

  absl::Status refusal, rest, sound;  // results of Post, ComeToRest and Sound
  std::vector<uint64_t> started_after, held;

 private:
  std::deque<Job> jobs_;
  uint64_t last_ = 0, done_ = 0;
};

}  // namespace entrain
