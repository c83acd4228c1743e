#include "examples/trainer/books.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "examples/trainer/error.h"

namespace trainer {
namespace {

constexpr size_t kFinalSteps = 20;  // final_train_loss is the mean over this many last steps

}  // namespace

Books::Books(const Options& options, const char* unit, Session* session, int64_t steps,
             std::function<Traffic()> meter)
    : options_(options),
      unit_(unit),
      session_(session),
      meter_(std::move(meter)),
      progress_(steps, unit, session->rank() != 0) {}

void Books::OpenFiles(bool continues) {
  for (const bool create : {true, false}) {
    session_->Agree([&] {
      const bool creates = session_->rank() == 0 && !session_->joins();
      const bool mine = create ? creates : session_->shard() == 0 && !creates;
      if (mine) {
        const bool keeps = continues && std::filesystem::exists(options_.log);
        log_ = std::make_unique<StepLog>(options_.log, create && !keeps);
      }
      if (mine && create && !options_.summary.empty()) {
        summary_ = std::make_unique<SummaryFile>(options_.summary);
      }
    });
  }
}

Traffic Books::Now() const {
  Traffic now = meter_();
  now.seconds = watch_.seconds();
  return now;
}

Traffic Books::Measure(const std::function<void()>& work) {
  const Traffic before = Now();
  work();
  const Traffic after = Now();
  const Traffic took = {.seconds = after.seconds - before.seconds,
                        .waited_s = after.waited_s - before.waited_s,
                        .shard = after.shard - before.shard,
                        .sync = after.sync - before.sync};
  training_.seconds += took.seconds;
  training_.waited_s += took.waited_s;
  training_.shard += took.shard;
  training_.sync += took.sync;
  return took;
}

void Books::Keep(const StepRecord& record, int64_t position) {
  last_losses_.push_back(record.loss);
  if (last_losses_.size() > kFinalSteps) {
    last_losses_.pop_front();
  }
  if (!std::isfinite(record.loss)) {
    throw Error("the loss is not finite at step " + std::to_string(record.step) +
                "; a smaller --lr may help");
  }
  if (log_ != nullptr) {
    log_->Write(record);
  }
  progress_.Show(record, position);
}

Summary Books::Sum(int64_t made) {
  Summary s;
  s.task = options_.task;
  s.method = options_.method;
  s.precision = options_.precision;
  s.ranks = session_->ranks();
  s.shard_size = options_.shard_size;
  s.seed = options_.seed;
  s.wall_s = session_->LargestOfAll(training_.seconds);

  double loss = 0.0;
  for (const double value : last_losses_) {
    loss += value / static_cast<double>(last_losses_.size());
  }
  double sums[] = {loss, training_.waited_s, static_cast<double>(training_.shard),
                   static_cast<double>(training_.sync)};
  session_->SumOverAll(sums, 4);
  const double ranks = session_->ranks_left();
  s.final_train_loss = sums[0] / ranks;
  s.exposed_comm_s = sums[1] / ranks;
  s.bytes_sent_shard = sums[2] / ranks;
  s.bytes_sent_sync = sums[3] / ranks;

  // The values of each replica, which its first rank fills in.
  const auto replicas = static_cast<size_t>(session_->replicas());
  std::vector<double> values(2 * replicas);
  if (session_->shard() == 0) {
    const auto own = static_cast<size_t>(session_->replica());
    values[own] = static_cast<double>(made);
    values[replicas + own] = idle_s_ / training_.seconds;
  }
  session_->SumOverAll(values.data(), static_cast<int>(values.size()));
  for (size_t n = 0; n < replicas; ++n) {
    s.replica_steps.push_back(std::llround(values[n]));
    s.idle_share.push_back(values[replicas + n]);
  }
  s.peak_rss_bytes =
      static_cast<uint64_t>(session_->LargestOfAll(static_cast<double>(PeakResidentBytes())));
  return s;
}

void Books::Close(const Summary& s) {
  if (session_->rank_left() == 0 && !options_.summary.empty()) {
    if (summary_ == nullptr) {  // the rank that has opened the file is lost
      summary_ = std::make_unique<SummaryFile>(options_.summary);
    }
    summary_->Write(s);
  }
  char line[240];
  std::snprintf(
      line, sizeof(line),
      "%s: validation loss %.4f nats per %s (counting alone: %.4f), %.1f %% right, %.1f s, "
      "%.2f MB within and %.2f MB across replicas sent per rank",
      s.method.c_str(), s.val_loss, unit_.c_str(), s.unigram_entropy, 100 * s.val_accuracy,
      s.wall_s, s.bytes_sent_shard / 1e6, s.bytes_sent_sync / 1e6);
  progress_.Say(line);
  if (!s.sample.empty()) {
    progress_.Say("sample:\n" + s.sample);
  }
}

}  // namespace trainer
