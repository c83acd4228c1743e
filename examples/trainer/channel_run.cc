#include "examples/trainer/channel_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/trainer/books.h"
#include "examples/trainer/channel.h"
#include "examples/trainer/checkpoint_names.h"
#include "examples/trainer/conditions.h"
#include "examples/trainer/evaluate.h"
#include "examples/trainer/inner_optimizer.h"
#include "examples/trainer/pass.h"
#include "examples/trainer/sharpness.h"
#include "examples/trainer/whole_model.h"

namespace trainer {
namespace {

class ChannelRun {
 public:
  ChannelRun(const Options& options, const Task& task, Session* session);
  void Execute();

 private:
  void Join();
  void Resume();
  void Save();
  bool SaveIsDue() const;
  bool EvaluationIsDue() const;
  void AfterInstall();
  double Gradients();
  void MicroBatch();
  void KeepCommit(const entrain_acco_info_t& info);
  void SayLosses(const entrain_acco_info_t& info);
  Validation Evaluate();
  Summary Report();
  Traffic Meter() const;
  int64_t Position(int64_t commits, int64_t tokens) const;

  const Options& options_;
  const Task& task_;
  Session* const session_;
  const int64_t tokens_per_step_;
  const Conditions conditions_;
  WholeModel model_;
  InnerOptimizer inner_;
  std::unique_ptr<CoupledSharpness> sharpness_;  // null: off
  Channel channel_;
  const std::unique_ptr<Pass> pass_;
  Batch batch_;
  Books books_;
  int64_t made_ = 0;                        // micro-batches of this rank, over all resumed runs
  int64_t made_before_ = 0;                 // value of made_ at the last record
  const std::vector<std::string> resumed_;  // files from which the run continues; empty: it begins
  int64_t failed_saves_ = 0;
  double losses_ = 0.0;  // sum over the micro-batches since the last record
  Traffic kept_;         // value of training() at the last record
  int64_t commits_ = 0;
  int64_t tokens_before_ = 0;  // tokens of the run that this one has resumed
  size_t said_lost_ = 0;       // number of lost ranks for which a line was printed
  int64_t joined_after_ = -1;  // rounds before this rank joined; -1: it has not joined
};

ChannelRun::ChannelRun(const Options& options, const Task& task, Session* session)
    : options_(options),
      task_(task),
      session_(session),
      tokens_per_step_(options.tokens_per_step(session->ranks())),
      conditions_(options.conditions, options.seed, session->replicas()),
      model_(task, options.precision == "bf16"),
      inner_(options.inner, 0),
      channel_(options, task, session, inner_, &model_),
      pass_(task.NewPass()),
      books_(options, task.unit(), session, options.total_steps(session->ranks()),
             [this] { return Meter(); }),
      resumed_(FilesToResume(options, session)) {
  if (options.wsam.form != "off") {
    sharpness_ = std::make_unique<CoupledSharpness>(options.wsam, inner_, &model_);
  }
  session_->Agree([this] { conditions_.CheckReplicas(); });
  books_.OpenFiles(!resumed_.empty() && resumed_[0] != options_.resume);
  channel_.AddCursor(&made_);
  if (session_->joins()) {
    Join();
  } else if (!resumed_.empty()) {
    Resume();
  }
  session_->RunOver([this](auto... arguments) { return channel_.Reduce(arguments...); });
}

// Sets the position of this rank to that of a rank that has trained from the beginning, so its next
// batches are equally far in the data. Must be called after the other ranks have admitted this
// rank.
void ChannelRun::Join() {
  const entrain_acco_info_t info = channel_.info();
  joined_after_ = info.rounds;
  commits_ = info.commits;
  tokens_before_ = info.tokens;
  made_ = made_before_ = info.gradients / session_->ranks();
  books_.Resume(Position(info.commits, info.tokens), info.tokens);
  std::printf("step %lld: rank %d joins\n", static_cast<long long>(info.commits), session_->rank());
  std::fflush(stdout);
}

void ChannelRun::Resume() {
  std::string kind;
  session_->Agree([&] {
    kind = LoadFirst(options_, resumed_, session_->rank() == 0,
                     [this](const Options& options, const std::string& file) {
                       channel_.Load(options, file);
                     })
               .checkpoint_kind;
    const int64_t steps = options_.total_steps(session_->ranks());
    if (options_.tokens == 0 && channel_.info().commits > steps) {
      throw Error("--resume " + resumed_[0] + " is of step " +
                  std::to_string(channel_.info().commits) + ", and the run has " +
                  std::to_string(steps));
    }
  });
  const entrain_acco_info_t info = channel_.info();
  if (kind == "portable") {
    made_ = (info.gradients + session_->ranks() - 1) / session_->ranks();
  }
  made_before_ = made_;
  commits_ = info.commits;
  tokens_before_ = info.tokens;
  books_.Resume(Position(info.commits, info.tokens), info.tokens);
}

// Converts commits or tokens to a position among the steps of the run.
int64_t ChannelRun::Position(int64_t commits, int64_t tokens) const {
  return options_.tokens > 0 ? (tokens + tokens_per_step_ - 1) / tokens_per_step_ : commits;
}

Traffic ChannelRun::Meter() const {
  const entrain_acco_info_t info = channel_.info();
  return {.waited_s = static_cast<double>(info.exposed_ns) * 1e-9, .sync = info.bytes_sent};
}

// The result depends on the commits alone, so newcomers save together with the other ranks.
bool ChannelRun::SaveIsDue() const {
  return !options_.save_dir.empty() && options_.save_every > 0 &&
         commits_ % options_.save_every == 0;
}

bool ChannelRun::EvaluationIsDue() const {
  return options_.eval_interval > 0 && commits_ % options_.eval_interval == 0;
}

void ChannelRun::Save() {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(commits_));
  books_.Measure(
      [&] { SaveOrCount(options_, session_, name, &failed_saves_, [&] { channel_.Save(name); }); });
}

// Adds the gradients of the next micro-batch. Returns its loss.
double ChannelRun::Gradients() {
  task_.DrawTraining(session_->rank(), session_->replica(), made_, &batch_);
  pass_->SetBatch(batch_);
  float* const sums = channel_.gradients();
  if (sharpness_) {
    return sharpness_->Add(pass_.get(), sums);
  }
  model_.Forward(pass_.get());
  model_.Backward(pass_.get(), [&](int layer) { return sums + model_.offset(layer); });
  return pass_->loss();
}

// Computes one micro-batch, and sleeps as the emulated conditions require. The conditions assume
// the least number of micro-batches per round.
void ChannelRun::MicroBatch() {
  const Traffic before = books_.Now();
  losses_ += Gradients();
  const int64_t parts = options_.gradient_accumulation_steps;
  const double own_s = books_.Now().seconds - before.seconds;
  std::this_thread::sleep_for(std::chrono::duration<double>(
      conditions_.Rest(made_ / parts + 1, session_->replica(), own_s, parts)));
  ++made_;
  channel_.Add(options_.tokens_per_microbatch());
}

// Must be called after the Install that has taken the commit.
void ChannelRun::KeepCommit(const entrain_acco_info_t& info) {
  StepRecord record;
  record.step = info.commits;
  record.replica = session_->replica();
  record.seconds = books_.training().seconds;
  record.tokens = info.tokens;
  record.loss = losses_ / static_cast<double>(std::max<int64_t>(made_ - made_before_, 1));
  record.lr = info.lr;
  record.synced = options_.method != "zero1";
  record.exposed_comm_s = books_.training().waited_s - kept_.waited_s;
  record.bytes_sent = books_.training().sync - kept_.sync;
  record.microbatches = info.microbatches;
  if (const double share = inner_.TakeAdaptiveShare(); share >= 0.0) {
    record.adaptive_share = share;
  }
  kept_ = books_.training();
  made_before_ = made_;
  losses_ = 0.0;
  if (EvaluationIsDue()) {
    record.val_loss = Evaluate().loss;
  }
  books_.Keep(record, Position(info.commits, info.tokens));
}

// Prints a line for each lost rank. Of the ranks that were there from the beginning, only the first
// remaining one prints.
void ChannelRun::SayLosses(const entrain_acco_info_t& info) {
  const std::vector<int> lost = channel_.Lost();
  int first = 0;
  while (std::find(lost.begin(), lost.end(), first) != lost.end()) {
    ++first;
  }
  for (; said_lost_ < lost.size(); ++said_lost_) {
    if (session_->rank() == first && joined_after_ < 0) {
      std::printf("step %lld: rank %d is lost; %lld of %d ranks go on\n",
                  static_cast<long long>(info.commits), lost[said_lost_],
                  static_cast<long long>(session_->ranks() + info.joins) -
                      static_cast<long long>(said_lost_) - 1,
                  session_->ranks());
      std::fflush(stdout);
    }
  }
}

void ChannelRun::AfterInstall() {
  const entrain_acco_info_t info = channel_.info();
  SayLosses(info);
  if (info.commits > commits_) {
    session_->NoteExchange();
    commits_ = info.commits;
    KeepCommit(info);
    if (SaveIsDue() || (!options_.save_dir.empty() && info.finished != 0)) {
      Save();
    }
  } else if (info.rounds == joined_after_) {
    // With an asynchronous method, the other ranks record this commit now, and evaluate and save it
    // together with this rank.
    if (EvaluationIsDue()) {
      Evaluate();
    }
    if (SaveIsDue()) {
      Save();
    }
  }
}

void ChannelRun::Execute() {
  bool finished = channel_.info().finished != 0;
  while (!finished) {
    books_.Measure([this] { MicroBatch(); });
    if (!channel_.Ready()) {
      continue;
    }
    books_.AddIdle(books_.Measure([this] { channel_.Install(); }).waited_s);
    AfterInstall();
    finished = channel_.info().finished != 0;
  }
  books_.Close(Report());
}

Validation ChannelRun::Evaluate() {
  return Validate(task_, session_, pass_.get(), [this](Pass* pass) { model_.Forward(pass); });
}

Summary ChannelRun::Report() {
  const entrain_acco_info_t info = channel_.info();
  Summary s = books_.Sum(made_);
  s.failed_saves = failed_saves_;
  std::swap(s.replica_microbatches, s.replica_steps);
  s.replica_steps.assign(s.replica_microbatches.size(), info.commits);
  s.steps = info.commits;
  s.tokens = info.tokens;
  s.tokens_per_s = static_cast<double>(info.tokens - tokens_before_) / s.wall_s;
  s.syncs = info.rounds;
  double dropped = static_cast<double>(info.dropped);
  session_->SumOverAll(&dropped, 1);
  s.dropped_microbatches = static_cast<int64_t>(dropped);
  s.bytes_held =
      static_cast<uint64_t>(session_->LargestOfAll(static_cast<double>(info.bytes_held)));
  Judge(options_, task_, session_, pass_.get(), Evaluate(), model_.Collect(), &s);
  return s;
}

}  // namespace

void TrainByChannel(const Options& options, const Task& task, Session* session) {
  ChannelRun run(options, task, session);
  run.Execute();
}

}  // namespace trainer
