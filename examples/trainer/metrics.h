// What a run leaves behind: a record a step (--log), one object at the end (--summary), and what a
// person sees while it runs. Writing only; what the numbers mean is in docs/trainer.md.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/trainer/stopwatch.h"

namespace trainer {

// One optimizer step as this replica saw it.
struct StepRecord {
  int64_t step = 0;  // from 1
  int replica = 0;
  double seconds = 0.0;  // since training began, evaluations not counted
  int64_t tokens = 0;    // read by all ranks so far
  double loss = 0.0;     // mean over the replica's batches of this step, before the step
  double lr = 0.0;
  bool synced = false;                      // an exchange ran under this step's forward pass
  double exposed_comm_s = 0.0;              // this rank's, in this step
  uint64_t bytes_sent = 0;                  // likewise
  std::optional<uint64_t> anchor_checksum;  // of the replica's anchors, after the exchange
  std::optional<double> val_loss;           // when this step was followed by an evaluation
  std::optional<int64_t> microbatches;      // of a commit, of all ranks; gradient channels only
  std::optional<double> adaptive_share;     // agd: of this rank's elements, in this step
};

// An append-only file of JSON lines that several processes of a host may share: every record is one
// write.
class StepLog {
 public:
  // Does nothing when `path` is empty. Throws Error naming the path and the reason. With `create`
  // the file is emptied; otherwise it must be there.
  StepLog(const std::string& path, bool create);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  void Write(const StepRecord& record);

 private:
  const std::string path_;
  int fd_ = -1;
};

// On a terminal a progress bar. Otherwise, as in a pipe to a launcher that labels lines, a line for
// the first step, the last one, every evaluation, and besides after ten seconds without one. One
// process uses it; the others stay silent.
class Progress {
 public:
  // The clock starts here. Tokens are shown as `unit`s.
  Progress(int64_t steps, const char* unit, bool silent);
  ~Progress();
  // The first `steps`, of `tokens`, were another run's.
  void Resume(int64_t steps, int64_t tokens);
  // `position` of the steps is how far the run is.
  void Show(const StepRecord& record, int64_t position);
  void Say(const std::string& line);

 private:
  class Bar;
  const int64_t steps_;
  const std::string unit_;
  const bool silent_;
  const Stopwatch watch_;
  bool first_ = true;  // no line yet
  double last_line_s_ = 0.0;
  int64_t shown_ = 0;  // on the bar
  int64_t steps_before_ = 0, tokens_before_ = 0;
  std::unique_ptr<Bar> bar_;
};

struct Summary {
  std::string task, method, precision;
  int ranks = 0, shard_size = 0;
  int64_t params = 0, steps = 0, tokens = 0;
  uint64_t seed = 0;
  double wall_s = 0.0, tokens_per_s = 0.0;
  double final_train_loss = 0.0, val_loss = 0.0, val_accuracy = 0.0, unigram_entropy = 0.0;
  double exposed_comm_s = 0.0;
  double bytes_sent_shard = 0.0, bytes_sent_sync = 0.0,
         bytes_sent_init = 0.0;        // mean over the ranks
  int64_t syncs = 0;                   // exchanges
  int64_t rejections = 0;              // layers left out of one, over all replicas
  std::vector<int64_t> replica_steps;  // by replica
  std::vector<double> idle_share;      // likewise: of its time, waiting for the others
  uint64_t peak_rss_bytes = 0;         // the largest rank's
  // Gradient channels only: what each rank has made, what came too late for the last commit, and
  // what the channel holds beside the parameters on the largest rank.
  std::vector<int64_t> replica_microbatches;
  int64_t dropped_microbatches = 0;
  uint64_t bytes_held = 0;
  std::optional<uint64_t> anchor_checksum;
  std::vector<double> sharpness;  // at each --sharpness-rho
  std::string sample;
};

// The file of the summary, opened before the work whose result it will hold.
class SummaryFile {
 public:
  // Empties the file. Throws Error naming the path and the reason.
  explicit SummaryFile(const std::string& path);
  // Once. Throws like the constructor.
  void Write(const Summary& summary);

 private:
  const std::string path_;
  std::ofstream file_;
};

// The largest resident size of this process so far.
uint64_t PeakResidentBytes();

}  // namespace trainer
