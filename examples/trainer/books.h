// Keeps the records of a run, for all methods: the time, waiting and bytes of training, the step
// log, the summary, and the output on the terminal. Thread safety: one thread at a time.
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

// `seconds`: elapsed time. `waited_s`: the time that this rank waited for other ranks. `shard`,
// `sync`: bytes that this rank has sent within its replica, and across replicas.
struct Traffic {
  double seconds = 0.0, waited_s = 0.0;
  uint64_t shard = 0, sync = 0;
};

class Books {
 public:
  // `unit` is the printed name of the unit of losses and tokens. `meter` returns the time that this
  // rank has waited so far, and the bytes that it has sent so far. Its `seconds` are ignored.
  Books(const Options& options, const char* unit, Session* session, int64_t steps,
        std::function<Traffic()> meter);

  // Must be called before any work that could be lost. Collective. Rank 0 creates both files. Then
  // the first ranks of the other replicas, and ranks that join, open the log. If this function
  // fails, it fails on all ranks, and one of them prints the reason. If the run `continues` an earlier
  // one, its records follow those of the earlier run in the log.
  void OpenFiles(bool continues);
  // Continues a run that has made `steps` steps, of `tokens` tokens.
  void Resume(int64_t steps, int64_t tokens) { progress_.Resume(steps, tokens); }

  // Returns the values of the meter, and the time since this object was created.
  Traffic Now() const;
  // Runs `work` and counts it as training.
  Traffic Measure(const std::function<void()>& work);
  // Returns the traffic of the steps and of the last exchange, without evaluations.
  const Traffic& training() const { return training_; }
  // Adds time that was spent waiting for other replicas.
  void AddIdle(double seconds) { idle_s_ += seconds; }

  // Logs and shows the record. `position` is the number of finished steps, for the progress bar.
  // Throws Error if the loss is not finite.
  void Keep(const StepRecord& record, int64_t position);

  // Returns the summary, without the parts that depend on the method (steps and tokens) and on the
  // model. `made` is the number of steps of this replica. Collective.
  Summary Sum(int64_t made);
  // Shows the summary and writes it.
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
