#include "lib/train/acco/gradient_channel.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/agree.h"
#include "lib/train/acco/channel_newcomer.h"

namespace entrain {

namespace {

// Returns the options, with the time limit of a call filled in.
ChannelOptions WithLimit(const ChannelOptions& options, const Communicator& comm) {
  ChannelOptions known = options;
  known.limit_ns = options.timeout_ns > 0 ? options.timeout_ns : comm.timeout_ns();
  return known;
}

absl::Status CheckJoin(const Communicator& comm, const ChannelOptions& options, int64_t wait_ns) {
  if (wait_ns < 0) {
    return RefuseOption("wait_ns", wait_ns, "is negative");
  }
  if (options.admit == Admit::kNone) {
    return RefuseOption("admit", 0, "(none) takes nobody in; set exchange, as the members do");
  }
  return comm.size() == 1 ? absl::OkStatus()
                          : RefuseOption("comm", comm.size(),
                                         "ranks; a communicator that joins has one, and each rank "
                                         "joins by itself");
}

}  // namespace

absl::StatusOr<std::shared_ptr<GradientChannel>> GradientChannel::Create(
    Communicator& comm, const ChannelOptions& options) {
  const auto create = [&]() -> absl::StatusOr<std::shared_ptr<GradientChannel>> {
    ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
    ENTRAIN_RETURN_IF_ERROR(CheckRanks(options, comm.size()));
    ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> own, comm.Split(0, comm.rank()));
    ENTRAIN_RETURN_IF_ERROR(AgreeOn(*own, "the communicator", SharedOptions(options)));
    if (!options.groups.empty()) {
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(*own, "the communicator", SharedGroups(options)));
    }
    if (!options.identity.empty()) {
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(*own, "the communicator", options.identity));
    }
    const ChannelOptions known = WithLimit(options, *own);
    std::shared_ptr<GradientChannel> channel(new GradientChannel(std::move(own), known), Free);
    ENTRAIN_RETURN_IF_ERROR(channel->failure_.NoteForAll(channel->Allocate()));
    return channel;
  };
  auto channel = create();
  return channel.ok() ? std::move(channel) : Annotate(channel.status(), "acco");
}

absl::StatusOr<std::shared_ptr<GradientChannel>> GradientChannel::Join(
    Communicator& comm, const ChannelOptions& options, int64_t wait_ns) {
  const auto join = [&]() -> absl::StatusOr<std::shared_ptr<GradientChannel>> {
    ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
    ENTRAIN_RETURN_IF_ERROR(CheckJoin(comm, options, wait_ns));
    ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> own, comm.Split(0, 0));
    std::shared_ptr<GradientChannel> channel(new GradientChannel(own, WithLimit(options, *own)),
                                             Free);
    ENTRAIN_RETURN_IF_ERROR(channel->JoinMembers(*own, wait_ns));
    return channel;
  };
  auto channel = join();
  return channel.ok() ? std::move(channel) : Annotate(channel.status(), "acco: join");
}

GradientChannel::GradientChannel(std::shared_ptr<Communicator> comm, const ChannelOptions& options)
    : ranks_(comm->size()),
      options_(options),
      round_(comm, options_),
      rule_(options.method, options.warmup_rounds),
      quota_(options),
      failure_(round_.ranks()),
      state_({options_, accumulator_, held_, quota_, rule_, round_, jobs_, landed_, failure_}),
      jobs_(
          round_, options_.limit_ns,
          [this, rank = comm->rank()](const absl::Status& why) {
            round_.ranks().End(Annotate(why, absl::StrCat("acco: rank ", rank)));
          },
          [this](absl::string_view name) { round_.ranks().comm()->NoteFunction(this, name); }) {}

// A round under way ends first (Worker::kLastRoundNs).
void GradientChannel::Free(GradientChannel* channel) {
  Worker& worker = channel->jobs_.worker();
  const bool calls_back =
      channel->options_.step != nullptr || channel->options_.schedule != nullptr;
  const Deadline until = Deadline::After(calls_back ? Worker::kReportNs : Worker::kLastRoundNs);
  channel->jobs_.AwaitUntil(until).IgnoreError();
  if (channel->jobs_.IsUnderWay()) {
    channel->round_.ranks().Abort("acco: destroyed during a round");
  } else {
    worker.Drain().IgnoreError();
  }
  if (worker.StopSoon()) {
    delete channel;
  } else {
    worker.Leave([channel] { delete channel; });
  }
}

absl::Status GradientChannel::AllocateAccumulator() {
  ENTRAIN_ASSIGN_OR_RETURN(accumulator_,
                           OwnedBuffer::Allocate(options_.count * SizeOf(options_.grads_dtype)));
  ZeroShared(accumulator_.data(), accumulator_.size());
  return absl::OkStatus();
}

absl::Status GradientChannel::Allocate() {
  ENTRAIN_RETURN_IF_ERROR(AllocateAccumulator());
  ENTRAIN_RETURN_IF_ERROR(round_.Allocate());
  base_bytes_ = round_.ranks().bytes_sent();
  return absl::OkStatus();
}

// Joins the members. This rank continues after the commit that the members have just finished.
absl::Status GradientChannel::JoinMembers(Communicator& own, int64_t wait_ns) {
  ENTRAIN_RETURN_IF_ERROR(AllocateAccumulator());
  ENTRAIN_RETURN_IF_ERROR(round_.AllocateForNewcomer());
  ChannelNewcomer newcomer(options_, round_, own);
  ENTRAIN_RETURN_IF_ERROR(newcomer.Join(wait_ns));
  state_.Continue();
  base_bytes_ = round_.ranks().bytes_sent();
  ranks_ = newcomer.ranks();
  joins_before_ = round_.ranks().joins();
  quota_.GoOn(round_.state().progress().rounds());
  landed_.result = round_.state().result();
  return absl::OkStatus();
}

// ---- Called by the caller's thread -------------------------------------------------------------

absl::Status GradientChannel::CheckRound() const {
  ENTRAIN_RETURN_IF_ERROR(failure_.status());
  if (landed_.finished) {
    return absl::FailedPreconditionError("acco: the run has ended");
  }
  return quota_.CheckRound();
}

absl::Status GradientChannel::Add(int64_t microbatches, int64_t tokens) {
  ENTRAIN_RETURN_IF_ERROR(jobs_.CheckNotStarted());
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  ENTRAIN_RETURN_IF_ERROR(quota_.Add(microbatches, tokens));
  state_.Move();
  held_.microbatches += microbatches;
  held_.tokens += tokens;
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientChannel::Poll() const {
  const bool over = !jobs_.IsUnderWay() || !jobs_.worker().status().ok();
  if (jobs_.started()) {
    ENTRAIN_RETURN_IF_ERROR(failure_.status());
    return over;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  return quota_.full() || (quota_.enough() && over);
}

absl::Status GradientChannel::Stop() {
  ENTRAIN_RETURN_IF_ERROR(failure_.status());
  stop_ = true;
  return absl::OkStatus();
}

void GradientChannel::Abandon() {
  round_.ranks().End(absl::AbortedError("acco: destroyed during a call"));
}

// Other ranks wait in the all-reduce of the next round's counts. Makes this call fail there.
void GradientChannel::Refused(const absl::Status& why) const {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.options.user_tag = GradientRound::kCountsTag;
  round_.ranks().comm()->Refused(call, why);
}

absl::Status GradientChannel::CheckEnough() const {
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  return quota_.CheckEnough();
}

// If the next round is synchronous, starts it. Must be called before a wait, because Install would
// otherwise start the round and wait for it.
absl::Status GradientChannel::StartSynchronous() {
  state_.Move();
  ENTRAIN_RETURN_IF_ERROR(jobs_.started() ? failure_.status() : CheckEnough());
  if (!jobs_.started() && !jobs_.in_flight() && rule_.Synchronous(quota_.rounds())) {
    ENTRAIN_RETURN_IF_ERROR(HandOver());
    jobs_.SetStarted(true);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientChannel::Wait(Deadline until) {
  const AddTime waiting(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(StartSynchronous());
  absl::StatusOr<bool> over = jobs_.AwaitUntil(until);
  if (!over.ok()) {
    return failure_.Note(over.status());
  }
  return over;
}

absl::Status GradientChannel::WhenReady(Worker::Continuation then) {
  ENTRAIN_RETURN_IF_ERROR(StartSynchronous());
  jobs_.WhenOver(std::move(then));
  return absl::OkStatus();
}

absl::Status GradientChannel::Install() {
  const AddTime waiting(&exposed_ns_);
  state_.Move();
  if (jobs_.started()) {
    ENTRAIN_RETURN_IF_ERROR(failure_.status());
    jobs_.SetStarted(false);
    return Land();
  }
  ENTRAIN_RETURN_IF_ERROR(CheckEnough());
  ENTRAIN_RETURN_IF_ERROR(Land());
  if (landed_.finished) {
    dropped_ = held_.microbatches;
    quota_.Drop();
    return absl::OkStatus();
  }
  const bool wait = rule_.Synchronous(quota_.rounds());
  ENTRAIN_RETURN_IF_ERROR(HandOver());
  return wait ? Land() : absl::OkStatus();
}

// Waits for the round under way and takes over its results.
absl::Status GradientChannel::Land() {
  if (!jobs_.in_flight()) {
    return absl::OkStatus();
  }
  if (const absl::Status status = jobs_.Await(); !status.ok()) {
    return failure_.Note(status);
  }
  jobs_.Take();
  landed_ = {.result = round_.state().result(),
             .round_ns = jobs_.round_ns(),
             .finished = round_.state().EndsRun()};
  round_.buffers().Publish();
  return absl::OkStatus();
}

// Starts a round with the gradients added so far. Gradients of an estimate (half A) also stay in
// the accumulator, so that the next round uses A + B.
absl::Status GradientChannel::HandOver() {
  const RoundKind kind = rule_.Next(quota_.rounds());
  round_.buffers().Take(accumulator_, Commits(kind), round_.ranks().cut().layer());
  RoundCounts mine = held_;
  mine.stops = stop_ ? 1 : 0;
  if (Commits(kind)) {
    held_ = {};
  }
  quota_.EndRound();
  jobs_.Post(kind, mine);
  return absl::OkStatus();
}

ChannelInfo GradientChannel::info() const {
  const RoundResult& landed = landed_.result;
  ChannelInfo info{landed};
  info.ranks = landed.rounds > 0 ? landed.ranks : ranks_;
  // A newcomer may have the result of an earlier round. Ranks of that round may have been lost
  // before the newcomer came.
  info.losses = std::max<int64_t>(ranks_ + landed.joins - joins_before_ - info.ranks, 0);
  info.dropped = dropped_;
  info.finished = landed_.finished;
  info.exposed_ns = exposed_ns_;
  info.round_ns = landed_.round_ns;
  info.bytes_sent = round_.ranks().bytes_sent() - base_bytes_;
  info.bytes_held = accumulator_.size() + round_.buffers().bytes() + round_.ranks().cut_bytes();
  return info;
}

std::vector<ChannelLoss> GradientChannel::losses() const {
  return round_.ranks().losses();
}

}  // namespace entrain
