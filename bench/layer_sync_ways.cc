#include "bench/layer_sync_ways.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/launch/launcher.h"
#include "tools/perf/cores.h"

namespace entrain::perf {
namespace {

void SetPlain(entrain_edit_config_t&) {}

void SetDiloco(entrain_edit_config_t& config) {
  config.outer_optimizer = ENTRAIN_OUTER_SGD;
  config.outer_nesterov = 1;
}

void SetEdit(entrain_edit_config_t& config) {
  SetDiloco(config);
  config.reducer = ENTRAIN_REDUCER_LINEAR;
  config.pseudo_gradnorm_reduce = 1;
  config.clip_pseudo_grad = 10;
  config.skip_anomaly = 1;
}

void SetGta(entrain_edit_config_t& config) {
  SetEdit(config);
  config.reducer = ENTRAIN_REDUCER_GTA;
  config.consensus_method = ENTRAIN_CONSENSUS_SUM;
}

void SetInt8(entrain_edit_config_t& config) {
  SetEdit(config);
  config.wire_format = ENTRAIN_WIRE_INT8;
}

void SetSparse(entrain_edit_config_t& config) {
  SetGta(config);
  config.sparsification_method = ENTRAIN_SPARSIFY_MAGNITUDE;
  config.density = 0.05;
}

constexpr Variant kVariants[] = {
    {"plain", "post-local SGD: the mean of the parameters, no anchors", SetPlain},
    {"diloco", "uniform mean, Nesterov outside", SetDiloco},
    {"edit", "the same with weights by norm, clipping, anomalies", SetEdit},
    {"gta", "the same with a sign consensus", SetGta},
    {"edit-int8", "edit, pseudo-gradients in int8", SetInt8},
    {"gta-sparse", "gta, the 5 % of the largest magnitude", SetSparse},
};

// Returns a number in [-1, 1) that is cheap to compute and differs between replicas and rounds.
float Drift(int64_t element, int replica, int round) {
  const uint32_t x = (static_cast<uint32_t>(element) + 1) * 2654435761u +
                     static_cast<uint32_t>(97 * replica + round) * 40503u;
  return static_cast<float>(static_cast<int32_t>(x)) * 0x1p-31f;
}

void Move(std::vector<float>& params, int replica, int round) {
  for (size_t i = 0; i < params.size(); ++i) {
    params[i] += 1e-3f * Drift(static_cast<int64_t>(i), replica, round);
  }
}

}  // namespace

double Now() {
  return static_cast<double>(Clock::Real().Now()) * 1e-9;
}

absl::StatusOr<RuntimePtr> MakeRuntime(const std::string& transports) {
  entrain_runtime_config_t config;
  entrain_runtime_config_init(&config);
  config.transports = transports.empty() ? nullptr : transports.c_str();
  entrain_runtime_t* runtime = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_runtime_create(&config, &runtime)));
  return RuntimePtr(runtime);
}

absl::StatusOr<CommPtr> MakeComm(entrain_runtime_t* runtime) {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime;
  config.timeout_ns = 60 * kSecond;
  entrain_comm_t* comm = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_create_from_env(&config, &comm)));
  return CommPtr(comm);
}

void PinToOwnCore() {
  const auto launch = DetectLaunch([](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  });
  if (launch.ok()) {
    PinToCore(launch->rank);  // first, so that the library's threads are pinned too
  }
}

const Variant* FindVariant(absl::string_view name) {
  for (const Variant& variant : kVariants) {
    if (name == variant.name) {
      return &variant;
    }
  }
  return nullptr;
}

std::string VariantNames() {
  std::string names;
  for (const Variant& variant : kVariants) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", variant.name);
  }
  return names;
}

std::string DescribeVariants() {
  std::string text;
  for (const Variant& variant : kVariants) {
    absl::StrAppendFormat(&text, "  %-12s%s\n", variant.name, variant.what);
  }
  return text;
}

absl::StatusOr<Ranks> Ranks::Create(entrain_comm_t* comm, int shards) {
  entrain_mesh_config_t config;
  entrain_mesh_config_init(&config);
  config.shard = shards;
  entrain_mesh_t* mesh = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_mesh_create(comm, &config, &mesh)));
  Ranks ranks;
  ranks.mesh_.reset(mesh);
  int32_t slot = 0, replica = 0, length = 0, number = 0;
  ENTRAIN_RETURN_IF_ERROR(
      FromC(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_SYNC, &replica, &length)));
  ranks.replica = replica;
  ranks.replicas = length;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_SHARD, &slot, &length)));
  ranks.shards = length;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_rank(comm, &number)));
  ranks.rank = number;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_mesh_comm(mesh, ENTRAIN_AXIS_SYNC, &ranks.sync_)));
  if (shards > 1) {
    ENTRAIN_RETURN_IF_ERROR(FromC(entrain_mesh_comm(mesh, ENTRAIN_AXIS_MODEL, &ranks.model_)));
  }
  return ranks;
}

// ---- Alone -------------------------------------------------------------------------------------

Alone::Alone(Ranks& ranks, const Shape& shape)
    : ranks_(ranks),
      layers_(static_cast<size_t>(shape.layers),
              std::vector<float>(static_cast<size_t>(shape.count))) {}

void Alone::Refill() {
  for (std::vector<float>& layer : layers_) {
    std::fill(layer.begin(), layer.end(), 1.0f);
  }
}

absl::Status Alone::Run() {
  for (std::vector<float>& layer : layers_) {
    ENTRAIN_RETURN_IF_ERROR(
        FromC(entrain_all_reduce(ranks_.sync(), layer.data(), layer.data(), layer.size(),
                                 ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr)));
  }
  return absl::OkStatus();
}

// ---- By hand -----------------------------------------------------------------------------------

ByHand::ByHand(Ranks& ranks, const Shape& shape, const Variant& variant)
    : ranks_(ranks), delta_(static_cast<size_t>(shape.count)) {
  entrain_edit_config_init(&config_);
  variant.set(config_);
  const auto count = static_cast<size_t>(shape.count);
  for (int l = 0; l < shape.layers; ++l) {
    layers_.push_back({std::vector<float>(count, 1.0f), std::vector<float>(count, 1.0f),
                       std::vector<float>(count)});
  }
}

absl::Status ByHand::Create() {
  const bool gta = config_.reducer == ENTRAIN_REDUCER_GTA;
  weight_ = 1.0 / ranks_.replicas;
  if (!gta && config_.wire_format == ENTRAIN_WIRE_F32) {
    return absl::OkStatus();
  }
  const std::vector<double> weights(static_cast<size_t>(ranks_.replicas), weight_);
  entrain_gta_config_t config;
  entrain_gta_config_init(&config);
  config.weights = weights.data();
  config.ranks = ranks_.replicas;
  config.consensus = config_.consensus_method;
  config.sparsification = config_.sparsification_method;
  config.density = config_.density;
  config.wire_format = config_.wire_format;
  entrain_reduction_t* reduction = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_reduction_gta(&config, &reduction)));
  reduction_.reset(reduction);
  weight_ = 1;
  return absl::OkStatus();
}

void ByHand::Refill() {
  for (Layer& layer : layers_) {
    Move(layer.params, ranks_.replica, round_);
  }
  ++round_;
}

absl::StatusOr<std::vector<double>> ByHand::Gather(entrain_comm_t* comm, int ranks,
                                                   const std::vector<double>& mine) {
  std::vector<double> all(mine.size() * static_cast<size_t>(ranks));
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_all_gather(comm, mine.data(), all.data(), mine.size(),
                                                   ENTRAIN_F64, nullptr, nullptr)));
  return all;
}

absl::Status ByHand::Norms() {
  const bool plain = config_.outer_optimizer == ENTRAIN_OUTER_NONE;
  std::vector<double> squares;
  for (Layer& layer : layers_) {
    const auto count = static_cast<int64_t>(layer.params.size());
    squares.push_back(
        plain ? kernels_.sum_of_squares(layer.params.data(), count)
              : kernels_.square_of_delta(layer.anchor.data(), layer.params.data(), count));
  }
  if (ranks_.model() != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(Gather(ranks_.model(), ranks_.shards, squares).status());
  }
  return Gather(ranks_.sync(), ranks_.replicas, squares).status();
}

absl::Status ByHand::Combine(Layer& layer) {
  const auto count = static_cast<int64_t>(delta_.size());
  const bool plain = config_.outer_optimizer == ENTRAIN_OUTER_NONE;
  if (plain) {
    kernels_.scale_any(DType::kF32, delta_.data(), layer.params.data(), count, weight_);
  } else {
    kernels_.weighted_delta(delta_.data(), layer.anchor.data(), layer.params.data(),
                            static_cast<float>(weight_), count);
  }
  entrain_call_options_t options;
  entrain_call_options_init(&options);
  options.reduction = reduction_.get();
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_all_reduce(
      ranks_.sync(), delta_.data(), delta_.data(), delta_.size(), ENTRAIN_F32,
      reduction_ == nullptr ? ENTRAIN_SUM : ENTRAIN_REDUCTION, &options, nullptr)));
  if (plain) {
    std::memcpy(layer.params.data(), delta_.data(), delta_.size() * sizeof(float));
    return absl::OkStatus();
  }
  double beta = 1;
  if (config_.clip_pseudo_grad > 0) {
    std::vector<double> squares = {kernels_.sum_of_squares(delta_.data(), count)};
    if (ranks_.model() != nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(squares, Gather(ranks_.model(), ranks_.shards, squares));
    }
    double sum = 0;
    for (const double square : squares) {
      sum += square;
    }
    beta = std::min(1.0, config_.clip_pseudo_grad / (std::sqrt(sum) + 1e-6));
  }
  SgdArgs args{};
  args.lr = config_.outer_lr;
  args.momentum = config_.outer_momentum;
  args.nesterov = config_.outer_nesterov != 0;
  kernels_.outer_step(args, static_cast<float>(beta), layer.anchor.data(), layer.momentum.data(),
                      layer.params.data(), delta_.data(), count);
  return absl::OkStatus();
}

absl::Status ByHand::Run() {
  ENTRAIN_RETURN_IF_ERROR(Norms());
  for (Layer& layer : layers_) {
    ENTRAIN_RETURN_IF_ERROR(Combine(layer));
  }
  return absl::OkStatus();
}

// ---- EDiT --------------------------------------------------------------------------------------

Edit::Edit(Ranks& ranks, const Shape& shape, const Variant& variant, int prefetch)
    : ranks_(ranks),
      shape_(shape),
      variant_(variant),
      prefetch_(prefetch),
      params_(static_cast<size_t>(shape.layers * shape.count), 1.0f),
      grads_(params_.size()) {}

absl::Status Edit::Create() {
  const std::vector<size_t> counts(
      static_cast<size_t>(shape_.layers),
      static_cast<size_t>(shape_.count) * static_cast<size_t>(shape_.shards));
  entrain_shard_config_t sharding;
  entrain_shard_config_init(&sharding);
  sharding.layers = shape_.layers;
  sharding.layer_counts = counts.data();
  entrain_shard_t* shard = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_shard_create(ranks_.mesh(), &sharding, &shard)));
  shard_.reset(shard);
  ENTRAIN_RETURN_IF_ERROR(
      FromC(entrain_shard_bind(shard, params_.data(), grads_.data(), ENTRAIN_F32)));
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  config.shard = shard;
  config.prefetch = prefetch_;
  variant_.set(config);
  entrain_edit_t* edit = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_edit_create(ranks_.mesh(), &config, &edit)));
  edit_.reset(edit);
  int32_t syncing = 0;  // the first exchange makes the anchors
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr)));
  return End();
}

void Edit::Refill() {
  Move(params_, ranks_.replica, static_cast<int>(exchanges_));
}

absl::Status Edit::Begin() {
  int32_t syncing = 0;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_edit_begin_forward(edit_.get(), 1, 1, &syncing, nullptr)));
  exchanges_ += syncing;
  return syncing == 1 ? absl::OkStatus() : absl::InternalError("begin_forward began no exchange");
}

absl::Status Edit::Wait(int layer) {
  return FromC(entrain_edit_wait_layer(edit_.get(), layer));
}

absl::Status Edit::End() {
  return FromC(entrain_edit_end_step(edit_.get()));
}

absl::Status Edit::Run() {
  ENTRAIN_RETURN_IF_ERROR(Begin());
  for (int l = 0; l < shape_.layers; ++l) {
    ENTRAIN_RETURN_IF_ERROR(Wait(l));
  }
  return End();
}

uint64_t Edit::bytes_sent() const {
  entrain_edit_info_t info;
  entrain_edit_info_init(&info);
  return entrain_edit_info(edit_.get(), &info) == ENTRAIN_OK ? info.bytes_sent_sync : 0;
}

absl::Status Edit::Check() const {
  entrain_edit_info_t info;
  entrain_edit_info_init(&info);
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_edit_info(edit_.get(), &info)));
  if (info.syncs != exchanges_ || info.rejections != 0 || info.rollbacks != 0) {
    return absl::InternalError(absl::StrCat(info.syncs, " exchanges of ", exchanges_, ", ",
                                            info.rejections, " rejections, ", info.rollbacks,
                                            " layers rolled back"));
  }
  return absl::OkStatus();
}

}  // namespace entrain::perf
