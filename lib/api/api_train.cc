// Implements the functions of train.h for the mesh and for sharded models.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "include/entrain/train.h"
#include "lib/api/arguments.h"
#include "lib/api/array_place.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::DType;
using entrain::LayerShards;
using entrain::Mesh;
using entrain::Worker;

namespace {

constexpr int kMaxLayers = 1 << 18;

entrain_mesh_t* ToMeshHandle(std::shared_ptr<Mesh> mesh) {
  auto* handle = new entrain_mesh{.mesh = std::move(mesh), .comms = {}};
  for (size_t axis = 0; axis < handle->comms.size(); ++axis) {
    handle->comms[axis].comm = handle->mesh->comm(entrain::Axis{static_cast<int32_t>(axis)});
    handle->comms[axis].lent = true;
  }
  return handle;
}

absl::Status CheckAxis(int32_t axis) {
  return CheckChoice("axis", axis, ENTRAIN_AXIS_MODEL, "ENTRAIN_AXIS_*");
}

absl::Status CheckShardType(const char* name, entrain_dtype_t dtype) {
  ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
  if (dtype != ENTRAIN_F32 && dtype != ENTRAIN_BF16) {
    return absl::UnimplementedError(
        absl::StrCat(name, " ", entrain::NameOf(DType{dtype}), ": layers are f32 or bf16"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<entrain::SlabSegment>>> ToSegments(
    const entrain_shard_config_t& config) {
  std::vector<std::vector<entrain::SlabSegment>> result;
  if (config.layer_segments == nullptr) {
    return config.segment_counts == nullptr && config.segment_rows == nullptr
               ? absl::StatusOr<std::vector<std::vector<entrain::SlabSegment>>>(result)
               : absl::InvalidArgumentError(
                     "segment_counts or segment_rows without layer_segments");
  }
  ENTRAIN_RETURN_IF_ERROR(NotNull(config.segment_counts, "segment_counts"));
  ENTRAIN_RETURN_IF_ERROR(NotNull(config.segment_rows, "segment_rows"));
  size_t next = 0;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    if (config.layer_segments[layer] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("layer_segments[", layer, "] ",
                                                     config.layer_segments[layer], " is negative"));
    }
    std::vector<entrain::SlabSegment>& segments = result.emplace_back();
    for (int32_t i = 0; i < config.layer_segments[layer]; ++i, ++next) {
      const size_t count = config.segment_counts[next], rows = config.segment_rows[next];
      if (count > config.layer_counts[layer] || rows > count || (count > 0 && rows == 0) ||
          (rows > 0 && count % rows != 0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("segment_rows[", next, "] ", rows, " and segment_counts[", next, "] ",
                         count, " are not rows of a part of layer ", layer, ", which has ",
                         config.layer_counts[layer], " elements"));
      }
      segments.push_back({static_cast<int64_t>(count), static_cast<int64_t>(rows)});
    }
  }
  return result;
}

absl::StatusOr<entrain::ShardConfig> ToShardConfig(const entrain_shard_config_t& config) {
  entrain::ShardConfig result;
  if (config.layers < 1 || config.layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers ", config.layers, " is not in 1 to ", kMaxLayers));
  }
  ENTRAIN_RETURN_IF_ERROR(NotNull(config.layer_counts, "layer_counts"));
  int64_t total = 0;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const absl::StatusOr<int64_t> count = CheckCount(config.layer_counts[layer], DType::kF64, 1);
    if (!count.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer_counts[", layer, "] ", config.layer_counts[layer], " is not a count of elements"));
    }
    total += *count;
    if (total > std::numeric_limits<int64_t>::max() / 16) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer_counts: ", layer + 1, " layers have more elements than memory can"));
    }
    result.layer_counts.push_back(*count);
  }
  for (int32_t layer = 0; config.layer_frozen != nullptr && layer < config.layers; ++layer) {
    const uint8_t frozen = config.layer_frozen[layer];
    ENTRAIN_RETURN_IF_ERROR(CheckSwitch(absl::StrCat("layer_frozen[", layer, "]").c_str(), frozen));
    result.layer_frozen.push_back(frozen);
  }
  for (int32_t layer = 0; config.layer_replicated != nullptr && layer < config.layers; ++layer) {
    const uint8_t replicated = config.layer_replicated[layer];
    ENTRAIN_RETURN_IF_ERROR(
        CheckSwitch(absl::StrCat("layer_replicated[", layer, "]").c_str(), replicated));
    result.layer_replicated.push_back(replicated);
  }
  if (config.prefetch < 0) {
    return absl::InvalidArgumentError(absl::StrCat("prefetch ", config.prefetch, " is negative"));
  }
  result.prefetch = config.prefetch;
  ENTRAIN_ASSIGN_OR_RETURN(result.layer_segments, ToSegments(config));
  ENTRAIN_RETURN_IF_ERROR(CheckShardType("param_dtype", config.param_dtype));
  ENTRAIN_RETURN_IF_ERROR(CheckShardType("grad_dtype", config.grad_dtype));
  result.param_dtype = DType{config.param_dtype};
  result.grad_dtype = DType{config.grad_dtype};
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(config.timeout_ns));
  result.timeout_ns = config.timeout_ns;
  return result;
}

// Checks and converts a list of one pointer per layer. `name` is "params" or "grads".
absl::StatusOr<std::vector<std::byte*>> ToArrays(const char* name, void* const* arrays, DType dtype,
                                                 const entrain::Slab& slab) {
  std::vector<std::byte*> result;
  for (int l = 0; l < slab.layers(); ++l) {
    const entrain::SlabLayer& layer = slab.layer(l);
    const bool may_lack = layer.frozen && arrays[l] == nullptr && name[0] == 'g';
    const int64_t bytes = may_lack ? 0 : layer.shard * SizeOf(dtype);
    ENTRAIN_RETURN_IF_ERROR(
        CheckHostBuffer(absl::StrCat(name, "[", l, "]").c_str(), arrays[l], bytes, dtype));
    result.push_back(static_cast<std::byte*>(arrays[l]));
  }
  return result;
}

// Checks that the arrays of all layers are disjoint.
absl::Status CheckApart(const entrain::LayerArrays& live, const entrain::Slab& slab) {
  struct Range {
    const std::byte *begin, *end;
    const char* name;
    size_t layer;
  };
  std::vector<Range> ranges;
  for (const auto& [name, arrays] :
       {std::pair("params", &live.params), std::pair("grads", &live.grads)}) {
    for (size_t l = 0; l < arrays->size(); ++l) {
      const int64_t bytes = slab.layer(static_cast<int>(l)).shard * SizeOf(live.dtype);
      if ((*arrays)[l] != nullptr && bytes > 0) {
        ranges.push_back({(*arrays)[l], (*arrays)[l] + bytes, name, l});
      }
    }
  }
  const auto earlier = [](const Range& a, const Range& b) {
    return std::less<>()(a.begin, b.begin);
  };
  std::sort(ranges.begin(), ranges.end(), earlier);
  for (size_t i = 1; i < ranges.size(); ++i) {
    const Range &a = ranges[i - 1], &b = ranges[i];
    if (std::less<>()(b.begin, a.end)) {
      return absl::InvalidArgumentError(
          absl::StrCat(a.name, "[", a.layer, "] and ", b.name, "[", b.layer, "] overlap"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHasLayer(const entrain_shard_t* shard, int32_t layer) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(shard, "shard"));
  const int layers = shard->shards->slab().layers();
  if (layer < 0 || layer >= layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not one of ", layers, " (0 to ", layers - 1, ")"));
  }
  return absl::OkStatus();
}

// Checks the layer, and that the shard is idle. Functions that are allowed during a started call
// use CheckHasLayer instead.
absl::Status CheckLayer(const entrain_shard_t* shard, int32_t layer) {
  ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
  return CheckHasLayer(shard, layer);
}

}  // namespace

extern "C" {

// ---- Mesh

entrain_status_t entrain_mesh_create(entrain_comm_t* comm, const entrain_mesh_config_t* config,
                                     entrain_mesh_t** mesh) {
  return Guard(__func__, Does::kWait, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    entrain_mesh_config_t known;
    entrain_mesh_config_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_mesh_config_t"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(mesh, "mesh"));
    entrain::MeshConfig shape;
    shape.lengths = {known.tensor, known.pipeline, known.context, known.shard, known.sync};
    if (known.order != nullptr) {
      shape.order = known.order;
    }
    ENTRAIN_ASSIGN_OR_RETURN(auto made, Mesh::Create(comm->comm, shape));
    *mesh = ToMeshHandle(std::move(made));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_mesh_create_from(entrain_comm_t* shard_comm, entrain_comm_t* sync_comm,
                                          entrain_mesh_t** mesh) {
  return Guard(__func__, Does::kWait, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(shard_comm, "shard_comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(sync_comm, "sync_comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(mesh, "mesh"));
    ENTRAIN_ASSIGN_OR_RETURN(auto made, Mesh::CreateFrom(shard_comm->comm, sync_comm->comm));
    *mesh = ToMeshHandle(std::move(made));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_mesh_coordinate(const entrain_mesh_t* mesh, int32_t axis,
                                         int32_t* coordinate, int32_t* length) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(mesh, "mesh"));
    ENTRAIN_RETURN_IF_ERROR(CheckAxis(axis));
    ENTRAIN_RETURN_IF_ERROR(NotNull(coordinate, "coordinate"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(length, "length"));
    *coordinate = mesh->mesh->coordinate(entrain::Axis{axis});
    *length = mesh->mesh->length(entrain::Axis{axis});
    return absl::OkStatus();
  });
}

entrain_status_t entrain_mesh_comm(const entrain_mesh_t* mesh, int32_t axis,
                                   entrain_comm_t** comm) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(mesh, "mesh"));
    ENTRAIN_RETURN_IF_ERROR(CheckAxis(axis));
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    // The handle is part of the mesh, but the caller needs it without const.
    *comm = &const_cast<entrain_mesh_t*>(mesh)->comms[static_cast<size_t>(axis)];
    return absl::OkStatus();
  });
}

void entrain_mesh_destroy(entrain_mesh_t* mesh) {
  Destroy(__func__, mesh, Does::kStart);
}

// ---- Shards

entrain_status_t entrain_shard_create(entrain_mesh_t* mesh, const entrain_shard_config_t* config,
                                      entrain_shard_t** shard) {
  return Guard(__func__, Does::kWait, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(mesh, "mesh"));
    entrain_shard_config_t known;
    entrain_shard_config_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_shard_config_t"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(shard, "shard"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::ShardConfig shape, ToShardConfig(known));
    ENTRAIN_ASSIGN_OR_RETURN(auto made, LayerShards::Create(mesh->mesh, shape));
    auto calls = std::make_shared<StartedCalls>(*mesh->mesh->comm(entrain::Axis::kModel));
    *shard = new entrain_shard{.shards = std::move(made), .calls = std::move(calls)};
    return absl::OkStatus();
  });
}

void entrain_shard_destroy(entrain_shard_t* shard) {
  Destroy(__func__, shard, Does::kStart);
}

entrain_status_t entrain_shard_layer_info(const entrain_shard_t* shard, int32_t layer,
                                          entrain_shard_layer_t* out) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckHasLayer(shard, layer));
    const entrain::SlabLayer& from = shard->shards->slab().layer(layer);
    const entrain_shard_layer_t known = {.size = sizeof(known),
                                         .full_count = static_cast<size_t>(from.full),
                                         .padded_count = static_cast<size_t>(from.padded),
                                         .shard_count = static_cast<size_t>(from.shard),
                                         .first = static_cast<size_t>(from.first),
                                         .valid_count = static_cast<size_t>(from.valid),
                                         .slab_offset = static_cast<size_t>(from.offset)};
    return WriteStruct(&known, sizeof(known), out, "entrain_shard_layer_t");
  });
}

entrain_status_t entrain_shard_slab_count(const entrain_shard_t* shard, size_t* count) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(shard, "shard"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = static_cast<size_t>(shard->shards->slab().count());
    return absl::OkStatus();
  });
}

entrain_status_t entrain_shard_bind(entrain_shard_t* shard, void* params, void* grads,
                                    entrain_dtype_t dtype) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    ENTRAIN_RETURN_IF_ERROR(CheckShardType("dtype", dtype));
    const int64_t bytes = shard->shards->slab().count() * SizeOf(DType{dtype});
    ENTRAIN_RETURN_IF_ERROR(CheckHostBuffer("params", params, bytes, DType{dtype}));
    ENTRAIN_RETURN_IF_ERROR(CheckHostBuffer("grads", grads, bytes, DType{dtype}));
    if (Overlap(params, bytes, grads, bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("params and grads (", bytes, " bytes each) overlap"));
    }
    return shard->shards->Bind(params, grads, DType{dtype});
  });
}

entrain_status_t entrain_shard_bind_layers(entrain_shard_t* shard, void* const* params,
                                           void* const* grads, entrain_dtype_t dtype) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    ENTRAIN_RETURN_IF_ERROR(CheckShardType("dtype", dtype));
    ENTRAIN_RETURN_IF_ERROR(NotNull(params, "params"));
    const entrain::Slab& slab = shard->shards->slab();
    entrain::LayerArrays live;
    live.dtype = DType{dtype};
    ENTRAIN_ASSIGN_OR_RETURN(live.params, ToArrays("params", params, live.dtype, slab));
    if (grads != nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(live.grads, ToArrays("grads", grads, live.dtype, slab));
    }
    ENTRAIN_RETURN_IF_ERROR(CheckApart(live, slab));
    return shard->shards->Bind(std::move(live));
  });
}

entrain_status_t entrain_shard_load(entrain_shard_t* shard, int32_t layer, const void* full,
                                    entrain_dtype_t dtype) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    ENTRAIN_RETURN_IF_ERROR(CheckConvertible(dtype));
    const int64_t bytes = shard->shards->slab().layer(layer).full * SizeOf(DType{dtype});
    ENTRAIN_RETURN_IF_ERROR(CheckHostBuffer("full", full, bytes, DType{dtype}));
    return shard->shards->Load(layer, full, DType{dtype});
  });
}

entrain_status_t entrain_shard_broadcast(entrain_shard_t* shard, entrain_work_t** work) {
  return Guard(__func__, DoesOf(work), [&]() -> absl::Status {
    return CallOn(shard, "shard", "shard_broadcast", work,
                  [shard] { return shard->shards->Broadcast(); });
  });
}

entrain_status_t entrain_shard_begin_pass(entrain_shard_t* shard, int32_t pass) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    ENTRAIN_RETURN_IF_ERROR(CheckChoice("pass", pass, ENTRAIN_PASS_BACKWARD, "ENTRAIN_PASS_*"));
    return shard->shards->BeginPass(entrain::Pass{pass});
  });
}

entrain_status_t entrain_shard_gather(entrain_shard_t* shard, int32_t layer) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    return shard->shards->Gather(layer);
  });
}

entrain_status_t entrain_shard_wait(entrain_shard_t* shard, int32_t layer, void** params) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    ENTRAIN_RETURN_IF_ERROR(NotNull(params, "params"));
    ENTRAIN_ASSIGN_OR_RETURN(*params, shard->shards->Wait(layer));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_shard_gather_work(entrain_shard_t* shard, int32_t layer,
                                           entrain_work_t** work) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    return WatchOn(shard, "shard_gather", layer, work, [&](Worker::Continuation then) {
      return shard->shards->WhenGathered(layer, std::move(then));
    });
  });
}

entrain_status_t entrain_shard_release(entrain_shard_t* shard, int32_t layer) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    return shard->shards->Release(layer);
  });
}

entrain_status_t entrain_shard_gradients(entrain_shard_t* shard, int32_t layer, void** grads) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    ENTRAIN_RETURN_IF_ERROR(NotNull(grads, "grads"));
    ENTRAIN_ASSIGN_OR_RETURN(*grads, shard->shards->Gradients(layer));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_shard_reduce_gradients(entrain_shard_t* shard, int32_t layer) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    return shard->shards->ReduceGradients(layer);
  });
}

entrain_status_t entrain_shard_finish_gradients(entrain_shard_t* shard) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    return shard->shards->FinishGradients();
  });
}

entrain_status_t entrain_shard_gradients_work(entrain_shard_t* shard, entrain_work_t** work) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    return WatchOn(shard, "shard_gradients", -1, work, [&](Worker::Continuation then) {
      return shard->shards->WhenGradientsFinished(std::move(then));
    });
  });
}

entrain_status_t entrain_shard_set_buffers(entrain_shard_t* shard, int32_t layer, void* gathered,
                                           void* gradients) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(shard, layer));
    const entrain::LayerShards& shards = *shard->shards;
    const int64_t count = shards.slab().layer(layer).padded;
    const DType params = shards.param_dtype(), grads = shards.grad_dtype();
    if (gathered != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(
          CheckHostBuffer("gathered", gathered, count * SizeOf(params), params));
    }
    if (gradients != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(
          CheckHostBuffer("gradients", gradients, count * SizeOf(grads), grads));
    }
    if (gathered != nullptr && gradients != nullptr &&
        Overlap(gathered, count * SizeOf(params), gradients, count * SizeOf(grads))) {
      return absl::InvalidArgumentError("gathered and gradients overlap");
    }
    return shard->shards->SetBuffers(layer, gathered, gradients);
  });
}

entrain_status_t entrain_shard_gradient_norm(entrain_shard_t* shard, double* norm,
                                             entrain_work_t** work) {
  return Guard(__func__, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(norm, "norm"));
    return CallOn(shard, "shard", "shard_gradient_norm", work, [shard, norm]() -> absl::Status {
      ENTRAIN_ASSIGN_OR_RETURN(*norm, shard->shards->GradientNorm());
      return absl::OkStatus();
    });
  });
}

entrain_status_t entrain_shard_set_gradients(entrain_shard_t* shard, int32_t scope) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    ENTRAIN_RETURN_IF_ERROR(
        CheckChoice("scope", scope, ENTRAIN_GRADIENTS_GLOBAL, "ENTRAIN_GRADIENTS_*"));
    return shard->shards->SetGradients(entrain::GradientScope{scope});
  });
}

entrain_status_t entrain_shard_stats(const entrain_shard_t* shard, entrain_shard_stats_t* stats) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(shard, "shard"));
    const entrain::ShardStats now = shard->shards->stats();
    const entrain_shard_stats_t known = {.size = sizeof(known),
                                         .gather_wait_ns = now.gather_wait_ns,
                                         .reduce_wait_ns = now.reduce_wait_ns,
                                         .bytes_sent_shard = now.bytes_sent_shard,
                                         .bytes_sent_sync = now.bytes_sent_sync};
    return WriteStruct(&known, sizeof(known), stats, "entrain_shard_stats_t");
  });
}

}  // extern "C"
