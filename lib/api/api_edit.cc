// Implements the functions of train.h for EDiT.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "include/entrain/train.h"
#include "lib/api/admission_place.h"
#include "lib/api/arguments.h"
#include "lib/api/array_place.h"
#include "lib/api/boundary.h"
#include "lib/api/environment.h"
#include "lib/api/handles.h"
#include "lib/api/option_rows.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/train/identity.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::DType;
using entrain::EditOptions;
using entrain::LayerSync;
using entrain::Worker;

namespace {

// Returns a copy of an array of the caller. The copy is empty if `values` is NULL.
template <typename T>
std::vector<T> Copy(const T* values, int32_t count) {
  return values == nullptr || count < 1 ? std::vector<T>() : std::vector<T>(values, values + count);
}

// Converts the config and checks each option. LayerSync checks combinations of options.
absl::StatusOr<EditOptions> ToEditOptions(const entrain_edit_config_t& config,
                                          const entrain::Mesh& mesh) {
  ENTRAIN_RETURN_IF_ERROR(CheckReserved("reserved", config.reserved));
  ENTRAIN_ASSIGN_OR_RETURN(EditOptions options, NumbersOf<EditRows>(config));
  options.outer_step = config.outer_step;
  options.outer_user = config.outer_user;
  options.fetch = config.fetch;
  options.fetch_user = config.fetch_user;
  options.outer_schedule = config.outer_schedule;
  options.outer_schedule_user = config.outer_schedule_user;
  options.interval_schedule = config.interval_schedule;
  options.interval_schedule_user = config.interval_schedule_user;
  options.fragment_of_layer = Copy(config.fragment_of_layer, config.shard->shards->slab().layers());
  options.fragment_intervals = Copy(config.fragment_intervals, config.fragments);
  options.fragment_offsets = Copy(config.fragment_offsets, config.fragments);
  ENTRAIN_ASSIGN_OR_RETURN(
      AdmissionPlace place,
      AdmissionPlaceOf(options.admit != entrain::Admit::kNone, config.admit_store,
                       config.admit_name, "edit",
                       mesh.comm(entrain::Axis::kModel)->runtime().security()));
  options.admit_store = std::move(place.store);
  options.admit_name = std::move(place.name);
  options.identity_text = IdentityOf(config.identity);
  ENTRAIN_ASSIGN_OR_RETURN(options.identity, entrain::ParseIdentity(options.identity_text));
  return options;
}

// Checks the config and creates the handle. `make` creates the LayerSync.
template <typename MakeSync>
absl::Status MakeEdit(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                      entrain_edit_t** edit, const MakeSync& make) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(mesh, "mesh"));
  entrain_edit_config_t known;
  entrain_edit_config_init(&known);
  ENTRAIN_RETURN_IF_ERROR(
      entrain::CopyStruct(config, &known, sizeof(known), "entrain_edit_config_t"));
  ENTRAIN_RETURN_IF_ERROR(NotNull(edit, "edit"));
  ENTRAIN_RETURN_IF_ERROR(CheckIdle(known.shard, "config.shard"));
  ENTRAIN_ASSIGN_OR_RETURN(const EditOptions options, ToEditOptions(known, *mesh->mesh));
  const std::shared_ptr<entrain::LayerShards> shards = known.shard->shards;
  ENTRAIN_ASSIGN_OR_RETURN(auto made, make(mesh->mesh, shards, options));
  *edit = new entrain_edit{.edit = std::move(made),
                           .layers = shards->slab().layers(),
                           .slab_count = shards->slab().count(),
                           .calls = known.shard->calls};
  return absl::OkStatus();
}

absl::Status CheckLayer(const entrain_edit_t* edit, int32_t layer) {
  ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
  if (layer < 0 || layer >= edit->layers) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " is not one of ", edit->layers,
                                                   " (0 to ", edit->layers - 1, ")"));
  }
  return absl::OkStatus();
}

constexpr int32_t kAllWishes = ENTRAIN_WISH_CHECKPOINT | ENTRAIN_WISH_STOP;
static_assert(ENTRAIN_WISH_CHECKPOINT == entrain::kWantCheckpoint);
static_assert(ENTRAIN_WISH_STOP == entrain::kWantStop);

int32_t ToWishes(uint64_t flags) {
  return static_cast<int32_t>(flags) & kAllWishes;
}

// Runs a call of the training loop. If the call fails, tells the other ranks the error, because
// they may wait for this rank, and this rank may exit.
template <typename Body>
absl::Status Make(const char* function, entrain_edit_t* edit, const Body& body) {
  const absl::Status status = body();
  if (!status.ok()) {
    edit->edit->Refused(entrain::Annotate(status, function));
  }
  return status;
}

template <typename Body>
entrain_status_t GuardCall(const char* function, entrain_edit_t* edit, const Body& body,
                           Does does = Does::kWait) {
  return Guard(function, does, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    return Make(function, edit, body);
  });
}

// As GuardCall, or with `work` on a thread of the library. `checked`: whether the arguments are good.
template <typename Body>
entrain_status_t GuardWork(const char* function, absl::string_view operation, entrain_edit_t* edit,
                           entrain_work_t** work, const absl::Status& checked, const Body& body) {
  return Guard(function, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    if (!checked.ok()) {
      return Make(function, edit, [&] { return checked; });
    }
    return CallOn(edit, "edit", operation, work,
                  [function, edit, body] { return Make(function, edit, body); });
  });
}

void CopyTo(double* to, const std::vector<double>& from) {
  if (to != nullptr) {
    std::copy(from.begin(), from.end(), to);
  }
}

}  // namespace

extern "C" {

entrain_status_t entrain_edit_create(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                     entrain_edit_t** edit) {
  return Guard(__func__, Does::kWait,
               [&] { return MakeEdit(mesh, config, edit, LayerSync::Create); });
}

entrain_status_t entrain_edit_join(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                   int64_t wait_ns, entrain_edit_t** edit) {
  return Guard(__func__, Does::kWait, [&] {
    return MakeEdit(
        mesh, config, edit,
        [wait_ns](const std::shared_ptr<entrain::Mesh>& on,
                  const std::shared_ptr<entrain::LayerShards>& shards, const EditOptions& options) {
          auto joined = LayerSync::Join(on, shards, options, wait_ns);
          if (joined.ok()) {
            TellLauncherOfJoin(on->comm(entrain::Axis::kModel)->runtime().security());
          }
          return joined;
        });
  });
}

void entrain_edit_destroy(entrain_edit_t* edit) {
  Destroy(__func__, edit, Does::kStart);
}

entrain_status_t entrain_edit_begin_forward(entrain_edit_t* edit, int32_t training,
                                            int32_t first_microbatch, int32_t* syncing,
                                            entrain_work_t** work) {
  const absl::Status checked = NotNull(syncing, "syncing");
  return GuardWork(__func__, "edit_begin_forward", edit, work, checked, [=]() -> absl::Status {
    ENTRAIN_ASSIGN_OR_RETURN(const bool began,
                             edit->edit->BeginForward(training != 0, first_microbatch != 0));
    *syncing = began ? 1 : 0;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_edit_wait_layer(entrain_edit_t* edit, int32_t layer) {
  return GuardCall(__func__, edit, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(edit, layer));
    return edit->edit->WaitLayer(layer);
  });
}

entrain_status_t entrain_edit_layer_work(entrain_edit_t* edit, int32_t layer,
                                         entrain_work_t** work) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(edit, layer));
    return WatchOn(edit, "edit_layer", layer, work, [&](Worker::Continuation then) {
      return edit->edit->WhenLayerOver(layer, std::move(then));
    });
  });
}

entrain_status_t entrain_edit_end_step(entrain_edit_t* edit) {
  return GuardCall(
      __func__, edit, [&]() -> absl::Status { return edit->edit->EndStep(); }, Does::kStart);
}

entrain_status_t entrain_edit_gradient_scope(const entrain_edit_t* edit, int32_t* scope) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(scope, "scope"));
    *scope = static_cast<int32_t>(edit->edit->gradient_scope());
    return absl::OkStatus();
  });
}

entrain_status_t entrain_edit_request_sync(entrain_edit_t* edit) {
  return GuardCall(
      __func__, edit, [&]() -> absl::Status { return edit->edit->RequestSync(); }, Does::kStart);
}

entrain_status_t entrain_edit_record(entrain_edit_t* edit, int64_t tokens, double metric,
                                     double weight) {
  return GuardCall(
      __func__, edit, [&]() -> absl::Status { return edit->edit->Record(tokens, metric, weight); },
      Does::kStart);
}

entrain_status_t entrain_edit_wish(entrain_edit_t* edit, int32_t wishes) {
  return GuardCall(
      __func__, edit,
      [&]() -> absl::Status {
        if ((wishes & ~kAllWishes) != 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("wishes ", wishes, " has other bits than ENTRAIN_WISH_*"));
        }
        return edit->edit->Wish(static_cast<uint64_t>(wishes));
      },
      Does::kStart);
}

entrain_status_t entrain_edit_leave(entrain_edit_t* edit, entrain_work_t** work) {
  return GuardWork(__func__, "edit_leave", edit, work, absl::OkStatus(),
                   [edit] { return edit->edit->Leave(); });
}

entrain_status_t entrain_edit_replica(const entrain_edit_t* edit, int32_t replica,
                                      entrain_edit_replica_t* out) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::Standing one,
                             edit->edit->results().StandingOf(replica));
    const entrain_edit_replica_t known = {.size = sizeof(known),
                                          .steps = static_cast<int64_t>(one.steps),
                                          .steps_since = static_cast<int64_t>(one.steps_since),
                                          .tokens_since = static_cast<int64_t>(one.tokens_since),
                                          .wishes = ToWishes(one.flags),
                                          .leaving = (one.flags & entrain::kLeaving) != 0 ? 1 : 0};
    return WriteStruct(&known, sizeof(known), out, "entrain_edit_replica_t");
  });
}

entrain_status_t entrain_edit_info(const entrain_edit_t* edit, entrain_edit_info_t* info) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    const entrain::EditInfo now = edit->edit->info();
    const entrain_edit_info_t known = {.size = sizeof(known),
                                       .steps = now.steps,
                                       .syncs = now.syncs,
                                       .last_sync_step = now.last_sync_step,
                                       .anchor_checksum = now.anchor_checksum,
                                       .exposed_ns = now.exposed_ns,
                                       .sync_ns = now.sync_ns,
                                       .bytes_sent_shard = now.bytes_sent_shard,
                                       .bytes_sent_sync = now.bytes_sent_sync,
                                       .in_warmup = now.in_warmup ? 1 : 0,
                                       .wishes = ToWishes(now.wishes),
                                       .rendezvous = now.rendezvous,
                                       .metric = now.metric,
                                       .rejections = now.rejections,
                                       .rollbacks = now.rollbacks,
                                       .replicas = now.replicas,
                                       .losses = static_cast<int32_t>(now.losses),
                                       .short_rounds = now.short_rounds,
                                       .joins = now.joins,
                                       .replica = now.replica,
                                       .most_replicas = now.most_replicas,
                                       .repairs = now.repairs,
                                       .missed = now.missed};
    return WriteStruct(&known, sizeof(known), info, "entrain_edit_info_t");
  });
}

entrain_status_t entrain_edit_loss(const entrain_edit_t* edit, int32_t index, int32_t* replica,
                                   int64_t* rendezvous, char* text, size_t bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    const std::vector<entrain::ReplicaLoss> all = edit->edit->results().losses();
    if (index < 0 || static_cast<size_t>(index) >= all.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("index ", index, " is not one of ", all.size(), " losses"));
    }
    const entrain::ReplicaLoss& one = all[static_cast<size_t>(index)];
    if (replica != nullptr) {
      *replica = one.replica;
    }
    if (rendezvous != nullptr) {
      *rendezvous = one.rendezvous;
    }
    WriteText(one.why, text, bytes);
    return absl::OkStatus();
  });
}

entrain_status_t entrain_edit_anchor(const entrain_edit_t* edit, void* anchor,
                                     entrain_dtype_t dtype) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    ENTRAIN_RETURN_IF_ERROR(CheckConvertible(dtype));
    const int64_t bytes = edit->slab_count * SizeOf(DType{dtype});
    ENTRAIN_RETURN_IF_ERROR(CheckHostBuffer("anchor", anchor, bytes, DType{dtype}));
    return edit->edit->CopyAnchor(anchor, DType{dtype});
  });
}

entrain_status_t entrain_edit_layer_report(const entrain_edit_t* edit, int32_t layer, double* norms,
                                           double* weights, double* clip_factor) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(edit, layer));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::LayerReport report, edit->edit->Report(layer));
    CopyTo(norms, report.norms);
    CopyTo(weights, report.weights);
    if (clip_factor != nullptr) {
      *clip_factor = report.clip_factor;
    }
    return absl::OkStatus();
  });
}

entrain_status_t entrain_edit_layer_score(const entrain_edit_t* edit, int32_t layer, double* z,
                                          double* limit) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckLayer(edit, layer));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::LayerReport report, edit->edit->Report(layer));
    if (z != nullptr) {
      *z = report.score.z;
    }
    if (limit != nullptr) {
      *limit = report.score.limit;
    }
    return absl::OkStatus();
  });
}

}  // extern "C"
