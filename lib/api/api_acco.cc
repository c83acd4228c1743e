// Implements the functions of train.h for ACCO.
#include <cstdint>
#include <memory>
#include <tuple>
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
using entrain::ChannelInfo;
using entrain::ChannelOptions;
using entrain::Deadline;
using entrain::DType;
using entrain::GradientChannel;
using entrain::ParameterGroup;

namespace {

// Returns the checked `dtype`. If `dtype` is -1, returns `usual`.
absl::StatusOr<DType> ToDType(int32_t dtype, DType usual) {
  if (dtype == -1) {
    return usual;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckDType(static_cast<entrain_dtype_t>(dtype)));
  return DType{dtype};
}

// Returns the object of the handle, or null if `optim` is null.
absl::StatusOr<std::shared_ptr<const entrain::Optimizer>> OptimizerOf(const entrain_optim_t* optim,
                                                                      const std::string& name) {
  if (optim == nullptr) {
    return nullptr;
  }
  ENTRAIN_RETURN_IF_ERROR(NotNull(optim, name.c_str()));
  ENTRAIN_RETURN_IF_ERROR(CheckStepsAlone(*optim, name));
  if (optim->place.memory != ENTRAIN_MEMORY_HOST) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": its memory is ", optim->place.memory,
                     ", and ACCO steps in host memory: make the optimizer with "
                     "ENTRAIN_MEMORY_HOST"));
  }
  return optim->optimizer;
}

absl::StatusOr<std::vector<ParameterGroup>> ToGroups(const entrain_acco_config_t& config) {
  if ((config.groups == nullptr) != (config.group_count == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_count ", config.group_count,
                     config.groups == nullptr
                         ? " without groups, which are NULL: set both"
                         : " of groups leaves none: set it to 1 or more, or groups to NULL"));
  }
  std::vector<ParameterGroup> groups;
  for (size_t i = 0; i < config.group_count; ++i) {
    const entrain_acco_group_t& group = config.groups[i];
    ParameterGroup& one = groups.emplace_back();
    for (const auto& [name, value, to] :
         {std::make_tuple("first", group.first, &one.first), {"count", group.count, &one.count}}) {
      if (value > config.count) {
        return absl::InvalidArgumentError(
            absl::StrCat("groups[", i, "].", name, ": ", value, " is above count ", config.count));
      }
      *to = static_cast<int64_t>(value);
    }
    ENTRAIN_ASSIGN_OR_RETURN(one.optimizer,
                             OptimizerOf(group.optim, absl::StrCat("groups[", i, "].optim")));
    one.lr_scale = group.lr_scale;
  }
  return groups;
}

// Converts the config. Checks the values of C enumerations and types, because GradientChannel does
// not see these values. GradientChannel checks everything else.
absl::StatusOr<ChannelOptions> ToChannelOptions(const entrain_acco_config_t& config,
                                                const entrain::Communicator& comm) {
  ENTRAIN_RETURN_IF_ERROR(CheckCopyable<AccoRows>(config));
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(config.timeout_ns));
  ChannelOptions options;
  AccoRows::Copy(config, &options);
  ENTRAIN_ASSIGN_OR_RETURN(options.params_dtype, ToDType(config.params_dtype, DType::kF32));
  ENTRAIN_ASSIGN_OR_RETURN(options.grads_dtype, ToDType(config.grads_dtype, options.params_dtype));
  ENTRAIN_ASSIGN_OR_RETURN(options.wire_dtype, ToDType(config.wire_dtype, options.params_dtype));
  ENTRAIN_ASSIGN_OR_RETURN(options.count, CheckCount(config.count, options.params_dtype, 1));
  ENTRAIN_RETURN_IF_ERROR(CheckHostBuffer(
      "params", config.params, options.count * SizeOf(options.params_dtype), options.params_dtype));
  options.params = config.params;
  options.schedule = config.schedule;
  options.schedule_user = config.schedule_user;
  ENTRAIN_ASSIGN_OR_RETURN(options.optimizer, OptimizerOf(config.optim, "config.optim"));
  options.step = config.step;
  options.user = config.user;
  ENTRAIN_ASSIGN_OR_RETURN(options.groups, ToGroups(config));
  ENTRAIN_ASSIGN_OR_RETURN(
      AdmissionPlace newcomers,
      AdmissionPlaceOf(options.admit != entrain::Admit::kNone, config.admit_store,
                       config.admit_name, "acco", comm.runtime().security()));
  options.admit_store = std::move(newcomers.store);
  options.admit_name = std::move(newcomers.name);
  options.identity_text = IdentityOf(config.identity);
  ENTRAIN_ASSIGN_OR_RETURN(options.identity, entrain::ParseIdentity(options.identity_text));
  return options;
}

// Checks the config and creates the handle. `make` creates the GradientChannel.
template <typename MakeChannel>
absl::Status MakeAcco(entrain_comm_t* comm, const entrain_acco_config_t* config,
                      entrain_acco_t** acco, const MakeChannel& make) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
  entrain_acco_config_t known;
  entrain_acco_config_init(&known);
  ENTRAIN_RETURN_IF_ERROR(
      entrain::CopyStruct(config, &known, sizeof(known), "entrain_acco_config_t"));
  ENTRAIN_RETURN_IF_ERROR(NotNull(acco, "acco"));
  const std::shared_ptr<entrain::Communicator> shared =
      comm->comm;  // keeps it alive if another thread destroys the handle
  ENTRAIN_ASSIGN_OR_RETURN(const ChannelOptions options, ToChannelOptions(known, *shared));
  ENTRAIN_ASSIGN_OR_RETURN(auto made, make(*shared, options));
  *acco = new entrain_acco{.channel = std::move(made),
                           .calls = std::make_shared<StartedCalls>(*shared)};
  return absl::OkStatus();
}

// Runs a call of the training loop. If the call fails, tells the other ranks the error, because
// they may wait for this rank, and this rank may exit.
template <typename Body>
entrain_status_t GuardCall(const char* function, entrain_acco_t* acco, const Body& body,
                           Does does = Does::kWait) {
  return Guard(function, does, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(acco, "acco"));
    const absl::Status status = body();
    if (!status.ok()) {
      acco->channel->Refused(entrain::Annotate(status, function));
    }
    return status;
  });
}

}  // namespace

extern "C" {

entrain_status_t entrain_acco_create(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                     entrain_acco_t** acco) {
  return Guard(__func__, Does::kWait,
               [&] { return MakeAcco(comm, config, acco, GradientChannel::Create); });
}

entrain_status_t entrain_acco_join(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                   int64_t wait_ns, entrain_acco_t** acco) {
  return Guard(__func__, Does::kWait, [&] {
    return MakeAcco(comm, config, acco,
                    [wait_ns](entrain::Communicator& own, const ChannelOptions& options) {
                      auto joined = GradientChannel::Join(own, options, wait_ns);
                      if (joined.ok()) {
                        TellLauncherOfJoin(own.runtime().security());
                      }
                      return joined;
                    });
  });
}

void entrain_acco_destroy(entrain_acco_t* acco) {
  Destroy(__func__, acco, Does::kStart);
}

entrain_status_t entrain_acco_gradients(entrain_acco_t* acco, void** gradients) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(acco, "acco"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(gradients, "gradients"));
    *gradients = acco->channel->gradients();
    return absl::OkStatus();
  });
}

entrain_status_t entrain_acco_add(entrain_acco_t* acco, int64_t microbatches, int64_t tokens) {
  return GuardCall(
      __func__, acco, [&]() -> absl::Status { return acco->channel->Add(microbatches, tokens); },
      Does::kStart);
}

entrain_status_t entrain_acco_poll(entrain_acco_t* acco, int32_t* ready) {
  return GuardCall(
      __func__, acco,
      [&]() -> absl::Status {
        ENTRAIN_RETURN_IF_ERROR(NotNull(ready, "ready"));
        ENTRAIN_ASSIGN_OR_RETURN(const bool is, acco->channel->Poll());
        *ready = is ? 1 : 0;
        return absl::OkStatus();
      },
      Does::kStart);
}

entrain_status_t entrain_acco_install(entrain_acco_t* acco, int32_t* finished) {
  return GuardCall(__func__, acco, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(finished, "finished"));
    ENTRAIN_RETURN_IF_ERROR(acco->channel->Install());
    *finished = acco->channel->info().finished ? 1 : 0;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_acco_work(entrain_acco_t* acco, entrain_work_t** work) {
  return GuardCall(
      __func__, acco,
      [&]() -> absl::Status {
        return WatchOn(acco, "acco_round", -1, work, [&](entrain::Worker::Continuation then) {
          return acco->channel->WhenReady(std::move(then));
        });
      },
      Does::kStart);
}

entrain_status_t entrain_acco_stop(entrain_acco_t* acco) {
  return GuardCall(
      __func__, acco, [&]() -> absl::Status { return acco->channel->Stop(); }, Does::kStart);
}

entrain_status_t entrain_acco_info(const entrain_acco_t* acco, entrain_acco_info_t* info) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(acco, "acco"));
    const ChannelInfo now = acco->channel->info();
    entrain_acco_info_t known;
    entrain_acco_info_init(&known);
    known.rounds = now.rounds;
    known.commits = now.commits;
    known.gradients = now.gradients;
    known.tokens = now.tokens;
    known.dropped = now.dropped;
    known.microbatches = now.microbatches;
    known.lr = now.lr;
    known.grad_norm = now.grad_norm;
    known.clip_factor = now.clip_factor;
    known.committed = now.committed ? 1 : 0;
    known.finished = now.finished ? 1 : 0;
    known.exposed_ns = now.exposed_ns;
    known.round_ns = now.round_ns;
    known.bytes_sent = now.bytes_sent;
    known.bytes_held = now.bytes_held;
    known.ranks = static_cast<int32_t>(now.ranks);
    known.losses = static_cast<int32_t>(now.losses);
    known.joins = now.joins;
    return WriteStruct(&known, sizeof(known), info, "entrain_acco_info_t");
  });
}

entrain_status_t entrain_acco_loss(const entrain_acco_t* acco, int32_t index, int32_t* rank,
                                   int64_t* round, char* text, size_t bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(acco, "acco"));
    const std::vector<entrain::ChannelLoss> all = acco->channel->losses();
    if (index < 0 || static_cast<size_t>(index) >= all.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("index ", index, " is not one of ", all.size(), " losses"));
    }
    const entrain::ChannelLoss& one = all[static_cast<size_t>(index)];
    if (rank != nullptr) {
      *rank = one.rank;
    }
    if (round != nullptr) {
      *round = one.round;
    }
    WriteText(one.why, text, bytes);
    return absl::OkStatus();
  });
}

}  // extern "C"
