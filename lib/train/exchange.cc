#include "lib/train/exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/train/device_waits.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker_thread.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();

Weighing WeighingOf(const EditOptions& options) {
  Weighing how;
  how.compat = options.compat;
  if (options.pseudo_gradnorm_reduce) {
    how.kind = Weighting::kSoftmax;
    how.temperature = options.temperature();
  } else if (!options.normalize) {
    how.kind = Weighting::kSum;
  }
  if (options.use_step_weight) {
    how.step_ratio = options.reducer == ReducerKind::kNone ? 1 : options.step_weight_ratio;
  }
  return how;
}

std::unique_ptr<DeltaReducer> ReducerOf(const EditOptions& options) {
  const Merging merging = options.merging();
  if (options.reducer == ReducerKind::kGta || merging.Packs()) {
    return std::make_unique<GtaReducer>(merging);  // gta without consensus is the linear reducer
  }
  return std::make_unique<LinearReducer>();
}

AnomalyOptions DetectorOf(const EditOptions& options) {
  return {.alpha = options.ewma_alpha,
          .warmup = options.ewma_warmup_steps,
          .threshold = options.ewma_threshold,
          .as_published = options.compat || options.ewma_as_published,
          .ingest_rejected = options.compat};
}

// Returns the first error of the work that this thread has enqueued on a device.
absl::Status CheckDevice() {
  const KernelStream* const on = KernelStream::Current();
  return on == nullptr ? absl::OkStatus() : on->status();
}

// A reducer's debts (what it has not sent of earlier deltas) are saved in exact checkpoints only.
// From a portable checkpoint a run begins without debts.
void VisitReducer(MergeState* state, bool owes, const Slab& slab, StateVisitor& visitor) {
  if (state == nullptr || visitor.kind() != CheckpointKind::kExact) {
    return;
  }
  visitor.Value("reducer/calls", Holder::kRank, state->calls());
  for (const int layer : slab.training()) {
    const int64_t valid = slab.layer(layer).valid;
    if (owes && valid > 0) {
      visitor.Array(absl::StrCat("reducer/owed/", layer), Holder::kRank, DType::kF32,
                    state->Owed(layer, valid), valid);
    }
  }
}

// Returns true if the mean is practically zero. The published code tests in this way whether all
// replicas were rejected. Each rank tests its own shard.
bool Vanishes(const float* mean, int64_t count, DeviceRoom* room) {
  std::vector<float> here;
  if (room != nullptr) {
    here.resize(static_cast<size_t>(count));
    CopyArray(here.data(), mean, count * kFloat);
    KernelStream::Current()->Note(WaitForKernels(room->limit()));
    mean = here.data();
  }
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += std::abs(mean[i]);
  }
  return sum < 1e-6;
}

// Logs at every log level, because a caller that sets is_debug asks for these lines.
void LogDecision(int layer, uint64_t rendezvous, int replica, const LayerReport& report) {
  const auto me = static_cast<size_t>(replica);
  LogLine(LogLevel::kInfo,
          absl::StrFormat("edit: rendezvous %d, layer %d, replica %d: norm %g, z %g of %g, %s, "
                          "weight %g, clip factor %g%s; accepted so far %d of %d",
                          rendezvous, layer, replica, report.norms[me], report.score.z,
                          report.score.limit, report.accepted ? "accepted" : "rejected",
                          report.weights[me], report.clip_factor,
                          report.rolled_back ? ", rolled back" : "", report.accepted_ever,
                          report.brought_ever));
}

}  // namespace

Exchange::Exchange(const Slab& slab, const LayerArrays& live, const EditOptions& options,
                   ExchangeGroups groups, DeviceRoom* room)
    : slab_(slab),
      live_(live),
      options_(options),
      groups_(std::move(groups)),
      sums_(slab, groups_, options_.timeout_ns),
      room_(room),
      reducer_(ReducerOf(options)),
      me_(groups_.sync == nullptr ? 0 : groups_.sync->rank()),
      all_replicas_(groups_.sync == nullptr ? 1 : static_cast<size_t>(groups_.sync->size())),
      replicas_(all_replicas_),
      anchors_(slab, room, options.cpu_offload),
      guard_(slab, anchors_, options.anchor_check),
      outer_(slab, options),
      empty_rounds_(static_cast<size_t>(slab.layers()), 0),
      brought_(static_cast<size_t>(slab.layers()), 0),
      accepted_(static_cast<size_t>(slab.layers()), 0),
      gaps_(slab.layers()),
      overlapped_(static_cast<size_t>(slab.layers()), 0),
      finite_(static_cast<size_t>(slab.layers()), 1),
      newcomer_rounds_(static_cast<size_t>(slab.layers()), options.newcomer_warmup),
      deltas_(room, slab.largest().shard),
      verdicts_(static_cast<size_t>(slab.layers())),
      counted_(static_cast<size_t>(slab.layers())),
      outcomes_(static_cast<size_t>(slab.layers())),
      reports_(static_cast<size_t>(slab.layers())),
      flights_(static_cast<size_t>(slab.layers())) {
  std::iota(replicas_.begin(), replicas_.end(), 0);
  if (options.skip_anomaly) {
    detectors_.assign(static_cast<size_t>(slab.layers()), AnomalyDetector(DetectorOf(options)));
  }
}

Exchange::~Exchange() {
  for (Flight& flight : flights_) {
    if (flight.work && !flight.work->done()) {
      groups_.sync->Abort("destroyed during an exchange");
      flight.work->Wait(Deadline::Never());  // the call writes to the flight's buffer
    }
  }
}

CallOptions Exchange::Options(int64_t tag, int64_t extra_ns) const {
  const int64_t usual =
      options_.timeout_ns > 0 || extra_ns == 0 ? options_.timeout_ns : groups_.sync->timeout_ns();
  const int64_t room = std::numeric_limits<int64_t>::max() - extra_ns;
  return TimedCall(std::min(usual, room) + extra_ns, tag, true);
}

absl::Status Exchange::CreateAnchors() {
  return anchors_.Create(live_, outer_.arrays());
}

void Exchange::VisitState(StateVisitor& visitor) {
  anchors_.VisitState(visitor);
  outer_.VisitState(visitor);
  if (options_.staleness_penalty) {
    gaps_.VisitState(visitor);
  }
  for (const int layer : slab_.training()) {
    if (!detectors_.empty()) {
      detectors_[static_cast<size_t>(layer)].VisitState(absl::StrCat("detector/", layer), visitor);
    }
  }
  if (!detectors_.empty()) {
    visitor.Array("empty_rounds", Holder::kAll, DType::kI32, empty_rounds_.data(),
                  static_cast<int64_t>(empty_rounds_.size()));
  }
  if (options_.overlap_steps > 0 && visitor.kind() == CheckpointKind::kExact) {
    visitor.Array("behind/finite", Holder::kReplica, DType::kI32, finite_.data(),
                  static_cast<int64_t>(finite_.size()));
    visitor.Array("behind/taken", Holder::kRank, DType::kF32, taken_, slab_.count());
  }
  if (options_.newcomer_warmup > 0 && visitor.kind() == CheckpointKind::kExact) {
    visitor.Array("newcomer/counted", Holder::kReplica, DType::kI64, newcomer_rounds_.data(),
                  static_cast<int64_t>(newcomer_rounds_.size()));
  }
  visitor.Array("layers/brought", Holder::kAll, DType::kI64, brought_.data(), slab_.layers());
  visitor.Array("layers/accepted", Holder::kAll, DType::kI64, accepted_.data(), slab_.layers());
  VisitReducer(reducer_->state(), options_.error_feedback, slab_, visitor);
}

void Exchange::Adopt(bool live) {
  carried_late_ = 0;  // of another run, as are the reports and repairs
  for (int64_t& rounds : newcomer_rounds_) {
    // Replicas that begin from a portable checkpoint are no newcomers.
    rounds =
        live ? options_.newcomer_warmup : std::clamp<int64_t>(rounds, 0, options_.newcomer_warmup);
  }
  for (const int layer : slab_.training()) {
    guard_.SetDistrusted(layer, false);
    if (!detectors_.empty()) {
      detectors_[static_cast<size_t>(layer)].Settle();
    }
    reports_[static_cast<size_t>(layer)] = {};
    if (anchors_.exist()) {
      anchors_.Seal(layer);
      if (live) {
        live_.Write(layer, anchors_.anchor(layer), slab_.layer(layer).valid);
      }
    }
  }
}

// ---- Judge -------------------------------------------------------------------------------------

absl::StatusOr<bool> Exchange::Judge(const std::vector<int>& layers, Standing mine,
                                     int64_t extra_ns) {
  mine.flags |= std::exchange(announced_, 0);
  mine.flags |= static_cast<uint64_t>(carried_late_) << kLateShift;
  mine.flags |= Growing(layers) << kNewShift;
  ENTRAIN_ASSIGN_OR_RETURN(NormTable table, Meet(layers, mine, extra_ns));
  if (!CheckAnchors(table.standings, table.replicas).ok()) {
    ENTRAIN_RETURN_IF_ERROR(SettleAnchors(table));
    ENTRAIN_ASSIGN_OR_RETURN(table, Meet(layers, mine, extra_ns));
    if (const absl::Status same = CheckAnchors(table.standings, table.replicas); !same.ok()) {
      return LeaveTogether(same);
    }
  }
  return TakeUp(std::move(table));
}

// Holds a rendezvous. The anchors in the returned table may differ.
absl::StatusOr<NormTable> Exchange::Meet(const std::vector<int>& layers, Standing mine,
                                         int64_t extra_ns) {
  std::vector<double> norms;
  ENTRAIN_RETURN_IF_ERROR(JudgeWithinReplica(layers, &mine, &norms));
  return ShareNorms(layers, mine, norms, extra_ns);
}

// Computes, with one gather, the replica's standing and the norms of whole layers, with the same
// bits on all ranks of the replica. A norm is negative if the replica's own detector rejects it.
absl::Status Exchange::JudgeWithinReplica(const std::vector<int>& layers, Standing* mine,
                                          std::vector<double>* norms) {
  std::vector<double> values;
  for (const int l : layers) {
    // The caller of a late replica trains meanwhile and changes theta. The anchor is used instead.
    const double square = guard_.Measure(l, late(l) ? anchors_.anchor(l) : Source(l));
    values.push_back(guard_.distrusts(l) ? kNotFinite : sums_.Share(l, square));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckDevice());
  if (replicas_.size() == 1) {
    ENTRAIN_RETURN_IF_ERROR(guard_.CheckSeals(layers));
  }
  values.insert(values.end(), {static_cast<double>(mine->tokens_since), mine->metric_sum,
                               mine->metric_weight, static_cast<double>(mine->flags),
                               absl::bit_cast<double>(guard_.Checksum(layers))});
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<double> all, sums_.Gather(slab_.layers(), values));
  ENTRAIN_RETURN_IF_ERROR(sums_.CheckCopies(layers, all));
  const size_t width = values.size();
  for (size_t i = 0; i < layers.size(); ++i) {
    const double norm = std::sqrt(ReplicaSums::SumOfColumn(all, width, i));
    const auto layer = static_cast<size_t>(layers[i]);
    bool rejected = false;
    if (!detectors_.empty() && mine->steps_since > 0) {
      rejected = detectors_[layer].Look(norm).outlier;
    }
    norms->push_back(rejected ? -norm : norm);
  }
  *mine = {.round = mine->round, .steps = mine->steps, .steps_since = mine->steps_since};
  for (size_t row = 0; row < all.size(); row += width) {
    mine->tokens_since += static_cast<uint64_t>(all[row + layers.size()]);
    mine->metric_sum += all[row + layers.size() + 1];
    mine->metric_weight += all[row + layers.size() + 2];
    mine->flags |= static_cast<uint64_t>(all[row + layers.size() + 3]);
    mine->anchor_checksum += guard_.compares() ? absl::bit_cast<uint64_t>(all[row + width - 1]) : 0;
  }
  return absl::OkStatus();
}

// If theta is not f32 and there are anchors, returns a + (theta - rounded a): the anchor plus the
// change that training has made. Then the pseudo-gradient contains no rounding error of the anchor,
// and the anchor keeps all its bits.
const float* Exchange::Source(int layer) const {
  if (live_.dtype == DType::kF32) {
    return overlapped(layer) ? Taken(layer) : live_.f32(layer);
  }
  const int64_t count = slab_.layer(layer).valid;
  if (overlapped(layer)) {
    CopyArray(wide_.theta, Taken(layer), count * kFloat);
  } else {
    live_.Read(layer, wide_.theta, count);
  }
  if (anchors_.exist()) {
    RoundAnchor(wide_, layer, wide_.anchor);
    CurrentKernels().axpy(wide_.theta, -1, wide_.anchor, count);
    CurrentKernels().axpy(wide_.theta, 1, anchors_.anchor(layer), count);
  }
  return wide_.theta;
}

// Writes the anchor, rounded to the type of theta.
void Exchange::RoundAnchor(const WideShard& wide, int layer, float* to) const {
  const int64_t count = slab_.layer(layer).valid;
  if (live_.dtype == DType::kF32) {
    CopyArray(to, anchors_.anchor(layer), count * kFloat);
    return;
  }
  CurrentKernels().cast(wide.rounded, live_.dtype, anchors_.anchor(layer), DType::kF32, count);
  CurrentKernels().cast(to, DType::kF32, wide.rounded, live_.dtype, count);
}

// Gathers one record per replica: its standing, and the norms of all layers that train.
absl::StatusOr<NormTable> Exchange::ShareNorms(const std::vector<int>& layers, const Standing& mine,
                                               const std::vector<double>& norms, int64_t extra_ns) {
  constexpr size_t kHeader = sizeof(Standing) / sizeof(double);
  const size_t width = kHeader + norms.size();
  std::vector<uint64_t> record(width);
  std::memcpy(record.data(), &mine, sizeof(mine));
  std::memcpy(record.data() + kHeader, norms.data(), norms.size() * sizeof(double));
  std::vector<uint64_t> records = record;
  if (groups_.sync != nullptr) {
    records.resize(width * static_cast<size_t>(groups_.sync->size()));
    const CallOptions options = Options(slab_.layers(), extra_ns);
    WorkerThread::Doing("rendezvous: the standings of all replicas", options.timeout_ns);
    ENTRAIN_RETURN_IF_ERROR(groups_.sync->AllGather(
        record.data(), records.data(), static_cast<int64_t>(width), DType::kU64, options));
  }
  NormTable table;
  table.replicas = replicas_;
  table.layers = layers;
  for (size_t row = 0; row < records.size(); row += width) {
    std::memcpy(static_cast<void*>(&table.standings.emplace_back()), records.data() + row,
                sizeof(Standing));
    for (size_t i = kHeader; i < width; ++i) {
      table.norms.push_back(absl::bit_cast<double>(records[row + i]));
    }
  }
  const absl::Status same = CheckRounds(table.standings, table.replicas);
  return same.ok() ? absl::StatusOr<NormTable>(std::move(table)) : LeaveTogether(same);
}

bool Exchange::TakeUp(NormTable table) {
  table_ = std::move(table);
  if (!exchanges()) {
    return false;
  }
  const size_t me = table_.RowOf(me_);
  const bool brings = table_.standings[me].steps_since > 0;
  carried_late_ = brings ? 0 : carried_late_;
  for (size_t i = 0; i < table_.layers.size(); ++i) {
    const auto layer = static_cast<size_t>(table_.layers[i]);
    const std::vector<Candidate> brought = Weigh(table_, i, /*counts=*/true);
    const Candidate& own = brought[me];
    finite_[layer] = own.norm <= kLargestNorm ? 1 : 0;  // 0 for NaN
    guard_.SetDistrusted(table_.layers[i], false);
    newcomer_rounds_[layer] = std::min(newcomer_rounds_[layer] + brings, options_.newcomer_warmup);
    reports_[layer].accepted = own.absent || own.accepted();
    if (!detectors_.empty()) {
      if (!own.absent) {
        reports_[layer].score = detectors_[layer].Look(own.norm);
      }
      Learn(table_.layers[i], own);
    }
  }
  return true;
}

// Returns the number at kNewShift in this replica's standing. If this replica has counted in
// different numbers of exchanges for the layers, this is the smallest number.
uint64_t Exchange::Growing(const std::vector<int>& layers) const {
  int64_t least = options_.newcomer_warmup;
  for (const int layer : layers) {
    least = std::min(least, newcomer_rounds_[static_cast<size_t>(layer)]);
  }
  return least < options_.newcomer_warmup ? static_cast<uint64_t>(least) + 1 : 0;
}

// Weighs one layer of the table. With `counts`, changes the layer's report and totals too.
std::vector<Candidate> Exchange::Weigh(const NormTable& table, size_t index, bool counts) {
  const auto layer = static_cast<size_t>(table.layers[index]);
  const std::vector<double> trained = Trained(table.standings, options_.compat);
  std::vector<Candidate> brought;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double norm = table.norm(row, index);
    brought.push_back({.norm = std::abs(norm),
                       .rejected = std::signbit(norm),
                       .absent = table.standings[row].steps_since == 0,
                       .trained = trained[row],
                       .late = static_cast<int64_t>(table.standings[row].flags >> kLateShift),
                       .grown = Grown(table.standings[row], options_.newcomer_warmup)});
  }
  verdicts_[layer] = entrain::Weigh(WeighingOf(options_), brought);
  if (counts) {
    Report(table, index, brought);
  }
  return brought;
}

// Writes the verdict about the layer to its report.
void Exchange::Report(const NormTable& table, size_t index, const std::vector<Candidate>& brought) {
  const auto layer = static_cast<size_t>(table.layers[index]);
  LayerReport& report = reports_[layer];
  report.norms.assign(all_replicas_, 0);
  report.weights.assign(all_replicas_, 0);
  for (size_t row = 0; row < table.rows(); ++row) {
    const auto replica = static_cast<size_t>(table.replicas[row]);
    report.norms[replica] = brought[row].norm;
    report.weights[replica] = verdicts_[layer].weights[row];
  }
  counted_[layer] = verdicts_[layer];
  brought_[layer] += counted_[layer].brought;
  accepted_[layer] += counted_[layer].accepted;
  report.brought_ever = brought_[layer];
  report.accepted_ever = accepted_[layer];
  report.clip_factor = report.staleness = 1;
  report.rolled_back = false;
}

// Tells this replica's detector of the layer how the norm was judged.
void Exchange::Learn(int layer, const Candidate& own) {
  const auto at = static_cast<size_t>(layer);
  if (own.absent) {
    // There is no norm.
  } else if (own.accepted()) {
    detectors_[at].Accept(own.norm);
  } else {
    detectors_[at].Reject(own.norm);
  }
  // The count is the same on all replicas, whichever of them were absent.
  empty_rounds_[at] = verdicts_[at].accepted > 0 ? 0 : empty_rounds_[at] + 1;
  if (empty_rounds_[at] >= 2 && !options_.compat) {
    // All replicas were rejected twice in a row: the level of norms has changed.
    detectors_[at].Restart();
    empty_rounds_[at] = 0;
  }
}

// ---- One layer ---------------------------------------------------------------------------------

absl::Status Exchange::Begin(int layer) {
  const auto at = static_cast<size_t>(layer);
  const int64_t valid = slab_.layer(layer).valid;  // equal in the whole sync group
  if (verdicts_[at].accepted == 0 || valid == 0) {
    return absl::OkStatus();
  }
  WorkerThread::Doing(absl::StrCat("layer ", layer, ": this replica's delta"));
  Flight& flight = flights_[at];
  ENTRAIN_ASSIGN_OR_RETURN(flight.delta, deltas_.Take(valid));
  FillDelta(layer, flight.delta.data);
  if (room_ != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(WaitForKernels(room_->limit()));
  }
  ENTRAIN_ASSIGN_OR_RETURN(
      flight.work, reducer_->Begin(groups_.sync.get(), verdicts_[at].weights,
                                   absl::MakeSpan(flight.delta.data, static_cast<size_t>(valid)),
                                   OptionsOfDelta(layer)));
  return absl::OkStatus();
}

void Exchange::FillDelta(int layer, float* delta) const {
  const int64_t valid = slab_.layer(layer).valid;
  const std::vector<double>& weights = verdicts_[static_cast<size_t>(layer)].weights;
  const float factor = reducer_->Factor(groups_.sync.get(), weights);
  const int rank = groups_.sync == nullptr ? 0 : groups_.sync->rank();
  if (weights[static_cast<size_t>(rank)] == 0) {
    // Assigns zero, because a value that is not finite stays so when multiplied by zero.
    ZeroArray(delta, valid * kFloat);
  } else if (!anchors_.exist()) {
    CurrentKernels().scale_any(DType::kF32, delta, Source(layer), valid, factor);
  } else {
    CurrentKernels().weighted_delta(delta, anchors_.anchor(layer), Source(layer), factor, valid);
  }
}

absl::Status Exchange::Finish(int layer) {
  return FinishWith(layer, nullptr);
}

// `known`, if not null, is the outcome of another shard of the layer.
absl::Status Exchange::FinishWith(int layer, const LayerOutcome* known) {
  const auto at = static_cast<size_t>(layer);
  if (groups_.model != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(groups_.model->status());  // another rank of this replica gave up
  }
  if (verdicts_[at].accepted == 0) {
    KeepOldAnchor(layer);
    RollBack(layer);
  } else {
    Flight flight = std::move(flights_[at]);
    WorkerThread::Doing(absl::StrCat("layer ", layer, ": the sum of deltas"));
    ENTRAIN_RETURN_IF_ERROR(reducer_->Finish(flight.work));
    WorkerThread::Doing(absl::StrCat("layer ", layer, ": the step"));
    ENTRAIN_RETURN_IF_ERROR(Combine(layer, flight.delta.data, known));
    deltas_.Give(std::move(flight.delta));
  }
  outcomes_[at].rolled_back = reports_[at].rolled_back ? 1 : 0;
  outcomes_[at].outer_steps = outer_.steps(layer);
  ENTRAIN_RETURN_IF_ERROR(CheckDevice());
  if (options_.is_debug && (groups_.model == nullptr || groups_.model->rank() == 0)) {
    LogDecision(layer, table_.standings[0].round + 1, me_, reports_[at]);
  }
  return absl::OkStatus();
}

// Ranks whose shard of the layer is all padding take part too, because the others wait for them.
absl::Status Exchange::Combine(int layer, float* mean, const LayerOutcome* known) {
  const SlabLayer& l = slab_.layer(layer);
  OuterScales scales;
  bool finite = known == nullptr || known->rolled_back == 0;
  if (known != nullptr) {
    scales = known->scales;
  } else if (options_.scales_outer()) {
    ENTRAIN_ASSIGN_OR_RETURN(const std::vector<double> squares, OuterSquares(layer, mean));
    finite = std::isfinite(squares[0]);
    scales = finite ? ScaleOuterStep(options_, squares, gaps_.Gap(layer)) : scales;
  }
  KeepOldAnchor(layer);
  if (!finite) {
    RollBack(layer);
    return absl::OkStatus();
  }
  NoteScales(layer, scales);
  if (!anchors_.exist()) {
    live_.Write(layer, mean, l.valid);
  } else if (options_.compat && options_.skip_anomaly && Vanishes(mean, l.valid, room_)) {
    RollBack(layer);
  } else {
    return StepOuter(layer, mean, scales);
  }
  return absl::OkStatus();
}

// Overwrites `mean`.
absl::Status Exchange::StepOuter(int layer, float* mean, const OuterScales& scales) {
  const int64_t count = slab_.layer(layer).valid;
  if (options_.keeps_means()) {
    CopyArray(MeanOf(layer), mean, count * kFloat);
  }
  // In an exchange behind further steps the published result is not needed. A result that must be
  // rounded is written later. In both cases the outer step writes its result over the mean.
  const bool straight = !overlapped(layer) && live_.f32(layer) != nullptr;
  ENTRAIN_RETURN_IF_ERROR(
      outer_.Step(layer, mean, scales, &anchors_, straight ? live_.f32(layer) : mean));
  if (!straight && !overlapped(layer)) {
    live_.Write(layer, mean, count);
  }
  return absl::OkStatus();
}

float* Exchange::MeanOf(int layer) const {
  return reinterpret_cast<float*>(means_.data()) + slab_.layer(layer).offset;
}

// Returns, for the whole layer and with the same bits on all ranks, ||mean||² and, if the outer
// step needs them, ||b||² and ||b - mean||².
absl::StatusOr<std::vector<double>> Exchange::OuterSquares(int layer, const float* mean) const {
  const int64_t count = slab_.layer(layer).valid;
  const Kernels& kernels = CurrentKernels();
  std::vector<double> squares = {sums_.Share(layer, kernels.sum_of_squares(mean, count))};
  if ((options_.staleness_penalty || options_.outer_momentum_clip > 0) && outer_.arrays() > 0) {
    const float* const momentum = anchors_.outer(0, layer);
    squares.push_back(sums_.Share(layer, kernels.sum_of_squares(momentum, count)));
    squares.push_back(sums_.Share(layer, kernels.square_of_delta(momentum, mean, count)));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckDevice());
  const size_t width = squares.size();
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<double> all, sums_.Gather(layer, squares));
  for (size_t i = 0; i < width; ++i) {
    squares[i] = ReplicaSums::SumOfColumn(all, width, i);
  }
  return squares;
}

void Exchange::NoteScales(int layer, const OuterScales& scales) {
  const auto at = static_cast<size_t>(layer);
  outcomes_[at].scales = scales;
  reports_[at].clip_factor = scales.clip;
  reports_[at].staleness = scales.staleness;
  if (options_.staleness_penalty) {
    gaps_.Moved(layer, scales.length);
  }
}

// With kRestart, this replica has continued from the old anchor. Merge needs that anchor to measure
// how far the replica has moved. The old anchor overwrites the snapshot, which has been sent by
// now.
void Exchange::KeepOldAnchor(int layer) {
  if (overlapped(layer) && options_.overlap_merge == OverlapMerge::kRestart) {
    RoundAnchor(wide_, layer, Taken(layer));
  }
}

// Used for a layer to which no replica brought a usable delta. Sets theta back to the anchor, and
// leaves the anchor and the outer state unchanged. Plain averaging has no anchor to go back to.
void Exchange::RollBack(int layer) {
  reports_[static_cast<size_t>(layer)].rolled_back = true;
  if (anchors_.exist() && !overlapped(layer)) {
    live_.Write(layer, anchors_.anchor(layer), slab_.layer(layer).valid);
  }
}

}  // namespace entrain
