#include "examples/trainer/replica_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/trainer/books.h"
#include "examples/trainer/checkpoint_names.h"
#include "examples/trainer/conditions.h"
#include "examples/trainer/evaluate.h"
#include "examples/trainer/inner_optimizer.h"
#include "examples/trainer/kernels.h"
#include "examples/trainer/method.h"
#include "examples/trainer/pass.h"
#include "examples/trainer/sharded_model.h"
#include "examples/trainer/sharpness.h"
#include "examples/trainer/stopwatch.h"

namespace trainer {
namespace {

class ReplicaRun {
 public:
  ReplicaRun(const Options& options, const Task& task, Session* session);
  void Execute();

 private:
  void Join();
  void Resume();
  void Save();
  bool SaveIsDue() const;
  bool EvaluationIsDue() const;
  void BeginStep(bool* synced);
  void DoWhatIsDue();
  void KeepLast();
  bool Done(int64_t made) const;
  int64_t StepOfSchedule(int64_t step) const;
  void SetBatch(int64_t draw);
  double MicroBatches(int64_t step);
  void SecondGradient(int64_t step);
  void Update(StepRecord* record);
  void UpdateAndRest(StepRecord* record, const Traffic& meeting);
  StepRecord Step(int64_t step);
  Validation Evaluate();
  Traffic Meter() const;
  Summary Report();
  void SayLosses(int64_t step);
  // Returns the next multiple of `every` after `steps`.
  static int64_t Next(int64_t steps, int64_t every) {
    return every == 0 ? 0 : (steps / every + 1) * every;
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
  Batch batch_;
  Books books_;
  double sums_waited_s_ = 0.0;
  int64_t joined_at_ = 0;        // number of steps of the others when this replica joined
  size_t said_lost_ = 0;         // number of lost replicas for which a line was printed
  int64_t made_ = 0;             // number of steps of this replica
  int64_t steps_before_ = 0;     // number of steps of the run that this one has resumed
  int64_t next_save_ = 0;        // with --save-every: number of steps at the next checkpoint
  int64_t next_evaluation_ = 0;  // the same, with --eval-interval
  const std::vector<std::string> resumed_;  // files from which the run continues; empty: it begins
  int64_t failed_saves_ = 0;
  bool met_ = false;                // the step has begun with an exchange of all replicas
  std::optional<StepRecord> last_;  // of the last step, to which an evaluation belongs
};

ReplicaRun::ReplicaRun(const Options& options, const Task& task, Session* session)
    : options_(options),
      task_(task),
      session_(session),
      steps_(options.total_steps(session->ranks())),
      conditions_(options.conditions, options.seed, session->replicas()),
      model_(session->mesh(), task, options.precision == "bf16", options.shard_prefetch),
      method_(options, task, session, model_.handle()),
      inner_(options.inner, static_cast<int64_t>(model_.masters().size())),
      pass_(task.NewPass()),
      books_(options, task.unit(), session, steps_, [this] { return Meter(); }),
      resumed_(FilesToResume(options, session)) {
  if (options.wsam.form != "off") {
    std::vector<int64_t> sizes;
    for (int layer = 0; layer < task.layers(); ++layer) {
      sizes.push_back(task.layer_size(layer));
    }
    sharpness_ = std::make_unique<Sharpness>(options.wsam, options.inner.grad_clip, &inner_, sizes,
                                             static_cast<int64_t>(model_.masters().size()));
    model_.SetSharpness(sharpness_.get());
  }
  session_->Agree([this] { conditions_.CheckReplicas(); });
  books_.OpenFiles(!resumed_.empty() && resumed_[0] != options_.resume);
  int array = 0;
  for (std::vector<float>& state : inner_.state()) {
    if (options_.method != "ddp") {
      method_.AddState(("inner/" + std::to_string(array++)).c_str(), state.data(), state.size());
    }
  }
  if (session_->joins()) {
    Join();
  } else if (!resumed_.empty()) {
    Resume();
  }
  // A replica that joins counts like the others, which have not saved or evaluated since then.
  const int64_t since = session_->joins() ? method_.last_exchange() : steps_before_;
  next_save_ = Next(since, options_.save_every);
  next_evaluation_ = Next(since, options_.eval_interval);
  if (options_.method != "ddp") {
    session_->RunOver([this](auto... arguments) { return method_.Reduce(arguments...); });
  }
}

// Must be called after the other replicas have taken this replica in.
void ReplicaRun::Join() {
  session_->BecomeReplica(method_.replica());
  steps_before_ = joined_at_ = method_.steps();
  books_.Resume(steps_before_, steps_before_ * options_.tokens_per_step(session_->ranks()));
  if (session_->shard() == 0) {
    std::printf("step %lld: replica %d joins\n", static_cast<long long>(steps_before_),
                session_->replica());
    std::fflush(stdout);
  }
}

void ReplicaRun::Resume() {
  session_->Agree([this] {
    LoadFirst(
        options_, resumed_, session_->rank() == 0,
        [this](const Options& options, const std::string& file) { method_.Load(options, file); });
    steps_before_ = method_.steps();
    if (steps_before_ > steps_) {
      throw Error("--resume " + resumed_[0] + " is of step " + std::to_string(steps_before_) +
                  ", and the run has " + std::to_string(steps_));
    }
  });
  books_.Resume(steps_before_, steps_before_ * options_.tokens_per_step(session_->ranks()));
}

// Returns the same value on all ranks.
bool ReplicaRun::SaveIsDue() const {
  if (options_.save_every == 0) {
    return false;
  }
  return method_.by_time() ? method_.CheckpointIsDue(session_->replicas())
                           : method_.steps() >= next_save_;
}

// Must be called when an exchange has begun. Waits for the whole exchange first.
void ReplicaRun::Save() {
  method_.WaitAll(task_.layers());
  char name[32];
  if (method_.by_time()) {  // each replica has made its own number of steps
    std::snprintf(name, sizeof(name), "exchange-%08lld", static_cast<long long>(method_.syncs()));
  } else {
    std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(method_.steps()));
  }
  SaveOrCount(options_, session_, name, &failed_saves_, [&] { method_.Save(options_, name); });
}

Traffic ReplicaRun::Meter() const {
  return {.waited_s = model_.waited_s() + method_.waited_s() + sums_waited_s_ +
                      (sharpness_ ? sharpness_->waited_s() : 0.0),
          .shard = model_.bytes_sent_shard() + method_.bytes_sent_shard() + session_->bytes_sent(),
          .sync = model_.bytes_sent_sync() + method_.bytes_sent_sync()};
}

// Sets this rank's batch `draw` in the pass.
void ReplicaRun::SetBatch(int64_t draw) {
  task_.DrawTraining(session_->rank(), session_->replica(), draw, &batch_);
  if (conditions_.Shuffles(method_.interval(), session_->replica())) {
    conditions_.Shuffle(session_->rank(), draw, &batch_);
  }
  pass_->SetBatch(batch_);
}

// Returns the same value on all ranks.
bool ReplicaRun::EvaluationIsDue() const {
  return options_.eval_interval > 0 && method_.steps() >= next_evaluation_;
}

// Begins a step, with its exchange if it has one. Sets met_.
void ReplicaRun::BeginStep(bool* synced) {
  const auto due = [this] { return SaveIsDue() || EvaluationIsDue(); };
  const bool asks = method_.closes_early() && method_.exchanges() && due();
  if (asks) {
    method_.RequestExchange();
  }
  *synced = method_.BeginForward(true, true);
  met_ = *synced && (asks || !method_.closes_early());
  if (met_ && due()) {
    method_.WaitAll(task_.layers());
  }
}

// Must be called when an exchange has begun: then all replicas are at the same place of the run,
// unless it may have gone without some (met_), and a newcomer is one of them from its first exchange
// on.
void ReplicaRun::DoWhatIsDue() {
  session_->NoteExchange();
  if (!met_) {
    return;
  }
  if (EvaluationIsDue()) {
    const Validation validation = Evaluate();
    if (last_.has_value()) {
      last_->val_loss = validation.loss;
    }
    next_evaluation_ = Next(method_.steps(), options_.eval_interval);
  }
  if (SaveIsDue()) {
    books_.Measure([this] { Save(); });
    next_save_ = Next(method_.steps(), options_.save_every);
  }
}

void ReplicaRun::KeepLast() {
  if (last_.has_value()) {
    books_.Keep(*last_, last_->step);
    last_.reset();
  }
}

// Runs the forward and backward passes of one step, which has begun. Returns the mean loss of this
// rank's batches.
double ReplicaRun::MicroBatches(int64_t step) {
  const int64_t count = options_.gradient_accumulation_steps;
  double loss = 0.0;
  for (int64_t micro = 0; micro < count; ++micro) {
    if (micro > 0) {
      method_.BeginForward(true, false);
    }
    SetBatch((step - 1) * count + micro);
    model_.Forward(pass_.get(), [this](int layer) { method_.WaitLayer(layer); });
    model_.Backward(pass_.get(), 1.0f / static_cast<float>(count));
    loss += pass_->loss() / static_cast<double>(count);
  }
  model_.FinishGradients();
  return loss;
}

// Runs the same batches a second time, at w + e.
void ReplicaRun::SecondGradient(int64_t step) {
  const int64_t count = options_.gradient_accumulation_steps;
  sharpness_->Ascend(session_, &model_.masters(), &model_.gradients());
  for (int64_t micro = 0; micro < count; ++micro) {
    SetBatch((step - 1) * count + micro);
    model_.Forward(pass_.get(), [](int) {});
    model_.Backward(pass_.get(), 1.0f / static_cast<float>(count));
  }
  model_.FinishGradients();
}

void ReplicaRun::Update(StepRecord* record) {
  std::vector<float>& grads = model_.gradients();
  std::fill(grads.begin(), grads.end(), 0.0f);
  const double loss = MicroBatches(record->step);

  // The squared gradient norm and the loss are the only data that leave the rank besides parameters
  // and gradients. The two numbers stay within the replica.
  double sums[2] = {SumOfSquares(grads.data(), static_cast<int64_t>(grads.size())), loss};
  {
    const Waiting waiting(&sums_waited_s_);
    session_->SumOverReplica(sums, 2);
  }
  record->loss = sums[1] * session_->replicas() / session_->ranks();
  record->lr = LearningRate(options_.inner, static_cast<double>(StepOfSchedule(record->step)),
                            static_cast<double>(steps_));
  if (sharpness_) {
    SecondGradient(record->step);
    sharpness_->Step(record->step, record->lr, session_, &model_.masters(), grads);
  } else {
    // The optimizer's state begins when this replica joins.
    inner_.Step(record->step - joined_at_, record->lr, std::sqrt(sums[0]), &model_.masters(),
                &grads);
  }
  if (const double share = inner_.TakeAdaptiveShare(); share >= 0.0) {
    record->adaptive_share = share;
  }
  method_.EndStep(options_.tokens_per_step(1), loss);
  if (options_.save_every > 0 && method_.by_time() && method_.steps() >= next_save_) {
    method_.WishCheckpoint();
  }
}

// Makes the rest of a step, and sleeps as the emulated conditions require. `meeting`: what BeginStep
// took. In a step with a rendezvous, all waiting counts as waiting for other replicas. In other steps
// the ranks of a replica wait only for each other.
void ReplicaRun::UpdateAndRest(StepRecord* record, const Traffic& meeting) {
  const Traffic before = books_.Now();
  const double met_before_s = method_.waited_s();
  Update(record);
  const Traffic now = books_.Now();
  const bool meets = record->synced || method_.interval() == 0;
  const double idle_s = meeting.waited_s + (meets ? now.waited_s - before.waited_s
                                                  : method_.waited_s() - met_before_s);
  books_.AddIdle(idle_s);
  const double own_s = meeting.seconds + now.seconds - before.seconds - idle_s;
  std::this_thread::sleep_for(
      std::chrono::duration<double>(conditions_.Rest(record->step, session_->replica(), own_s)));
}

// Returns true if this replica is done after `made` steps. With --steps-together, replicas learn
// the steps of all replicas at each rendezvous, and all stop after the same rendezvous.
bool ReplicaRun::Done(int64_t made) const {
  if (!options_.steps_together) {
    return made >= steps_;
  }
  const Method::Met met = method_.StepsWhenMet(session_->replicas(), session_->replica());
  return met.replicas > 0 && met.steps >= met.replicas * steps_;
}

// Returns the step of the learning-rate schedule for this replica's step `step`. With
// --steps-together, the schedule starts from the mean number of steps of the replicas at the last
// rendezvous, and adds the steps of this replica since then.
int64_t ReplicaRun::StepOfSchedule(int64_t step) const {
  if (!options_.steps_together) {
    return step;
  }
  const Method::Met met = method_.StepsWhenMet(session_->replicas(), session_->replica());
  if (met.replicas == 0) {
    return std::min(step, steps_);
  }
  return std::min(met.steps / met.replicas + step - met.own, steps_);
}

Validation ReplicaRun::Evaluate() {
  return Validate(task_, session_, pass_.get(), [this](Pass* pass) {
    method_.BeginForward(false, true);
    model_.Forward(pass, [this](int layer) { method_.WaitLayer(layer); });
  });
}

StepRecord ReplicaRun::Step(int64_t step) {
  StepRecord record;
  record.step = step;
  record.replica = session_->replica();
  record.tokens = step * options_.tokens_per_step(session_->ranks());
  const Traffic meeting = books_.Measure([&] { BeginStep(&record.synced); });
  if (record.synced) {
    DoWhatIsDue();
  }
  KeepLast();
  const Traffic took = books_.Measure([&] { UpdateAndRest(&record, meeting); });
  record.seconds = books_.training().seconds;
  record.exposed_comm_s = meeting.waited_s + took.waited_s;
  record.bytes_sent = meeting.shard + meeting.sync + took.shard + took.sync;
  // If exchanges continue during later steps, each rank's exchange ends at a different time.
  const bool seen = record.synced && (!method_.late() || (method_.decoupled() && met_));
  if (const uint64_t own = seen ? method_.anchor_checksum() : 0; own != 0) {
    record.anchor_checksum = session_->CombineOverReplica(own);
  }
  if (!method_.exchanges() && options_.eval_interval > 0 && step >= next_evaluation_) {
    record.val_loss = Evaluate().loss;
    next_evaluation_ = Next(step, options_.eval_interval);
  }
  return record;
}

// The first remaining replica prints a line for each lost replica.
void ReplicaRun::SayLosses(int64_t step) {
  const std::vector<int> lost =
      method_.goes_on_after_losses() ? method_.Lost() : std::vector<int>();
  int first = 0;
  while (std::find(lost.begin(), lost.end(), first) != lost.end()) {
    ++first;
  }
  for (; said_lost_ < lost.size(); ++said_lost_) {
    if (session_->replica() == first && session_->shard() == 0) {
      std::printf("step %lld: replica %d is lost; %d of %d replicas go on\n",
                  static_cast<long long>(step), lost[said_lost_], method_.replicas(),
                  session_->replicas());
      std::fflush(stdout);
    }
  }
}

void ReplicaRun::Execute() {
  for (made_ = steps_before_; !Done(made_); ++made_) {
    const int64_t step = made_ + 1;
    last_ = Step(step);
    SayLosses(step);
  }
  const Traffic end = books_.Measure([this] {
    if (method_.Finish(task_.layers()) && !options_.save_dir.empty()) {
      Save();
    }
  });
  books_.AddIdle(end.waited_s);
  books_.Close(Report());
}

Summary ReplicaRun::Report() {
  const Validation validation = Evaluate();
  if (last_.has_value() && options_.eval_interval > 0 && made_ >= next_evaluation_) {
    last_->val_loss = validation.loss;
  }
  KeepLast();
  Summary s = books_.Sum(made_);
  s.failed_saves = failed_saves_;
  s.steps = steps_;
  const int64_t all = std::accumulate(s.replica_steps.begin(), s.replica_steps.end(), int64_t{0});
  const int64_t of_step = options_.tokens_per_step(options_.shard_size);
  s.tokens = all * of_step;
  const int64_t before = steps_before_ * session_->replicas();
  s.tokens_per_s = static_cast<double>((all - before) * of_step) / s.wall_s;
  double sums[] = {static_cast<double>(model_.bytes_sent_init()) / session_->ranks_left(),
                   // each rank of a replica counts the replica's rejections
                   static_cast<double>(method_.rejections()) / options_.shard_size};
  session_->SumOverAll(sums, 2);
  s.bytes_sent_init = sums[0];
  s.rejections = static_cast<int64_t>(std::llround(sums[1]));
  s.syncs = method_.syncs();
  if (const uint64_t own = method_.anchor_checksum(); own != 0) {
    session_->CheckSameInReplicas(own, "anchors");
    s.anchor_checksum = session_->CombineOverReplica(own);
  }
  Judge(options_, task_, session_, pass_.get(), validation, model_.Collect(), &s);
  return s;
}

}  // namespace

void TrainReplicas(const Options& options, const Task& task, Session* session) {
  ReplicaRun run(options, task, session);
  run.Execute();
}

}  // namespace trainer
