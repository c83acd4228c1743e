#include "examples/trainer/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/trainer/conditions.h"
#include "examples/trainer/evaluate.h"
#include "examples/trainer/inner_optimizer.h"
#include "examples/trainer/kernels.h"
#include "examples/trainer/loss_rise.h"
#include "examples/trainer/method.h"
#include "examples/trainer/metrics.h"
#include "examples/trainer/sharded_model.h"
#include "examples/trainer/sharpness.h"
#include "examples/trainer/stopwatch.h"

namespace trainer {
namespace {

constexpr size_t kFinalSteps = 20;  // final_train_loss is the mean over this many last steps

// Time, and in it time waited for others and bytes sent by this rank.
struct Traffic {
  double seconds = 0.0, waited_s = 0.0;
  uint64_t shard = 0, sync = 0;
};

class Run {
 public:
  Run(const Options& options, const Task& task, Session* session);
  void Execute();

 private:
  void OpenFiles();
  void Resume();
  void Save();
  bool SaveIsDue() const;
  bool Done(int64_t made) const;
  int64_t StepOfSchedule(int64_t step) const;
  void SetBatch(int64_t draw);
  double MicroBatches(int64_t step, bool* synced);
  void SecondGradient(int64_t step);
  void Update(StepRecord* record);
  void UpdateAndRest(StepRecord* record);
  StepRecord Step(int64_t step);
  Traffic Now() const;
  Traffic Measure(const std::function<void()>& work);
  void CollectReplicas(Summary* summary);
  void SumTraffic(Summary* summary);
  Summary Report();
  void Print(const Summary& summary);
  // After `steps`: how many there must be before the next checkpoint.
  int64_t NextSave(int64_t steps) const {
    return options_.save_every == 0 ? 0 : (steps / options_.save_every + 1) * options_.save_every;
  }

  const Options& options_;
  const Task& task_;
  Session* const session_;
  const int64_t steps_;
  const Conditions conditions_;
  ShardedModel model_;
  Method method_;
  InnerOptimizer inner_;
  std::unique_ptr<Sharpness> sharpness_;  // null: off
  const std::unique_ptr<Pass> pass_;
  std::unique_ptr<StepLog> log_;
  std::unique_ptr<SummaryFile> summary_;
  Progress progress_;
  Batch batch_;
  const Stopwatch watch_;
  double sums_waited_s_ = 0.0;
  Traffic training_;  // in the steps and the last exchange; evaluations apart
  std::deque<double> last_losses_;
  double idle_s_ = 0.0;       // of that waiting, for other replicas
  int64_t made_ = 0;          // steps of this replica
  int64_t steps_before_ = 0;  // of the run that this one goes on from
  int64_t next_save_ = 0;     // with --save-every: steps to have been made
};

Run::Run(const Options& options, const Task& task, Session* session)
    : options_(options),
      task_(task),
      session_(session),
      steps_(options.total_steps(session->ranks())),
      conditions_(options.conditions, options.seed, session->replicas()),
      model_(session->mesh(), task, options.precision == "bf16", options.shard_prefetch),
      method_(options, task.layers(), session->mesh(), model_.handle()),
      inner_(options.inner, model_.masters().size()),
      pass_(task.NewPass()),
      progress_(steps_, task.unit(), session->rank() != 0) {
  if (options.wsam.form != "off") {
    std::vector<int64_t> sizes;
    for (int layer = 0; layer < task.layers(); ++layer) {
      sizes.push_back(task.layer_size(layer));
    }
    sharpness_ = std::make_unique<Sharpness>(options.wsam, options.inner.grad_clip, &inner_, sizes);
    model_.SetSharpness(sharpness_.get());
  }
  std::string failure;
  try {
    conditions_.CheckReplicas();
  } catch (const Error& error) {
    failure = error.what();
  }
  session_->Agree(failure);
  OpenFiles();
  int array = 0;
  for (std::vector<float>& state : inner_.state()) {
    if (options_.method != "ddp") {
      method_.AddState(("inner/" + std::to_string(array++)).c_str(), state.data(), state.size());
    }
  }
  if (!options_.resume.empty()) {
    Resume();
  }
  next_save_ = NextSave(steps_before_);
}

// All ranks fail alike; one of them says why.
void Run::Resume() {
  std::string failure;
  try {
    method_.Load(options_);
    steps_before_ = method_.steps();
    if (steps_before_ > steps_) {
      failure = "--resume " + options_.resume + " is of step " + std::to_string(steps_before_) +
                ", and the run has " + std::to_string(steps_);
    }
  } catch (const Error& error) {
    failure = error.what();
  }
  session_->Agree(failure);
  progress_.Resume(steps_before_, steps_before_ * options_.tokens_per_step(session_->ranks()));
}

// The same on all ranks.
bool Run::SaveIsDue() const {
  if (options_.save_every == 0) {
    return false;
  }
  return method_.by_time() ? method_.CheckpointIsDue(session_->replicas())
                           : method_.steps() >= next_save_;
}

// Called when an exchange has begun; the whole of it is waited for.
void Run::Save() {
  method_.WaitAll(task_.layers());
  char name[32];
  if (method_.by_time()) {  // each replica is at a step of its own
    std::snprintf(name, sizeof(name), "exchange-%08lld", static_cast<long long>(method_.syncs()));
  } else {
    std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(method_.steps()));
  }
  std::string failure;
  try {
    method_.Save(options_, name);
  } catch (const Error& error) {
    failure = error.what();
  }
  session_->Agree(failure);
}

// Before any work that could be lost. Rank 0 creates both files, then the first ranks of the other
// replicas join in the log.
void Run::OpenFiles() {
  for (const bool create : {true, false}) {
    std::string failure;
    const bool mine =
        create ? session_->rank() == 0 : session_->shard() == 0 && session_->rank() != 0;
    try {
      if (mine) {
        log_ = std::make_unique<StepLog>(options_.log, create);
      }
      if (mine && create && !options_.summary.empty()) {
        summary_ = std::make_unique<SummaryFile>(options_.summary);
      }
    } catch (const Error& error) {
      failure = error.what();
    }
    session_->Agree(failure);
  }
}

Traffic Run::Now() const {
  return {.seconds = watch_.seconds(),
          .waited_s = model_.waited_s() + method_.waited_s() + sums_waited_s_ +
                      (sharpness_ ? sharpness_->waited_s() : 0.0),
          .shard = model_.bytes_sent_shard() + method_.bytes_sent_shard() + session_->bytes_sent(),
          .sync = model_.bytes_sent_sync() + method_.bytes_sent_sync()};
}

// Does `work` and books what it took as training.
Traffic Run::Measure(const std::function<void()>& work) {
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

// Gives the pass this rank's batch number `draw`.
void Run::SetBatch(int64_t draw) {
  task_.DrawTraining(session_->rank(), draw, &batch_);
  if (conditions_.Shuffles(method_.interval(), session_->replica())) {
    conditions_.Shuffle(session_->rank(), draw, &batch_);
  }
  pass_->SetBatch(batch_);
}

// Forward and backward passes of one step; returns the mean loss of this rank's batches.
double Run::MicroBatches(int64_t step, bool* synced) {
  const int64_t count = options_.gradient_accumulation_steps;
  double loss = 0.0;
  for (int64_t micro = 0; micro < count; ++micro) {
    const bool began = method_.BeginForward(true, micro == 0);
    *synced |= began;
    SetBatch((step - 1) * count + micro);
    if (began && SaveIsDue()) {
      Save();
      next_save_ = NextSave(method_.steps());
    }
    model_.Forward(pass_.get(), [this](int layer) { method_.WaitLayer(layer); });
    loss += pass_->loss() / static_cast<double>(count);
    model_.Backward(pass_.get(), 1.0f / static_cast<float>(count));
  }
  model_.FinishGradients();
  return loss;
}

// The same batches once more, where the first gradient leads up to.
void Run::SecondGradient(int64_t step) {
  const int64_t count = options_.gradient_accumulation_steps;
  sharpness_->Ascend(session_, &model_.masters(), &model_.gradients());
  for (int64_t micro = 0; micro < count; ++micro) {
    SetBatch((step - 1) * count + micro);
    model_.Forward(pass_.get(), [](int) {});
    model_.Backward(pass_.get(), 1.0f / static_cast<float>(count));
  }
  model_.FinishGradients();
}

void Run::Update(StepRecord* record) {
  auto& grads = model_.gradients();
  std::fill(grads.begin(), grads.end(), 0.0f);
  const double loss = MicroBatches(record->step, &record->synced);

  // The only numbers that leave the rank besides parameters and gradients, and they stay within the
  // replica: its gradient norm and its loss.
  double sums[2] = {SumOfSquares(grads.data(), static_cast<int64_t>(grads.size())), loss};
  {
    const Waiting waiting(&sums_waited_s_);
    session_->SumOverReplica(sums, 2);
  }
  record->loss = sums[1] * session_->replicas() / session_->ranks();
  record->lr = LearningRate(options_.inner, StepOfSchedule(record->step), steps_);
  if (sharpness_) {
    SecondGradient(record->step);
    sharpness_->Step(record->step, record->lr, session_, &model_.masters(), grads);
  } else {
    inner_.Step(record->step, record->lr, std::sqrt(sums[0]), &model_.masters(), &grads);
  }
  if (const double share = inner_.TakeAdaptiveShare(); share >= 0.0) {
    record->adaptive_share = share;
  }
  method_.EndStep(options_.tokens_per_step(1), loss);
  if (options_.save_every > 0 && method_.by_time() && method_.steps() >= next_save_) {
    method_.WishCheckpoint();
  }
}

// One step, which takes as long as the emulated conditions want. Where replicas meet, all that the
// step waited counts as waiting for the others; elsewhere a replica's ranks wait for each other
// alone.
void Run::UpdateAndRest(StepRecord* record) {
  const Traffic before = Now();
  const double met_before_s = method_.waited_s();
  Update(record);
  const Traffic now = Now();
  const bool meets = record->synced || method_.interval() == 0;
  const double idle_s = meets ? now.waited_s - before.waited_s : method_.waited_s() - met_before_s;
  idle_s_ += idle_s;
  const double own_s = now.seconds - before.seconds - idle_s;
  std::this_thread::sleep_for(
      std::chrono::duration<double>(conditions_.Rest(record->step, session_->replica(), own_s)));
}

// Whether that is all, with so many steps of this replica. Replicas that count together know what
// all have made when they meet, and all stop after the same meeting.
bool Run::Done(int64_t made) const {
  if (!options_.steps_together) {
    return made >= steps_;
  }
  const std::vector<int64_t> met = method_.StepsWhenMet(session_->replicas());
  return std::accumulate(met.begin(), met.end(), int64_t{0}) >= session_->replicas() * steps_ &&
         !met.empty();
}

// Where the learning rate is at this replica's step number `step`: replicas that count together
// have made, on average, what they had when they last met, and since then as many as this one.
int64_t Run::StepOfSchedule(int64_t step) const {
  if (!options_.steps_together) {
    return step;
  }
  const std::vector<int64_t> met = method_.StepsWhenMet(session_->replicas());
  if (met.empty()) {
    return std::min(step, steps_);
  }
  const int64_t mean = std::accumulate(met.begin(), met.end(), int64_t{0}) / session_->replicas();
  const int64_t since = step - met[static_cast<size_t>(session_->replica())];
  return std::min(mean + since, steps_);
}

StepRecord Run::Step(int64_t step) {
  StepRecord record;
  record.step = step;
  record.replica = session_->replica();
  record.tokens = step * options_.tokens_per_step(session_->ranks());
  const Traffic took = Measure([&] { UpdateAndRest(&record); });
  record.seconds = training_.seconds;
  record.exposed_comm_s = took.waited_s;
  record.bytes_sent = took.shard + took.sync;
  // Behind further steps, each rank's exchange is over when it is.
  const bool seen = record.synced && options_.overlap_steps() == 0;
  if (const uint64_t own = seen ? method_.anchor_checksum() : 0; own != 0) {
    record.anchor_checksum = session_->CombineOverReplica(own);
  }
  if (options_.eval_interval > 0 && step % options_.eval_interval == 0) {
    record.val_loss = Validate(task_, session_, &model_, &method_, pass_.get()).loss;
  }
  return record;
}

void Run::Execute() {
  for (made_ = steps_before_; !Done(made_); ++made_) {
    const int64_t step = made_ + 1;
    const StepRecord record = Step(step);
    last_losses_.push_back(record.loss);
    if (last_losses_.size() > kFinalSteps) {
      last_losses_.pop_front();
    }
    if (!std::isfinite(record.loss)) {
      throw Error("the loss is not finite at step " + std::to_string(step) +
                  "; a smaller --lr may help");
    }
    if (log_ != nullptr) {
      log_->Write(record);
    }
    progress_.Show(record);
  }
  const Traffic end = Measure([this] {
    if (method_.Finish(task_.layers()) && !options_.save_dir.empty()) {
      Save();
    }
  });
  idle_s_ += end.waited_s;
  Print(Report());
}

// What is each replica's own, as its first rank has it.
void Run::CollectReplicas(Summary* s) {
  const auto replicas = static_cast<size_t>(session_->replicas());
  std::vector<double> values(2 * replicas);
  if (session_->shard() == 0) {
    const auto own = static_cast<size_t>(session_->replica());
    values[own] = static_cast<double>(made_);
    values[replicas + own] = idle_s_ / training_.seconds;
  }
  session_->SumOverAll(values.data(), static_cast<int>(values.size()));
  double all = 0.0;
  for (size_t n = 0; n < replicas; ++n) {
    s->replica_steps.push_back(std::llround(values[n]));
    s->idle_share.push_back(values[replicas + n]);
    all += values[n];
  }
  const auto of_step = static_cast<double>(options_.tokens_per_step(options_.shard_size));
  s->tokens = std::llround(all * of_step);
  const auto before = static_cast<double>(steps_before_ * session_->replicas());
  s->tokens_per_s = (all - before) * of_step / s->wall_s;
}

void Run::SumTraffic(Summary* s) {
  double loss = 0.0;
  for (const double value : last_losses_) {
    loss += value / static_cast<double>(last_losses_.size());
  }
  double sums[] = {loss, training_.waited_s, static_cast<double>(training_.shard),
                   static_cast<double>(training_.sync),
                   static_cast<double>(model_.bytes_sent_init()),
                   // of a replica, counted on each of its ranks
                   static_cast<double>(method_.rejections()) / options_.shard_size};
  session_->SumOverAll(sums, 6);
  const double ranks = session_->ranks();
  s->final_train_loss = sums[0] / ranks;
  s->exposed_comm_s = sums[1] / ranks;
  s->bytes_sent_shard = sums[2] / ranks;
  s->bytes_sent_sync = sums[3] / ranks;
  s->bytes_sent_init = sums[4] / ranks;
  s->rejections = static_cast<int64_t>(std::llround(sums[5]));
  s->syncs = method_.syncs();
}

Summary Run::Report() {
  Summary s;
  s.task = options_.task;
  s.method = options_.method;
  s.precision = options_.precision;
  s.ranks = session_->ranks();
  s.shard_size = options_.shard_size;
  s.seed = options_.seed;
  s.params = task_.parameters();
  s.steps = steps_;
  s.wall_s = session_->LargestOfAll(training_.seconds);
  CollectReplicas(&s);
  SumTraffic(&s);
  const Validation validation = Validate(task_, session_, &model_, &method_, pass_.get());
  s.val_loss = validation.loss;
  s.val_accuracy = validation.accuracy;
  s.unigram_entropy = task_.Entropy();
  if (const uint64_t own = method_.anchor_checksum(); own != 0) {
    session_->CheckSameInReplicas(own, "anchors");
    s.anchor_checksum = session_->CombineOverReplica(own);
  }
  const auto layers = model_.Collect();
  const auto sum = [this](double* values, int count) { session_->SumOverAll(values, count); };
  s.sharpness = LossRises(options_.sharpness_rho, task_, {session_->rank(), session_->ranks(), sum},
                          pass_.get(), layers);
  if (session_->rank() == 0) {
    s.sample = task_.Sample(layers);
  }
  s.peak_rss_bytes =
      static_cast<uint64_t>(session_->LargestOfAll(static_cast<double>(PeakResidentBytes())));
  return s;
}

void Run::Print(const Summary& s) {
  if (summary_ != nullptr) {
    summary_->Write(s);
  }
  char line[240];
  std::snprintf(
      line, sizeof(line),
      "%s: validation loss %.4f nats per %s (counting alone: %.4f), %.1f %% right, %.1f s, "
      "%.2f MB within and %.2f MB across replicas sent per rank",
      s.method.c_str(), s.val_loss, task_.unit(), s.unigram_entropy, 100 * s.val_accuracy, s.wall_s,
      s.bytes_sent_shard / 1e6, s.bytes_sent_sync / 1e6);
  progress_.Say(line);
  if (!s.sample.empty()) {
    progress_.Say("sample:\n" + s.sample);
  }
}

}  // namespace

void Train(const Options& options, const Task& task, Session* session) {
  Run run(options, task, session);
  run.Execute();
}

}  // namespace trainer
