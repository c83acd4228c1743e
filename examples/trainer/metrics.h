// The output of a run: a record per step (--log), one object at the end (--summary), and text on
// the terminal. This unit only writes; docs/trainer-output.md explains the numbers.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/trainer/stopwatch.h"

namespace trainer {

// One optimizer step, as this replica saw it.
struct StepRecord {
  int64_t step = 0;  // from 1
  int replica = 0;
  double seconds = 0.0;  // since training began, without evaluations
  int64_t tokens = 0;    // read by all ranks so far
  double loss = 0.0;     // mean over the replica's batches of this step, with the parameters before
                         // the step
  double lr = 0.0;
  bool synced = false;                      // an exchange ran during this step's forward pass
  double exposed_comm_s = 0.0;              // exposed communication of this rank in this step
  uint64_t bytes_sent = 0;                  // sent by this rank in this step
  std::optional<uint64_t> anchor_checksum;  // checksum of the replica's anchors after the exchange
  std::optional<double> val_loss;           // set if an evaluation followed this step
  std::optional<int64_t> microbatches;      // gradient channels only: micro-batches of all ranks in
                                            // the commit
  std::optional<double> adaptive_share;     // agd only: share on this rank in this step
};

// A file of JSON lines, to which records are appended. Several processes of a host may share the
// file, because every record is one write.
class StepLog {
 public:
  // Does nothing if `path` is empty. With `create`, makes the file or empties it; otherwise the
  // file must exist. Throws Error naming the path and the reason.
  StepLog(const std::string& path, bool create);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  void Write(const StepRecord& record);

 private:
  const std::string path_;
  int fd_ = -1;
};

// Shows the progress: on a terminal, as a bar. Otherwise (for example in a pipe to a launcher that
// labels lines) prints a line for the first step, the last step and every evaluation, and for any
// step after ten seconds without a line. All processes but one must be `silent`.
class Progress {
 public:
  // Starts the clock. `unit` is the name of a token in the output.
  Progress(int64_t steps, const char* unit, bool silent);
  ~Progress();
  // Continues a run that has made `steps` steps, of `tokens` tokens.
  void Resume(int64_t steps, int64_t tokens);
  // `position` is the number of steps that are done.
  void Show(const StepRecord& record, int64_t position);
  void Say(const std::string& line);

 private:
  class Bar;
  const int64_t steps_;
  const std::string unit_;
  const bool silent_;
  const Stopwatch watch_;
  bool first_ = true;  // no line was printed yet
  double last_line_s_ = 0.0;
  int64_t shown_ = 0;  // position of the bar
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
  int64_t rejections = 0;              // rejected layers, over all exchanges and replicas
  std::vector<int64_t> replica_steps;  // by replica
  std::vector<double> idle_share;      // by replica: the share of its time spent waiting for others
  uint64_t peak_rss_bytes = 0;         // largest value of all ranks
  int64_t failed_saves = 0;            // with --failed-saves continue
  // Gradient channels only. `replica_microbatches`: by rank. `dropped_microbatches`: the number of
  // micro-batches that were too late for the last commit. `bytes_held`: the channel's memory
  // besides the parameters, largest value of all ranks.
  std::vector<int64_t> replica_microbatches;
  int64_t dropped_microbatches = 0;
  uint64_t bytes_held = 0;
  std::optional<uint64_t> anchor_checksum;
  std::vector<double> sharpness;  // at each --sharpness-rho
  std::string sample;
};

// The summary's file. It is opened before training, so that a wrong path is found before work is
// lost.
class SummaryFile {
 public:
  // Makes or empties the file. Throws Error naming the path and the reason.
  explicit SummaryFile(const std::string& path);
  // Must be called once. Throws Error as the constructor does.
  void Write(const Summary& summary);

 private:
  const std::string path_;
  std::ofstream file_;
};

// Returns the largest resident size of this process so far.
uint64_t PeakResidentBytes();

}  // namespace trainer
