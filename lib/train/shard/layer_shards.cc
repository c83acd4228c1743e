#include "lib/train/shard/layer_shards.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/agree.h"
#include "lib/kernels/kernels.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {

void ReductionStages::BeginStep() {
  std::fill(stages_.begin(), stages_.end(), Stage::kNone);
}

void ReductionStages::Finished() {
  std::replace(stages_.begin(), stages_.end(), Stage::kReduced, Stage::kFinished);
}

absl::Status ReductionStages::CheckReduced() const {
  std::vector<int> missing, unfinished;
  size_t untouched = 0;
  for (const int layer : training_) {
    const Stage stage = stages_[static_cast<size_t>(layer)];
    untouched += stage == Stage::kNone ? 1 : 0;
    if (stage == Stage::kReduced) {
      unfinished.push_back(layer);
    } else if (stage != Stage::kFinished) {
      missing.push_back(layer);
    }
  }
  const auto named = [](const std::vector<int>& layers) {
    return absl::StrCat(layers.size() == 1 ? "layer " : "layers ", absl::StrJoin(layers, ", "));
  };
  if (untouched == training_.size() || (missing.empty() && unfinished.empty())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      missing.empty()
          ? absl::StrCat("nobody has waited for the gradients of ", named(unfinished),
                         ": call finish_gradients before the optimizer")
          : absl::StrCat("the gradients of ", named(missing),
                         " were not reduced in this step, in which gradients were handed out"));
}
namespace {

constexpr int64_t kMostLayers = (1 << 20) - 2;  // the number of a layer is a user tag

absl::Status CheckDType(absl::string_view name, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ",
        IsValid(dtype) ? std::string(NameOf(dtype)) : absl::StrCat(static_cast<int32_t>(dtype)),
        " is neither f32 nor bf16"));
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(const ShardConfig& config) {
  ENTRAIN_RETURN_IF_ERROR(CheckDType("param_dtype", config.param_dtype));
  ENTRAIN_RETURN_IF_ERROR(CheckDType("grad_dtype", config.grad_dtype));
  if (config.prefetch < 0) {
    return absl::InvalidArgumentError(absl::StrCat("prefetch: ", config.prefetch, " is negative"));
  }
  if (config.timeout_ns < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout_ns: ", config.timeout_ns, " is negative"));
  }
  if (static_cast<int64_t>(config.layer_counts.size()) > kMostLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers: ", config.layer_counts.size(), " is more than ", kMostLayers));
  }
  if (!config.layer_segments.empty() &&
      config.layer_segments.size() != config.layer_counts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("layer_segments: ", config.layer_segments.size(),
                                                   " entries for ", config.layer_counts.size(),
                                                   " layers"));
  }
  for (const auto& [name, flags] : {std::pair("layer_frozen", &config.layer_frozen),
                                    std::pair("layer_replicated", &config.layer_replicated)}) {
    if (!flags->empty() && flags->size() != config.layer_counts.size()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", flags->size(), " entries for ",
                                                     config.layer_counts.size(), " layers"));
    }
  }
  return absl::OkStatus();
}

uint64_t BytesSent(const std::shared_ptr<Communicator>& comm) {
  return comm == nullptr ? 0 : comm->stats().bytes_sent;
}

absl::StatusOr<ShardComms> MakeComms(const Mesh& mesh) {
  ShardComms comms;
  const auto own = [](const std::shared_ptr<Communicator>& comm) {
    return comm->Split(0, comm->rank());
  };
  if (mesh.length(Axis::kShard) > 1) {
    ENTRAIN_ASSIGN_OR_RETURN(comms.gather, own(mesh.comm(Axis::kShard)));
    ENTRAIN_ASSIGN_OR_RETURN(comms.scatter, own(mesh.comm(Axis::kShard)));
  }
  if (mesh.length(Axis::kContext) > 1) {
    ENTRAIN_ASSIGN_OR_RETURN(comms.context, own(mesh.comm(Axis::kContext)));
  }
  if (mesh.length(Axis::kSync) > 1) {
    ENTRAIN_ASSIGN_OR_RETURN(comms.sync, own(mesh.comm(Axis::kSync)));
  }
  if (mesh.length(Axis::kModel) > 1) {
    ENTRAIN_ASSIGN_OR_RETURN(comms.norms, own(mesh.comm(Axis::kModel)));
  }
  return comms;
}

absl::Status Agree(const Mesh& mesh, const ShardConfig& config, const ShardComms& comms) {
  double segments = 0;
  for (const auto& layer : config.layer_segments) {
    segments += static_cast<double>(layer.size());
  }
  // The number of layers is compared first, because the length of the second list depends on it.
  const std::vector<NamedValue> shape = {
      {"layers", static_cast<double>(config.layer_counts.size())},
      {"param_dtype", static_cast<double>(config.param_dtype)},
      {"grad_dtype", static_cast<double>(config.grad_dtype)},
      {"shard groups' size", static_cast<double>(mesh.length(Axis::kShard))},
      {"segments", segments}};
  std::vector<NamedValue> counts;
  for (size_t l = 0; l < config.layer_counts.size(); ++l) {
    counts.push_back(
        {absl::StrCat("layer_counts[", l, "]"), static_cast<double>(config.layer_counts[l])});
    counts.push_back({absl::StrCat("layer_frozen[", l, "]"),
                      config.layer_frozen.empty() ? 0.0 : config.layer_frozen[l]});
    counts.push_back({absl::StrCat("layer_replicated[", l, "]"),
                      config.layer_replicated.empty() ? 0.0 : config.layer_replicated[l]});
  }
  for (size_t l = 0; l < config.layer_segments.size(); ++l) {
    for (const auto& [count, rows] : config.layer_segments[l]) {
      counts.push_back(
          {absl::StrCat("elements of a segment of layer ", l), static_cast<double>(count)});
      counts.push_back({absl::StrCat("its rows, layer ", l), static_cast<double>(rows)});
    }
  }
  for (const auto& values : {shape, counts}) {
    if (comms.scatter != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(*comms.scatter, "the shard group", values));
    }
    if (comms.context != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(*comms.context, "the context group", values));
    }
    if (comms.sync != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(*comms.sync, "the sync group", values));
    }
  }
  return absl::OkStatus();
}

// Copies this rank's part of the whole layer `full` to `shard`. Sets padding to zero.
void CutOut(const SlabLayer& layer, const void* full, DType from, DType to, std::byte* shard) {
  const int64_t element = SizeOf(to);
  int64_t done = 0;
  for (const SlabPiece& piece : layer.pieces) {
    ZeroShared(shard + done * element, (piece.at - done) * element);
    const auto* const own = static_cast<const std::byte*>(full) + piece.first * SizeOf(from);
    SharedKernels().cast(shard + piece.at * element, to, own, from, piece.count);
    done = piece.at + piece.count;
  }
  ZeroShared(shard + done * element, (layer.shard - done) * element);
}

// Returns the sum of squares, in f32, of a shard's elements without padding.
double SquareOf(const SlabLayer& layer, const std::byte* grads_of_layer, DType from) {
  constexpr int64_t kBlock = 4096;
  const Kernels& kernels = SharedKernels();
  double square = 0;
  for (const SlabPiece& piece : layer.pieces) {
    const std::byte* const grads = grads_of_layer + piece.at * SizeOf(from);
    if (from == DType::kF32) {
      square += kernels.sum_of_squares(reinterpret_cast<const float*>(grads), piece.count);
      continue;
    }
    float floats[kBlock];
    for (int64_t at = 0; at < piece.count; at += kBlock) {
      const int64_t count = std::min(kBlock, piece.count - at);
      kernels.cast(floats, DType::kF32, grads + at * SizeOf(from), from, count);
      square += kernels.sum_of_squares(floats, count);
    }
  }
  return square;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerShards>> LayerShards::Create(std::shared_ptr<Mesh> mesh,
                                                                 const ShardConfig& config) {
  const auto create = [&]() -> absl::StatusOr<std::unique_ptr<LayerShards>> {
    ENTRAIN_RETURN_IF_ERROR(CheckConfig(config));
    ENTRAIN_ASSIGN_OR_RETURN(
        Slab slab,
        Slab::Make(config.layer_counts, mesh->length(Axis::kShard), mesh->coordinate(Axis::kShard),
                   config.layer_frozen, config.layer_replicated, config.layer_segments));
    ENTRAIN_ASSIGN_OR_RETURN(ShardComms comms, MakeComms(*mesh));
    ENTRAIN_RETURN_IF_ERROR(Agree(*mesh, config, comms));
    return std::unique_ptr<LayerShards>(
        new LayerShards(std::move(mesh), config, std::move(slab), std::move(comms)));
  };
  auto shards = create();
  return shards.ok() ? std::move(shards) : Annotate(shards.status(), "shard");
}

LayerShards::LayerShards(std::shared_ptr<Mesh> mesh, const ShardConfig& config, Slab slab,
                         ShardComms comms)
    : mesh_(std::move(mesh)),
      config_(config),
      slab_(std::move(slab)),
      comms_(std::move(comms)),
      stages_(slab_.layers(), slab_.training()),
      // The pool keeps idle memory for the gathered layers and gradients that a pass uses at the
      // same time. The elements of both are at most as wide as f32.
      pool_((config.prefetch + 4) * slab_.largest_padded() * static_cast<int64_t>(sizeof(float))),
      gather_(slab_, pool_, comms_.gather, config.param_dtype, config.timeout_ns),
      gradients_(slab_, pool_, {comms_.scatter, comms_.context, comms_.sync}, config.grad_dtype,
                 config.timeout_ns) {
  const ShardStats created = stats();
  base_shard_ = created.bytes_sent_shard;
  base_sync_ = created.bytes_sent_sync;
}

absl::Status LayerShards::broken() const {
  absl::Status status = gradients_.status();
  status.Update(gather_.status());
  return status;
}

absl::Status LayerShards::CheckBound() const {
  absl::Status status = broken();
  if (status.ok() && !live_.bound()) {
    status = absl::FailedPreconditionError("no parameters are bound yet");
  }
  return Annotate(status, "shard");
}

absl::Status LayerShards::Check(int layer) const {
  ENTRAIN_RETURN_IF_ERROR(CheckBound());
  if (layer < 0 || layer >= slab_.layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard: layer: ", layer, " is not in [0, ", slab_.layers(), ")"));
  }
  return absl::OkStatus();
}

absl::Status LayerShards::CheckHasGradients(int layer) const {
  ENTRAIN_RETURN_IF_ERROR(Check(layer));
  if (slab_.layer(layer).frozen) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard: layer: ", layer, " is frozen, it has no gradients"));
  }
  if (live_.grads.empty()) {
    return absl::FailedPreconditionError(
        "shard: no gradients are bound: the caller reduces them, or binds arrays for them");
  }
  return absl::OkStatus();
}

absl::Status LayerShards::Bind(void* params, void* grads, DType dtype) {
  if (params == nullptr || grads == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard: ", params == nullptr ? "params" : "grads", " is null"));
  }
  return Bind(LayerArrays::OfSlab(slab_, params, grads, dtype));
}

absl::Status LayerShards::Bind(LayerArrays live) {
  ENTRAIN_RETURN_IF_ERROR(Annotate(CheckDType("dtype", live.dtype), "shard"));
  if (live_.bound()) {
    return absl::FailedPreconditionError("shard: parameters are bound already");
  }
  live_ = std::move(live);
  gather_.Bind(&live_);
  gradients_.Bind(&live_);
  return absl::OkStatus();
}

absl::Status LayerShards::Load(int layer, const void* full, DType from) {
  ENTRAIN_RETURN_IF_ERROR(Check(layer));
  const SlabLayer& l = slab_.layer(layer);
  if (full == nullptr && l.full > 0) {
    return absl::InvalidArgumentError("shard: full is null");
  }
  CutOut(l, full, from, live_.dtype, live_.param(layer));
  return absl::OkStatus();
}

absl::Status LayerShards::Broadcast() {
  ENTRAIN_RETURN_IF_ERROR(CheckBound());
  if (comms_.context == nullptr && comms_.sync == nullptr) {
    return absl::OkStatus();
  }
  const CallOptions options = TimedCall(config_.timeout_ns, kMostLayers, false);
  for (const auto& comm : {comms_.context, comms_.sync}) {
    for (int l = 0; comm != nullptr && l < slab_.layers(); ++l) {
      if (slab_.layer(l).shard > 0) {
        ENTRAIN_RETURN_IF_ERROR(
            Annotate(comm->Broadcast(live_.param(l), slab_.layer(l).shard, live_.dtype, 0, options),
                     absl::StrCat("shard: broadcast: layer ", l)));
      }
    }
  }
  return absl::OkStatus();
}

void LayerShards::Abandon() {
  for (const auto& comm : {comms_.context, comms_.sync, comms_.norms}) {
    if (comm != nullptr) {
      comm->EndWith(absl::AbortedError("the sharded model was destroyed during a call"));
    }
  }
}

absl::Status LayerShards::BeginPass(Pass pass) {
  ENTRAIN_RETURN_IF_ERROR(CheckBound());
  if (pass != Pass::kForward && pass != Pass::kBackward) {
    return absl::InvalidArgumentError(absl::StrCat("shard: pass: ", static_cast<int32_t>(pass),
                                                   " is neither forward nor backward"));
  }
  pass_ = pass;
  return absl::OkStatus();
}

absl::Status LayerShards::Gather(int layer) {
  ENTRAIN_RETURN_IF_ERROR(Check(layer));
  return Annotate(gather_.Start(layer), "shard");
}

absl::StatusOr<void*> LayerShards::Wait(int layer) {
  ENTRAIN_RETURN_IF_ERROR(Check(layer));
  const auto params = gather_.Wait(layer, &waits_.gather_wait_ns);
  if (!params.ok()) {
    return Annotate(params.status(), "shard");
  }
  const int step = pass_ == Pass::kForward ? 1 : -1;
  for (int ahead = 1; ahead <= config_.prefetch; ++ahead) {
    const int next = layer + step * ahead;
    if (next < 0 || next >= slab_.layers()) {
      break;
    }
    ENTRAIN_RETURN_IF_ERROR(Annotate(gather_.Start(next), "shard"));
  }
  return *params;
}

absl::Status LayerShards::WhenGathered(int layer, Worker::Continuation then) {
  ENTRAIN_RETURN_IF_ERROR(Check(layer));
  gather_.WhenGathered(layer, [then = std::move(then)](const absl::Status& status) mutable {
    then(Annotate(status, "shard"));
  });
  return absl::OkStatus();
}

absl::Status LayerShards::WhenGradientsFinished(Worker::Continuation then) {
  ENTRAIN_RETURN_IF_ERROR(CheckBound());
  gradients_.WhenFinished([then = std::move(then)](const absl::Status& status) mutable {
    then(Annotate(status, "shard"));
  });
  return absl::OkStatus();
}

absl::Status LayerShards::Release(int layer) {
  ENTRAIN_RETURN_IF_ERROR(Check(layer));
  return Annotate(gather_.Release(layer), "shard");
}

absl::Status LayerShards::SetBuffers(int layer, void* gathered, void* gradients) {
  ENTRAIN_RETURN_IF_ERROR(Check(layer));
  if (gradients != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(CheckHasGradients(layer));
  }
  if (!gather_.IsFree(layer)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shard: layer ", layer, " is gathered; its buffers can be changed after its release"));
  }
  if (gradients_.Lent(layer)) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard: gradients of layer ", layer,
                     " are handed out; its buffers can be changed after reduce_gradients"));
  }
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(gradients_.SetBuffer(layer, static_cast<std::byte*>(gradients)), "shard"));
  gather_.SetBuffer(layer, static_cast<std::byte*>(gathered));
  return absl::OkStatus();
}

// If several ranks hold copies of the same elements, only the first of these ranks counts them.
double LayerShards::SquareOfGradients() const {
  double square = 0;
  for (const int layer : slab_.training()) {
    const bool copy = mesh_->coordinate(Axis::kContext) > 0 ||
                      (slab_.layer(layer).replicated && mesh_->coordinate(Axis::kTensor) > 0);
    square += copy ? 0 : SquareOf(slab_.layer(layer), live_.grad(layer), live_.dtype);
  }
  return square;
}

absl::StatusOr<double> LayerShards::GradientNorm() {
  ENTRAIN_RETURN_IF_ERROR(CheckBound());
  if (live_.grads.empty()) {
    return absl::FailedPreconditionError("shard: gradient_norm: no gradients are bound");
  }
  ENTRAIN_RETURN_IF_ERROR(Annotate(stages_.CheckReduced(), "shard: gradient_norm"));
  const auto norm = [&]() -> absl::StatusOr<double> {
    const double square = SquareOfGradients();
    std::vector<double> squares = {square};
    if (comms_.norms != nullptr) {
      squares.resize(static_cast<size_t>(comms_.norms->size()));
      ENTRAIN_RETURN_IF_ERROR(comms_.norms->AllGather(&square, squares.data(), 1, DType::kF64,
                                                      TimedCall(config_.timeout_ns, -1, false)));
    }
    // Adds in rank order, so that all ranks get the same bits.
    return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  };
  const absl::StatusOr<double> result = norm();
  return result.ok() ? result : Annotate(result.status(), "shard: gradient_norm");
}

absl::StatusOr<void*> LayerShards::Gradients(int layer) {
  ENTRAIN_RETURN_IF_ERROR(CheckHasGradients(layer));
  ENTRAIN_ASSIGN_OR_RETURN(void* const grads, gradients_.Lend(layer));
  stages_.Lent(layer);
  return grads;
}

absl::Status LayerShards::ReduceGradients(int layer) {
  ENTRAIN_RETURN_IF_ERROR(CheckHasGradients(layer));
  stages_.CountBegun();
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(gradients_.Reduce(layer, scope_ == GradientScope::kGlobal), "shard"));
  stages_.Reduced(layer);
  return absl::OkStatus();
}

absl::Status LayerShards::FinishGradients() {
  ENTRAIN_RETURN_IF_ERROR(CheckBound());
  const int64_t start = Clock::Real().Now();
  const absl::Status status = gradients_.Finish();
  waits_.reduce_wait_ns += static_cast<uint64_t>(Clock::Real().Now() - start);
  stages_.Finished();
  return Annotate(status, "shard");
}

absl::Status LayerShards::SetGradients(GradientScope scope) {
  if (scope != GradientScope::kLocal && scope != GradientScope::kGlobal) {
    return absl::InvalidArgumentError(absl::StrCat("shard: scope: ", static_cast<int32_t>(scope),
                                                   " is neither local nor global"));
  }
  scope_ = scope;
  return absl::OkStatus();
}

ShardStats LayerShards::stats() const {
  ShardStats stats = waits_;
  stats.bytes_sent_shard = BytesSent(comms_.gather) + BytesSent(comms_.scatter) +
                           BytesSent(comms_.context) - base_shard_;
  stats.bytes_sent_sync = BytesSent(comms_.sync) - base_sync_;
  return stats;
}

absl::Status LayerShards::SetGate(LayerGate* gate) {
  if (gate != nullptr) {
    if (gate_ != nullptr) {
      return absl::FailedPreconditionError("shard: another EDiT object exchanges its layers");
    }
    ENTRAIN_RETURN_IF_ERROR(CheckAllReleased());
  }
  gate_ = gate;
  gather_.SetGate(gate);
  return absl::OkStatus();
}

absl::Status LayerShards::CheckAllReleased() const {
  const int held = gather_.FirstHeld();
  if (held >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard: layer ", held, " is gathered; release it first"));
  }
  return absl::OkStatus();
}

}  // namespace entrain
