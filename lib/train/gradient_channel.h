// ACCO and its baselines: gradients go in, parameters come out a round later, while the caller accumulates the next ones.
// Optimizer state is sharded over the ranks (ZeRO-1). Behind entrain_acco_*; include/entrain/train.h has the contract of each
// function; ACCO is arXiv 2406.02613.
//
//   caller    add add add | install | add add | install |      acc: what was added; com: what travels
//   worker         round r          | round r + 1       |      counts, reduce-scatter, step, all-gather
//
// install waits for the round under way, takes its parameters, hands over what has been added and starts the next round:
//
//   acco   estimate   theta~ = Opt(theta, A / N_A), a preview: nothing of it is kept; acc keeps half A
//          commit     theta  = Opt(theta, (A + B) / (N_A + N_B)); acc is empty again
//   dpu    commit     with the gradients of one round before
//   wp     commit, and the same step once more as a preview, at which the next gradients are computed
//   zero1  commit, waited for
//
// On a device the worker enqueues a round on a stream of its own when it knows the counts, and
// install waits for that alone; what it takes and hands over is enqueued on the caller's stream,
// and the streams wait for each other:
//
//   caller's   ... install: params = com, com = acc |  ...gradients...  | params = com, com = acc |
//   own                                             | reduce-scatter, step, all-gather |
//
// All that follows from counts is the same on all ranks, since counts are summed with the gradients; so all end at the same commit.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/state_visitor.h"
#include "lib/comm/communicator.h"
#include "lib/optim/optimizer.h"
#include "lib/train/callers_arrays.h"
#include "lib/train/checkpoint.h"
#include "lib/train/open_state.h"
#include "lib/train/own_stream.h"
#include "lib/train/placed_array.h"
#include "lib/train/slab.h"
#include "lib/train/worker_thread.h"

namespace entrain {

// Values are the C ABI's (train.h).
enum class DelayMethod : int32_t { kAcco = 0, kDpu = 1, kWp = 2, kZero1 = 3 };
enum class ProgressUnit : int32_t { kCommits = 0, kGradients = 1, kTokens = 2 };

// One step of the caller's optimizer on elements [first, first + count) of this rank's shard; see entrain_acco_step_fn.
using ShardStepFn = int32_t (*)(void* user, int32_t preview, int64_t step, double lr, size_t first,
                                size_t count, const void* grads, void* master, void* out);
using ScheduleFn = double (*)(void* user, int64_t progress);

// lr, as a function of how much has been committed.
struct RateSchedule {
  ProgressUnit unit = ProgressUnit::kCommits;
  double lr = 1e-3, min_lr = 0;
  int64_t warmup = 0, total = 0;  // linear up to warmup, then half a cosine; total 0: constant
  ScheduleFn fn = nullptr;        // instead of all that
  void* user = nullptr;

  double At(int64_t progress) const;
};

// Elements [first, first + count) of the parameters, with an optimizer and a factor of the rate.
struct ParameterGroup {
  int64_t first = 0, count = 0;
  std::shared_ptr<const Optimizer> optimizer;  // null: ChannelOptions::optimizer
  double lr_scale = 1;
};

struct ChannelOptions {
  DelayMethod method = DelayMethod::kAcco;
  int64_t count = 0;       // Psi
  void* params = nullptr;  // the caller's, lent
  ArraysAt at;             // where they are, and all arrays of the channel's
  DType params_dtype = DType::kF32;
  DType grads_dtype = DType::kF32;  // of the accumulator
  DType wire_dtype = DType::kF32;   // of gradients on their way
  int64_t min_microbatches = 1;     // of this rank a round
  int64_t max_microbatches = 0;     // 0: no limit
  std::vector<int32_t> scripted;    // by round: exactly so many; empty: none
  int64_t warmup_rounds = 0;        // synchronous ones at the start
  double clip_norm = 0;             // 0: off
  RateSchedule schedule;
  ProgressUnit limit_unit = ProgressUnit::kCommits;
  int64_t limit = 0;  // the end, at the first commit that reaches it; 0: none
  std::shared_ptr<const Optimizer> optimizer;  // of what is in no group; or
  ShardStepFn step = nullptr;
  void* user = nullptr;
  int64_t timeout_ns = 0;
  std::vector<ParameterGroup> groups;  // ascending, disjoint; not with a step of the caller's own

  // Of the shard that the optimizer works on.
  DType master_dtype() const { return params_dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
};
// kInvalidArgument names the option, its value and what to do instead.
absl::Status CheckOptions(const ChannelOptions& options);
// All parameters as groups, those in between and an optimizer for each filled in; empty with a step of the caller's own. Of
// options that have been checked.
std::vector<ParameterGroup> AllGroups(const ChannelOptions& options);

// As of the last install, and so the same on all ranks after as many of them, but for what is this rank's own.
struct ChannelInfo {
  int64_t rounds = 0;                              // installed, warm-up included
  int64_t commits = 0, gradients = 0, tokens = 0;  // committed, of all ranks
  int64_t dropped = 0;  // micro-batches of this rank that came too late for the last commit
  bool finished = false;
  // The last of these rounds.
  bool committed = false;
  int64_t microbatches = 0;  // in it, of all ranks
  double lr = 0;
  double grad_norm = std::numeric_limits<double>::quiet_NaN();  // of the mean; NaN: nobody asked
  double clip_factor = 1;
  // Since the beginning:
  uint64_t exposed_ns = 0;  // waited in install
  uint64_t round_ns = 0;    // spent by rounds
  uint64_t bytes_sent = 0;
  int64_t bytes_held = 0;  // memory of this rank's, beside params and the caller's arrays
};

class GradientChannel final : public StateOwner {
 public:
  // Collective; rank 0's parameters become everybody's. Letting go of it ends a round under way, on all ranks; on a device, it
  // waits for the one that was taken last. A step of the caller's that does not return is left to its thread, which frees the
  // object.
  static absl::StatusOr<std::shared_ptr<GradientChannel>> Create(Communicator& comm,
                                                                 const ChannelOptions& options);
  // The accumulator: options.count elements of grads_dtype.
  void* gradients() { return accumulator_.data(); }
  // Of rounds, for a step of the caller's own; null on the host.
  StreamHandle stream() const { return own_->at().stream; }
  // On a device: from now on calls are in the order of this stream, which waits for what is on the one before.
  absl::Status SetStream(StreamHandle stream);
  // So much has been added to it since the last call.
  absl::Status Add(int64_t microbatches, int64_t tokens);
  // Whether Install would not wait for other ranks, or nothing more can be added before it. Never blocks.
  absl::StatusOr<bool> Poll() const;
  absl::Status Install();
  // Blocks until Install would not wait; false: it would still when the time is up. Where Install waits for the round that it
  // starts, this starts it.
  absl::StatusOr<bool> Wait(Deadline until);
  // The same without blocking: calls `then` once when Install would not wait, with the round's status; see LayerSync::WhenLayerOver.
  absl::Status WhenReady(WorkerThread::Continuation then);
  // This rank wants to end: all do at the first commit that knows.
  absl::Status Stop();
  // Any thread: makes the call that another thread is inside of fail, and the round that is under way.
  void Abandon();
  // A call of this rank's failed, and it may end: for those who wait for it.
  void Refused(const absl::Status& why) const;

  absl::Status AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                        int64_t count);
  // Collective; between Install and the next Add.
  absl::Status Save(const CheckpointOptions& options);
  absl::Status Load(const CheckpointOptions& options);
  // The state in the caller's hands. Not collective; waits for the round under way.
  absl::StatusOr<std::unique_ptr<OpenState>> Open(CheckpointKind kind);

  // StateOwner
  int64_t moves() const override { return moves_; }
  absl::Status CheckSavable(CheckpointKind) const override { return CheckBetweenRounds(); }
  absl::Status TakeUp(OpenState& state, int64_t timeout_ns) override;

  ChannelInfo info() const;
  const Slab& slab() const { return slab_; }
  // This rank's shard: slab().layer(0).valid elements of master_dtype.
  const void* master() const { return master_.data(); }

 private:
  // What all ranks have together, as it travels.
  struct Counts {
    int64_t microbatches = 0, tokens = 0, stops = 0;
  };

  GradientChannel(std::shared_ptr<Communicator> comm, const ChannelOptions& options, Slab slab);
  ~GradientChannel();
  static void Free(GradientChannel* channel);
  absl::Status Allocate();
  absl::Status Rehearse();
  absl::Status CheckRound() const;
  absl::Status CheckEnough() const;
  absl::Status CheckNotStarted() const;
  absl::Status StartSynchronous();
  bool Synchronous() const;
  bool Full() const;
  int64_t Wanted() const;
  absl::Status Land();
  absl::Status HandOver();
  absl::Status PassOn();
  void PostRound();
  int64_t Progress(ProgressUnit unit) const;
  bool Done() const;
  absl::Status Fail(const absl::Status& why);
  absl::Status FailAll(const absl::Status& why);
  bool on_device() const { return options_.at.device != nullptr; }
  // gradient_channel_state.cc:
  ModelPart Part() const;
  void VisitState(StateVisitor& visitor);
  absl::Status CheckBetweenRounds() const;
  absl::Status CheckKind(CheckpointKind kind) const;
  absl::Status Prepare(AllRanks& all, CheckpointKind kind, absl::Status mine);
  void FillSaved();
  absl::Status Restore(AllRanks& all, absl::string_view doing, absl::Status mine, StateList* state,
                       absl::FunctionRef<absl::Status()> fill);
  absl::Status CheckLoaded(const StateList& state) const;
  absl::Status GoOnFromMasters(const AllRanks& all);
  absl::Status End(const AllRanks& all, absl::Status status, absl::string_view doing);

  // gradient_channel_round.cc, the worker's:
  struct RoundStep {
    int64_t step = 0;
    double scale = 1, lr = 0;
    bool preview = false;
  };
  struct Carried {
    const char* what;
    RefPtr<Work> work;
  };
  // Of collectives that can be under way together.
  static constexpr int64_t kCountsTag = 0, kDataTag = 1;
  absl::Status RunRound();
  absl::Status MakeRound();
  absl::Status ShareCounts(Counts* all);
  absl::Status Carry(const char* what, Call call);
  absl::Status SettleRound();
  Call GradientsCall() const;
  Call ParametersCall() const;
  absl::StatusOr<double> Norm(double scale);
  double SumOfSquares() const;
  absl::Status StepShard(const RoundStep& round);
  absl::Status StepPiece(const RoundStep& round, int64_t first, int64_t count);
  absl::Status StepOnce(int64_t step, double lr, int64_t first, int64_t count,
                        const std::byte* grads, std::byte* out);

  std::byte* Own(DType dtype) const { return com_.data() + slab_.layer(0).first * SizeOf(dtype); }
  CallOptions Options(bool on_stream = true) const;

  const std::shared_ptr<Communicator> comm_;
  const ChannelOptions options_;
  const std::vector<ParameterGroup> groups_;  // of all parameters
  const Slab slab_;                           // one layer
  std::unique_ptr<OwnStream> own_;            // the worker's
  PlacedArray accumulator_, com_, master_;
  std::vector<PlacedArray>
      state_;          // the optimizers', as the shard; of those that need fewer, zeros
  int64_t piece_ = 0;  // elements of a shard that are stepped at once
  PlacedArray room_;   // for a piece of the mean gradient, and one of the estimate

  // The caller's:
  Counts held_;               // in the accumulator
  int64_t round_added_ = 0;   // since the last install
  int64_t installs_ = 0;      // that have handed over
  int64_t moves_ = 0;         // calls by which the run has gone on
  bool started_ = false;      // a synchronous round, by Wait; Install takes it
  bool in_flight_ = false;    // a round is under way, or over and not taken
  bool second_half_ = false;  // acco: what is handed over next is A and B
  bool stop_ = false, finished_ = false;
  int64_t dropped_ = 0;
  uint64_t exposed_ns_ = 0;
  uint64_t base_bytes_ = 0;  // sent while this was created
  uint64_t job_ = 0;
  ChannelInfo landed_;  // what the last install has taken
  CallersArrays callers_;
  // For checkpoints: in_flight_, commits_, second_half_, finished_; of landed_ and of made_, whole numbers and others; the
  // options' method.
  std::array<int64_t, 4> flags_ = {};
  std::array<int64_t, 5> counts_ = {};
  std::array<double, 3> values_ = {};
  int64_t method_;
  std::vector<std::array<int64_t, 3>>
      saved_groups_;  // first, count, state arrays; as the options have them
  absl::Status status_;

  // The worker's while a round is under way, the caller's otherwise:
  Counts sent_;                              // with com_
  bool commits_ = false, previews_ = false;  // this round
  int64_t steps_ = 0, rounds_ = 0;
  int64_t gradients_ = 0, tokens_ = 0, stops_ = 0;  // committed; steps_ is how often
  ChannelInfo made_;                                // by the last round that is over, or enqueued
  std::vector<Carried> carried_;                    // what is on its way
  std::atomic<uint64_t> round_ns_{0};
  std::atomic<int64_t> over_{0};  // of installs_, those whose round is over

  WorkerThread worker_;  // last: its jobs use the rest
};

}  // namespace entrain
