// What a run keeps account of, whatever its method: the time, waiting and bytes of training, the
// step log, the summary, and what a person sees. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "examples/trainer/flags.h"
#include "examples/trainer/metrics.h"
#include "examples/trainer/session.h"
#include "examples/trainer/stopwatch.h"

namespace trainer {

// Time, and in it time waited for others and bytes sent by this rank.
struct Traffic {
  double seconds = 0.0, waited_s = 0.0;
  uint64_t shard = 0, sync = 0;
};

class Books {
 public:
  // `unit`: of losses and tokens, for people. `meter`: what has been waited and sent so far; its
  // seconds are not looked at.
  Books(const Options& options, const char* unit, Session* session, int64_t steps,
        std::function<Traffic()> meter);

  // Before any work that could be lost. Rank 0 creates both files, then the first ranks of the
  // other replicas join in the log. Collective; all fail alike, and one of them says why.
  void OpenFiles();
  // The first `steps`, of `tokens`, were another run's.
  void Resume(int64_t steps, int64_t tokens) { progress_.Resume(steps, tokens); }

  // As the meter has it, with the time since the books were opened.
  Traffic Now() const;
  // Does `work` and books what it took as training.
  Traffic Measure(const std::function<void()>& work);
  // In the steps and the last exchange; evaluations apart.
  const Traffic& training() const { return training_; }
  // Of what was waited, for other replicas.
  void AddIdle(double seconds) { idle_s_ += seconds; }

  // Logs and shows it; `position` of all steps is how far training is, as a bar shows it. Throws
  // Error when the loss is not finite.
  void Keep(const StepRecord& record, int64_t position);

  // All that a summary has but what depends on the method, which are its steps and tokens, and on
  // the model. `made` are this replica's steps. Collective.
  Summary Sum(int64_t made);
  // Shows and writes it.
  void Close(const Summary& summary);

 private:
  const Options& options_;
  const std::string unit_;
  Session* const session_;
  const std::function<Traffic()> meter_;
  std::unique_ptr<StepLog> log_;
  std::unique_ptr<SummaryFile> summary_;
  Progress progress_;
  const Stopwatch watch_;
  Traffic training_;
  double idle_s_ = 0.0;
  std::deque<double> last_losses_;
};

}  // namespace trainer
