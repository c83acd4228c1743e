#include "lib/train/exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/train/timed_call.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);
// Norms are taken in pieces that stay in the cache.
constexpr int64_t kPiece = 8192;

Weighting WeightingOf(const EditOptions& options) {
  if (options.pseudo_gradnorm_reduce) {
    return Weighting::kSoftmax;
  }
  return options.normalize ? Weighting::kUniform : Weighting::kSum;
}

}  // namespace

Exchange::Exchange(const Slab& slab, float* params, const EditOptions& options, Groups groups)
    : slab_(slab),
      params_(params),
      options_(options),
      groups_(std::move(groups)),
      me_(groups_.sync == nullptr ? 0 : groups_.sync->rank()),
      anchors_(slab),
      pool_(2 * slab.largest_padded() / slab.slots() * kFloat),
      verdicts_(static_cast<size_t>(slab.layers())),
      reports_(static_cast<size_t>(slab.layers())),
      flights_(static_cast<size_t>(slab.layers())) {}

Exchange::~Exchange() {
  for (Flight& flight : flights_) {
    if (flight.work && !flight.work->done()) {
      groups_.sync->Abort("destroyed during an exchange");
      flight.work->Wait(Deadline::Never());  // the call writes to the flight's buffer
    }
  }
}

CallOptions Exchange::Options(int64_t tag) const {
  return TimedCall(options_.timeout_ns, tag, true);
}

absl::Status Exchange::CreateAnchors() {
  return anchors_.Create(params_, options_.has_momentum());
}

// ---- Judge -------------------------------------------------------------------------------------

absl::Status Exchange::Judge(uint64_t round) {
  std::vector<double> norms;
  for (const int l : slab_.training()) {
    norms.push_back(SquareOfShard(l));
  }
  ENTRAIN_RETURN_IF_ERROR(SumOverModel(slab_.layers(), &norms));
  for (double& norm : norms) {
    // The norm of the whole layer, the same bits on all ranks of the replica. A judge of anomalies
    // has its say here: for a norm that it rejects it writes infinity.
    norm = std::sqrt(norm);
  }
  ENTRAIN_RETURN_IF_ERROR(ShareNorms(round, norms));
  for (const int layer : slab_.training()) {
    const auto l = static_cast<size_t>(layer);
    verdicts_[l] = Weigh(WeightingOf(options_), options_.temperature(), reports_[l].norms);
    reports_[l].weights = verdicts_[l].weights;
    reports_[l].clip_factor = 1;
  }
  return absl::OkStatus();
}

// The sum of squares of Delta = a - theta over this rank's shard; in plain averaging, which has no
// anchor, of theta, to see whether it is finite.
double Exchange::SquareOfShard(int layer) const {
  const SlabLayer& l = slab_.layer(layer);
  if (!anchors_.exist()) {
    return kernels_.sum_of_squares(Live(layer), l.valid);
  }
  float delta[kPiece];
  const float* const anchor = anchors_.anchor(layer);
  double sum = 0;
  for (int64_t i = 0; i < l.valid; i += kPiece) {
    sum +=
        kernels_.delta_and_norm(delta, anchor + i, Live(layer) + i, std::min(kPiece, l.valid - i));
  }
  return sum;
}

// Each value becomes its sum over the replica's ranks, added in rank order in double, so that all
// of them, and whoever holds the same shards elsewhere, have the same bits. What several ranks hold
// copies of counts once.
absl::Status Exchange::SumOverModel(int64_t tag, std::vector<double>* values) const {
  if (groups_.model == nullptr) {
    return absl::OkStatus();
  }
  const size_t count = values->size();
  std::vector<double> all(count * static_cast<size_t>(groups_.model->size()));
  ENTRAIN_RETURN_IF_ERROR(groups_.model->AllGather(
      values->data(), all.data(), static_cast<int64_t>(count), DType::kF64, Options(tag)));
  std::fill(values->begin(), values->end(), 0.0);
  for (size_t i = 0; i < all.size(); ++i) {
    (*values)[i % count] += all[i] / groups_.copies;
  }
  return absl::OkStatus();
}

// One record a replica: the round, the anchors' checksum, the norms of all layers that train.
absl::Status Exchange::ShareNorms(uint64_t round, const std::vector<double>& mine) {
  constexpr size_t kHeader = 2;
  const size_t layers = mine.size();
  const size_t width = kHeader + layers;
  std::vector<uint64_t> record = {round, anchors_.checksum()};
  for (const double norm : mine) {
    record.push_back(absl::bit_cast<uint64_t>(norm));
  }
  std::vector<uint64_t> records = record;
  if (groups_.sync != nullptr) {
    records.resize(width * static_cast<size_t>(groups_.sync->size()));
    ENTRAIN_RETURN_IF_ERROR(groups_.sync->AllGather(record.data(), records.data(),
                                                    static_cast<int64_t>(width), DType::kU64,
                                                    Options(slab_.layers())));
  }
  const absl::Status same = Compare(records, width);
  if (!same.ok()) {
    // All of the group see the same table. They leave together, so that each has this error and not
    // another's abort.
    groups_.sync->Barrier(Options(slab_.layers())).IgnoreError();
    return same;
  }
  for (size_t i = 0; i < layers; ++i) {
    LayerReport& report = reports_[static_cast<size_t>(slab_.training()[i])];
    report.norms.clear();
    for (size_t at = kHeader + i; at < records.size(); at += width) {
      report.norms.push_back(absl::bit_cast<double>(records[at]));
    }
  }
  return absl::OkStatus();
}

absl::Status Exchange::Compare(const std::vector<uint64_t>& records, size_t width) const {
  for (size_t n = 1; n * width < records.size(); ++n) {
    const uint64_t* const first = records.data();
    const uint64_t* const other = records.data() + n * width;
    if (other[0] != first[0]) {
      return absl::DataLossError(absl::StrCat("replica 0 is at its exchange ", first[0] + 1,
                                              ", replica ", n, " at its exchange ", other[0] + 1));
    }
    if (other[1] != first[1]) {
      return absl::DataLossError(
          absl::StrFormat("anchors differ: checksum %016x on replica 0, %016x on replica %d",
                          first[1], other[1], n));
    }
  }
  return absl::OkStatus();
}

// ---- One layer ---------------------------------------------------------------------------------

absl::Status Exchange::Begin(int layer) {
  const auto at = static_cast<size_t>(layer);
  const int64_t valid = slab_.layer(layer).valid;  // the same in all of the sync group
  if (verdicts_[at].accepted == 0 || valid == 0) {
    return absl::OkStatus();
  }
  Flight& flight = flights_[at];
  ENTRAIN_ASSIGN_OR_RETURN(flight.buffer, pool_.Take(valid * kFloat));
  auto* const delta = reinterpret_cast<float*>(flight.buffer.data());
  FillDelta(layer, delta);
  ENTRAIN_ASSIGN_OR_RETURN(
      flight.work,
      reducer_->Begin(groups_.sync.get(), verdicts_[at].weights,
                      absl::MakeSpan(delta, static_cast<size_t>(valid)), Options(layer)));
  return absl::OkStatus();
}

void Exchange::FillDelta(int layer, float* delta) const {
  const SlabLayer& l = slab_.layer(layer);
  const auto bytes = static_cast<size_t>(l.valid * kFloat);
  if (verdicts_[static_cast<size_t>(layer)].weights[static_cast<size_t>(me_)] == 0) {
    std::memset(delta, 0, bytes);  // assigned: what is not finite stays so when multiplied by zero
  } else if (!anchors_.exist()) {
    std::memcpy(delta, Live(layer), bytes);
  } else {
    kernels_.delta_and_norm(delta, anchors_.anchor(layer), Live(layer), l.valid);
  }
}

absl::Status Exchange::Finish(int layer) {
  const auto at = static_cast<size_t>(layer);
  if (groups_.model != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(groups_.model->status());  // somebody of this replica gave up
  }
  if (verdicts_[at].accepted == 0) {
    RollBack(layer);
    return absl::OkStatus();
  }
  Flight flight = std::move(flights_[at]);
  ENTRAIN_RETURN_IF_ERROR(reducer_->Finish(flight.work));
  ENTRAIN_RETURN_IF_ERROR(Combine(layer, reinterpret_cast<float*>(flight.buffer.data())));
  pool_.Give(std::move(flight.buffer));
  return absl::OkStatus();
}

// Ranks whose shard of the layer is all padding take part for the others' sake.
absl::Status Exchange::Combine(int layer, float* mean) {
  const SlabLayer& l = slab_.layer(layer);
  double beta = 1;
  if (options_.clip_pseudo_grad > 0) {
    std::vector<double> square = {kernels_.sum_of_squares(mean, l.valid)};
    ENTRAIN_RETURN_IF_ERROR(SumOverModel(layer, &square));
    const double norm = std::sqrt(square[0]);
    if (!std::isfinite(norm)) {
      RollBack(layer);
      return absl::OkStatus();
    }
    beta = ClipFactor(norm, options_.clip_pseudo_grad);
    reports_[static_cast<size_t>(layer)].clip_factor = beta;
  }
  if (anchors_.exist()) {
    OuterStep(layer, mean, beta);
    anchors_.Seal(layer);
  } else if (l.valid > 0) {
    std::memcpy(Live(layer), mean, static_cast<size_t>(l.valid * kFloat));
  }
  return absl::OkStatus();
}

void Exchange::OuterStep(int layer, float* mean, double beta) {
  const SlabLayer& l = slab_.layer(layer);
  float* const anchor = anchors_.anchor(layer);
  auto factor = static_cast<float>(beta);
  SgdArgs args{};
  args.lr = 1;
  if (options_.outer_optimizer == OuterKind::kSgd) {
    args.lr = options_.outer_lr;
    args.momentum = options_.outer_momentum;
    args.nesterov = options_.outer_nesterov;
    if (options_.outer_weight_decay > 0) {
      kernels_.scale_any(DType::kF32, mean, mean, l.valid, factor);
      kernels_.axpy(mean, static_cast<float>(options_.outer_weight_decay), anchor, l.valid);
      factor = 1;
    }
  }
  // b is zero before the first step, which makes b ← mu b + g the first step's b ← g.
  kernels_.outer_step(args, factor, anchor, anchors_.momentum(layer), Live(layer), mean, l.valid);
}

// Nobody brought anything usable: back to where all agreed, a and b untouched. Plain averaging has
// nothing to go back to.
void Exchange::RollBack(int layer) {
  const SlabLayer& l = slab_.layer(layer);
  if (anchors_.exist() && l.valid > 0) {
    std::memcpy(Live(layer), anchors_.anchor(layer), static_cast<size_t>(l.valid * kFloat));
  }
}

}  // namespace entrain
