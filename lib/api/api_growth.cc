// Implements the functions of comm.h that grow a communicator and join one.
#include <memory>
#include <utility>

#include "include/entrain/comm.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/environment.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::Communicator;
using entrain::GrowOptions;
using entrain::Stop;
using entrain::Store;

namespace {

absl::StatusOr<std::shared_ptr<Store>> StoreOf(const entrain_store_t* store, const char* name) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(store, name));
  return store->store;
}

absl::StatusOr<GrowOptions> ToGrowOptions(const entrain_grow_config_t& config,
                                          entrain_comm_t* comm) {
  GrowOptions options;
  options.min_newcomers = config.min_newcomers;
  options.max_newcomers = config.max_newcomers;
  options.wait_ns = config.wait_ns;
  options.timeout_ns = config.timeout_ns;
  if (config.store != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(auto store, StoreOf(config.store, "config.store"));
    options.store = [store = std::move(store)](const Stop&) { return store; };
    return options;
  }
  const entrain::Security security = comm->comm->runtime().security();
  options.store = [comm, security](const Stop& stop) -> absl::StatusOr<std::shared_ptr<Store>> {
    if (comm->store == nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(comm->store, StoreFromEnvironment(security, stop));
    }
    return comm->store;
  };
  return options;
}

absl::StatusOr<entrain::JoinOptions> ToJoinOptions(const entrain_join_config_t& config) {
  entrain_comm_config_t common;
  entrain_comm_config_init(&common);
  common.runtime = config.runtime;
  common.name = config.name;
  common.algorithms = config.algorithms;
  common.timeout_ns = config.timeout_ns;
  common.tuning = config.tuning;
  common.determinism = config.determinism;
  common.reserved = config.reserved;
  entrain::JoinOptions options;
  ENTRAIN_ASSIGN_OR_RETURN(options.comm, ToCommOptions(common));
  options.wait_ns = config.wait_ns;
  if (config.store != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(options.comm.store, StoreOf(config.store, "config.store"));
    return options;
  }
  const int64_t wait_ns = config.wait_ns > 0 ? config.wait_ns : options.comm.timeout_ns;
  ENTRAIN_ASSIGN_OR_RETURN(
      options.comm.store,
      StoreFromEnvironment(options.comm.runtime->security(), {entrain::Deadline::After(wait_ns)}));
  return options;
}

}  // namespace

extern "C" {

entrain_status_t entrain_comm_grow(entrain_comm_t* comm, const entrain_grow_config_t* config,
                                   entrain_comm_t** grown) {
  Reach reach = Reach::kByCode;
  return Guard(__func__, reach, Does::kWait, [&]() -> absl::Status {
    entrain_grow_config_t known;
    entrain_grow_config_init(&known);
    if (config != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(
          entrain::CopyStruct(config, &known, sizeof(known), "entrain_grow_config_t"));
    }
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(grown, "grown"));
    const std::shared_ptr<Communicator> kept = comm->comm;
    ENTRAIN_ASSIGN_OR_RETURN(const GrowOptions options, ToGrowOptions(known, comm));
    auto made = kept->Grow(options);
    if (!made.ok()) {
      // The next call opens the store anew: another server may be at its address by then.
      comm->store = nullptr;
      // If the communicator still works, only the call has failed, for example because of a
      // newcomer.
      reach = kept->status().ok() ? Reach::kCall : Reach::kByCode;
      return made.status();
    }
    *grown = *made == nullptr ? nullptr
                              : new entrain_comm{.comm = *std::move(made), .store = comm->store};
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_join(const entrain_join_config_t* config, entrain_comm_t** comm) {
  return Guard(__func__, Reach::kCall, Does::kWait, [&]() -> absl::Status {
    entrain_join_config_t known;
    entrain_join_config_init(&known);
    if (config != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(
          entrain::CopyStruct(config, &known, sizeof(known), "entrain_join_config_t"));
    }
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::JoinOptions options, ToJoinOptions(known));
    ENTRAIN_ASSIGN_OR_RETURN(auto joined, Communicator::Join(options));
    TellLauncherOfJoin(joined->runtime().security());
    *comm = new entrain_comm{.comm = std::move(joined)};
    return absl::OkStatus();
  });
}

}  // extern "C"
