#include "lib/train/edit/exchange.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/memory/buffer.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int kInFlight = 2;

std::unique_ptr<DeltaReducer> ReducerOf(const EditOptions& options) {
  const Merging merging = options.merging();
  if (options.reducer == ReducerKind::kGta || merging.Packs()) {
    return std::make_unique<GtaReducer>(merging);  // gta without consensus is the linear reducer
  }
  return std::make_unique<LinearReducer>();
}

// Visits the reducer's residuals (option error_feedback): the parts of earlier deltas that it has
// not sent. Only exact checkpoints contain residuals. A run that continues from a portable
// checkpoint begins without residuals.
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

// Returns true if the mean is practically zero. By this test, the published code finds out whether
// all replicas were rejected. Each rank tests its own shard.
bool Vanishes(const float* mean, int64_t count) {
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
                   ExchangeGroups groups)
    : slab_(slab),
      live_(live),
      options_(options),
      members_(std::move(groups), options.timeout_ns),
      sums_(slab, members_.now(), options.timeout_ns),
      reducer_(ReducerOf(options)),
      anchors_(slab),
      outer_(slab, options),
      gaps_(slab.layers()),
      state_(slab, options_, members_, &anchors_),
      theta_(slab, live, anchors_),
      snapshots_(slab, live, options_, anchors_, &theta_),
      verdicts_(slab, options_),
      rendezvous_({slab, options_, members_, sums_, anchors_, snapshots_, theta_, verdicts_, state_,
                   outer_, gaps_}),
      deltas_(2 * DeltaBytesOf(slab.largest().shard)),
      outcomes_(static_cast<size_t>(slab.layers())),
      flights_(static_cast<size_t>(slab.layers())) {}

Exchange::~Exchange() {
  for (Flight& flight : flights_) {
    if (flight.work && !flight.work->done()) {
      members_.sync()->Abort("destroyed during an exchange");
      flight.work->Wait(Deadline::Never());  // the call writes to the flight's buffer
    }
  }
}

absl::Status Exchange::Reserve() {
  ENTRAIN_RETURN_IF_ERROR(theta_.Reserve());
  ENTRAIN_RETURN_IF_ERROR(snapshots_.ReserveMerge());
  return state_.Reserve();
}

CallOptions Exchange::OptionsOfDelta(int layer) const {
  CallOptions options = members_.Options(layer);
  if (members_.now().copies > 1 || (members_.now().tensor > 1 && slab_.layer(layer).replicated)) {
    // Copies must stay equal, so all sync groups must get the same bits, even if they use different
    // algorithms.
    options.determinism = Determinism::kRankOrder;
  }
  return options;
}

absl::Status Exchange::CreateAnchors() {
  return anchors_.Create(live_, outer_.arrays());
}

void Exchange::SealAnchors() {
  if (anchors_.exist()) {
    anchors_.SealAll();
  }
}

void Exchange::VisitState(StateVisitor& visitor) {
  anchors_.VisitState(visitor);
  outer_.VisitState(visitor);
  if (options_.staleness_penalty) {
    gaps_.VisitState(visitor);
  }
  verdicts_.VisitDetectors(visitor);
  snapshots_.VisitState(visitor);
  verdicts_.VisitCounts(visitor);
  VisitReducer(reducer_->state(), options_.error_feedback, slab_, visitor);
}

void Exchange::Adopt(bool live) {
  snapshots_.ForgetLate();  // the late rounds belong to another run
  verdicts_.Adopt(/*portable=*/live);
  rendezvous_.TrustAll();
  if (!anchors_.exist()) {
    return;
  }
  for (const int layer : slab_.training()) {
    anchors_.Seal(layer);
    if (live) {
      live_.Write(layer, anchors_.anchor(layer), slab_.layer(layer).valid);
    }
  }
}

absl::StatusOr<bool> Exchange::Judge(const std::vector<int>& layers, Standing mine,
                                     int64_t extra_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(NormTable table, rendezvous_.Run(layers, mine, extra_ns));
  return TakeUp(std::move(table));
}

bool Exchange::TakeUp(NormTable table) {
  rendezvous_.Keep(std::move(table));
  const NormTable& kept = rendezvous_.table();
  const size_t row = kept.RowOf(members_.me());
  const bool takes_part = kept.standings[row].steps_since > 0;
  if (options_.decoupled() && !takes_part && members_.sync() != nullptr) {
    snapshots_.LeaveOut(kept.layers);
  }
  if (!rendezvous_.exchanges()) {
    return false;
  }
  if (takes_part) {
    snapshots_.ForgetLate();
  }
  for (size_t i = 0; i < kept.layers.size(); ++i) {
    snapshots_.SetFinite(kept.layers[i],
                         std::abs(kept.norm(row, i)) <= kLargestNorm);  // false for NaN
  }
  verdicts_.Judge(kept, members_.me(), members_.most());
  return true;
}

void Exchange::WeighAgain(int layer, bool counts) {
  verdicts_.JudgeAgain(rendezvous_.table().Of(members_.replicas()), layer, members_.most(), counts);
}

// Two deltas keep a near link busy; more would only delay the first layer.
ExchangeRound::InFlight Exchange::in_flight() const {
  const std::shared_ptr<Communicator> sync = members_.groups().sync;
  const bool sites = sync != nullptr && sync->spans_sites();
  return {.layers = kInFlight,
          .bytes = sites ? options_.in_flight_bytes : 0,
          .ahead = sites && options_.prefetch > 0};
}

// ---- One layer ---------------------------------------------------------------------------------

absl::Status Exchange::Begin(int layer) {
  const auto at = static_cast<size_t>(layer);
  const int64_t valid = slab_.layer(layer).valid;  // equal in the whole sync group
  if (verdicts_.of(layer).accepted == 0 || valid == 0) {
    return absl::OkStatus();
  }
  Worker::Doing(absl::StrCat("layer ", layer, ": this replica's delta"));
  Flight& flight = flights_[at];
  ENTRAIN_ASSIGN_OR_RETURN(flight.delta, deltas_.Take(DeltaBytesOf(valid)));
  FillDelta(layer, flight.values());
  ENTRAIN_ASSIGN_OR_RETURN(
      flight.work, reducer_->Begin(members_.sync(), verdicts_.of(layer).weights,
                                   absl::MakeSpan(flight.values(), static_cast<size_t>(valid)),
                                   OptionsOfDelta(layer)));
  return absl::OkStatus();
}

void Exchange::FillDelta(int layer, float* delta) {
  const int64_t valid = slab_.layer(layer).valid;
  const std::vector<double>& weights = verdicts_.of(layer).weights;
  const float factor = reducer_->Factor(members_.sync(), weights);
  const int rank = members_.sync() == nullptr ? 0 : members_.sync()->rank();
  if (weights[static_cast<size_t>(rank)] == 0) {
    // Assigns zero, because a value that is not finite stays so when multiplied by zero.
    ZeroShared(delta, valid * kFloat);
  } else if (!anchors_.exist()) {
    SharedKernels().scale_any(DType::kF32, delta, theta_.Source(layer, snapshots_.of(layer)), valid,
                              factor);
  } else {
    SharedKernels().weighted_delta(delta, anchors_.anchor(layer),
                                   theta_.Source(layer, snapshots_.of(layer)), factor, valid);
  }
}

absl::Status Exchange::Finish(int layer) {
  return FinishWith(layer, nullptr);
}

// If `known` is not null, it is the outcome of another shard of the layer.
absl::Status Exchange::FinishWith(int layer, const LayerOutcome* known) {
  const auto at = static_cast<size_t>(layer);
  if (members_.model() != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(members_.model()->status());  // another rank of this replica gave up
  }
  if (verdicts_.of(layer).accepted == 0) {
    snapshots_.KeepOldAnchor(layer);
    RollBack(layer);
  } else {
    Flight flight = std::move(flights_[at]);
    Worker::Doing(absl::StrCat("layer ", layer, ": the sum of deltas"));
    ENTRAIN_RETURN_IF_ERROR(reducer_->Finish(flight.work));
    Worker::Doing(absl::StrCat("layer ", layer, ": the step"));
    ENTRAIN_RETURN_IF_ERROR(Combine(layer, flight.values(), known));
    deltas_.Give(std::move(flight.delta));
  }
  outcomes_[at].rolled_back = verdicts_.report(layer).rolled_back ? 1 : 0;
  outcomes_[at].outer_steps = outer_.steps(layer);
  if (options_.is_debug && (members_.model() == nullptr || members_.model()->rank() == 0)) {
    LogDecision(layer, rendezvous_.table().standings[0].round + 1, members_.me(),
                verdicts_.report(layer));
  }
  return absl::OkStatus();
}

// A rank takes part even if its shard of the layer is all padding, because the other ranks wait for
// it.
absl::Status Exchange::Combine(int layer, float* mean, const LayerOutcome* known) {
  const SlabLayer& l = slab_.layer(layer);
  ENTRAIN_ASSIGN_OR_RETURN(const OuterRates rates, outer_.NextRates(layer));
  OuterScales scales;
  bool finite = known == nullptr || known->rolled_back == 0;
  if (known != nullptr) {
    scales = known->scales;
  } else if (options_.scales_outer()) {
    ENTRAIN_ASSIGN_OR_RETURN(const std::vector<double> squares, OuterSquares(layer, mean));
    finite = std::isfinite(squares[0]);
    scales = finite ? ScaleOuterStep(options_, rates, squares, gaps_.Gap(layer)) : scales;
  }
  snapshots_.KeepOldAnchor(layer);
  if (!finite) {
    RollBack(layer);
    return absl::OkStatus();
  }
  NoteScales(layer, scales);
  if (!anchors_.exist()) {
    live_.Write(layer, mean, l.valid);
  } else if (options_.compat && options_.skip_anomaly && Vanishes(mean, l.valid)) {
    RollBack(layer);
  } else {
    return StepOuter(layer, mean, rates, scales);
  }
  return absl::OkStatus();
}

// Overwrites `mean`.
absl::Status Exchange::StepOuter(int layer, float* mean, const OuterRates& rates,
                                 const OuterScales& scales) {
  const int64_t count = slab_.layer(layer).valid;
  state_.KeepMean(layer, mean);
  // If theta is f32 and no snapshot is in use, the outer step writes the new parameters directly to
  // theta. Otherwise it writes them over `mean`. Without a snapshot, they are then converted and
  // written to theta below. With a snapshot, theta does not change here.
  const bool straight = !snapshots_.in_use(layer) && live_.f32(layer) != nullptr;
  ENTRAIN_RETURN_IF_ERROR(
      outer_.Step(layer, mean, rates, scales, &anchors_, straight ? live_.f32(layer) : mean));
  if (!straight && !snapshots_.in_use(layer)) {
    live_.Write(layer, mean, count);
  }
  return absl::OkStatus();
}

// Returns ||mean||² of the whole layer. If the outer step needs them, also returns ||b||² and ||b -
// mean||², where b is the momentum. All ranks get the same bits.
absl::StatusOr<std::vector<double>> Exchange::OuterSquares(int layer, const float* mean) const {
  const int64_t count = slab_.layer(layer).valid;
  const Kernels& kernels = SharedKernels();
  std::vector<double> squares = {sums_.Share(layer, kernels.sum_of_squares(mean, count))};
  if ((options_.staleness_penalty || options_.outer_momentum_clip > 0) && outer_.arrays() > 0) {
    const float* const momentum = anchors_.outer(0, layer);
    squares.push_back(sums_.Share(layer, kernels.sum_of_squares(momentum, count)));
    squares.push_back(sums_.Share(layer, kernels.square_of_delta(momentum, mean, count)));
  }
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
  verdicts_.report(layer).clip_factor = scales.clip;
  verdicts_.report(layer).staleness = scales.staleness;
  if (options_.staleness_penalty) {
    gaps_.Moved(layer, scales.length);
  }
}

// Used for a layer that has no usable mean delta. Sets theta back to the anchor, and does not
// change the anchor and the outer state. In plain averaging there is no anchor, so theta stays as
// it is.
void Exchange::RollBack(int layer) {
  verdicts_.report(layer).rolled_back = true;
  if (anchors_.exist() && !snapshots_.in_use(layer)) {
    live_.Write(layer, anchors_.anchor(layer), slab_.layer(layer).valid);
  }
}

// ---- After a loss ------------------------------------------------------------------------------

// Waits for all calls for deltas under way, and drops the deltas. The communicators must have
// ended, so that the calls end soon.
void Exchange::DropFlights() {
  for (Flight& flight : flights_) {
    if (flight.work) {
      flight.work->Wait(Deadline::Never());
    }
    deltas_.Give(std::move(flight.delta));
    flight = Flight();
  }
}

void Exchange::Regroup(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
                       const std::vector<int>& replicas) {
  DropFlights();
  members_.Replace(std::move(model), std::move(sync), replicas);
}

absl::Status Exchange::FinishLike(int layer, const LayerOutcome& outcome) {
  if (outcome.rolled_back != 0) {
    verdicts_.RejectAll(layer);
  }
  ENTRAIN_RETURN_IF_ERROR(Begin(layer));
  return FinishWith(layer, &outcome);
}

// Receives the result into separate memory first. If the sender is lost too, the layer may have to
// be finished from the old anchor.
absl::Status Exchange::Share(int layer, int root, bool finished, const LayerOutcome& outcome) {
  if (outcome.rolled_back != 0) {
    if (!finished) {
      verdicts_.RejectAll(layer);
      return FinishWith(layer, nullptr);
    }
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(const OwnedBuffer received, state_.Broadcast(layer, root));
  if (finished) {
    return absl::OkStatus();
  }
  snapshots_.KeepOldAnchor(layer);
  NoteScales(layer, outcome.scales);
  outcomes_[static_cast<size_t>(layer)] = outcome;
  if (options_.keeps_means()) {
    outer_.SetSteps(layer, outcome.outer_steps - 1);
    return StepOuter(layer, reinterpret_cast<float*>(received.data()), {}, outcome.scales);
  }
  state_.Take(layer, received);
  outer_.SetSteps(layer, outcome.outer_steps);
  if (!snapshots_.in_use(layer)) {
    live_.Write(layer, anchors_.anchor(layer), slab_.layer(layer).valid);
  }
  return absl::OkStatus();
}

}  // namespace entrain
