// Implements the functions of comm.h for versions, error records, runtimes and communicators.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "include/entrain/comm.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/environment.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/dtype.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/flight/flight_log.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::Communicator;
using entrain::Deadline;
using entrain::DType;

namespace {

absl::Status Create(const entrain::CommOptions& options, entrain_comm_t** comm) {
  ENTRAIN_ASSIGN_OR_RETURN(auto created, Communicator::Create(options));
  *comm = new entrain_comm{.comm = std::move(created)};
  return absl::OkStatus();
}

absl::Status Join(const entrain::CommOptions& options, entrain_comm_t** comm) {
  ENTRAIN_ASSIGN_OR_RETURN(auto joined, Communicator::Join({.comm = options}));
  entrain::SetLogRank(joined->rank());
  *comm = new entrain_comm{.comm = std::move(joined)};
  return absl::OkStatus();
}

// As ToCommOptions, for a communicator from the environment. If the options or the default runtime
// cannot be made, tells the other ranks.
absl::StatusOr<entrain::CommOptions> OptionsOrTell(const entrain_comm_config_t& config) {
  absl::StatusOr<entrain::CommOptions> options = ToCommOptions(config);
  const std::string name = config.name != nullptr ? config.name : entrain::CommOptions().name;
  if (!options.ok() && config.runtime == nullptr && CheckName(name).ok()) {
    TellOthers(name, options.status());
  }
  return options;
}

absl::Status CheckSplit(const entrain_comm_t* comm, int32_t color) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
  return color >= -1
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("color ", color, " is less than -1"));
}

absl::Status ToPart(absl::StatusOr<std::shared_ptr<Communicator>> made, entrain_comm_t** part) {
  ENTRAIN_RETURN_IF_ERROR(made.status());
  *part = *made == nullptr ? nullptr : new entrain_comm{.comm = *std::move(made)};
  return absl::OkStatus();
}

// `name`: the name of the argument `part`.
absl::Status Split(const entrain_comm_t* comm, int32_t color, int32_t key, const char* name,
                   entrain_comm_t** part, entrain_work_t** work) {
  if (work == nullptr) {
    ENTRAIN_RETURN_IF_ERROR(NotNull(static_cast<const void*>(part), name));
    return ToPart(comm->comm->Split(color, key), part);
  }
  if (part != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " and work are both given; expected ", name,
                     " to be NULL, because entrain_comm_split_finish gives the communicator"));
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto split, comm->comm->StartSplit(color, key));
  *work = ToHandle(std::move(split), /*background=*/false);
  return absl::OkStatus();
}

}  // namespace

extern "C" {

int32_t entrain_version(void) {
  return ENTRAIN_VERSION_MAJOR * 10000 + ENTRAIN_VERSION_MINOR * 100 + ENTRAIN_VERSION_PATCH;
}

const char* entrain_status_name(entrain_status_t status) {
  return entrain::CodeName(status);
}

const char* entrain_dtype_name(entrain_dtype_t dtype) {
  return entrain::IsValid(DType{dtype}) ? entrain::NameOf(DType{dtype}).data() : nullptr;
}

size_t entrain_dtype_size(entrain_dtype_t dtype) {
  return entrain::IsValid(DType{dtype}) ? static_cast<size_t>(entrain::SizeOf(DType{dtype})) : 0;
}

const char* entrain_op_name(entrain_op_t op) {
  return IsOp(op) ? entrain::NameOf(entrain::ReduceOp{op}).data() : nullptr;
}

const char* entrain_last_error(void) {
  return LastError().text;
}

// Changes the last error only if this function itself fails.
entrain_status_t entrain_last_error_record(entrain_error_t* error) {
  return Guard(__func__, [&] { return WriteError(LastError(), error); });
}

entrain_status_t entrain_runtime_create(const entrain_runtime_config_t* config,
                                        entrain_runtime_t** runtime) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(runtime, "runtime"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::RuntimeOptions options, ToRuntimeOptions(config));
    ENTRAIN_ASSIGN_OR_RETURN(auto created, entrain::Runtime::Create(options));
    *runtime = new entrain_runtime{.runtime = std::move(created)};
    return absl::OkStatus();
  });
}

void entrain_runtime_destroy(entrain_runtime_t* runtime) {
  Destroy(__func__, runtime, Does::kStart);
}

entrain_status_t entrain_runtime_peer_id(const entrain_runtime_t* runtime, entrain_peer_id_t* id) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(runtime, "runtime"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(id, "id"));
    std::memcpy(id->bytes, runtime->runtime->id().data(), sizeof(id->bytes));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_create(const entrain_comm_config_t* config, entrain_comm_t** comm) {
  return Guard(__func__, Does::kWait, [&]() -> absl::Status {
    entrain_comm_config_t known;
    entrain_comm_config_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_comm_config_t"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(known.store, "config.store"));
    if (known.world_size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("world_size ", known.world_size, " is less than 1"));
    }
    ENTRAIN_RETURN_IF_ERROR(CheckRank("rank", known.rank, known.world_size));
    ENTRAIN_ASSIGN_OR_RETURN(entrain::CommOptions options, ToCommOptions(known));
    options.store = known.store->store;
    options.rank = known.rank;
    options.size = known.world_size;
    return Create(options, comm);
  });
}

entrain_status_t entrain_comm_create_from_env(const entrain_comm_config_t* config,
                                              entrain_comm_t** comm) {
  return Guard(__func__, Does::kWait, [&]() -> absl::Status {
    entrain_comm_config_t known;
    entrain_comm_config_init(&known);
    if (config != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(
          entrain::CopyStruct(config, &known, sizeof(known), "entrain_comm_config_t"));
    }
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_ASSIGN_OR_RETURN(entrain::CommOptions options, OptionsOrTell(known));
    ENTRAIN_ASSIGN_OR_RETURN(Place place,
                             PlaceFromEnvironment(options.runtime->security(), options.timeout_ns));
    options.store = place.store;
    options.rank = place.rank;
    options.size = place.size;
    entrain::SetLogRank(place.rank);
    ENTRAIN_RETURN_IF_ERROR(place.restarts.value_or(0) > 0 ? Join(options, comm)
                                                           : Create(options, comm));
    TellLauncher(place);
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_split(entrain_comm_t* comm, int32_t color, int32_t key,
                                    entrain_comm_t** part, entrain_work_t** work) {
  return Guard(__func__, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckSplit(comm, color));
    return Split(comm, color, key, "part", part, work);
  });
}

entrain_status_t entrain_comm_duplicate(entrain_comm_t* comm, entrain_comm_t** copy,
                                        entrain_work_t** work) {
  return Guard(__func__, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    return Split(comm, 0, comm->comm->rank(), "copy", copy, work);
  });
}

entrain_status_t entrain_comm_split_finish(entrain_work_t* work, entrain_comm_t** part) {
  bool over = true;
  const entrain_status_t code = Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(part, "part"));
    over = ToWork(work)->done();
    return over ? ToPart(Communicator::FinishSplit(*ToWork(work)), part) : absl::OkStatus();
  });
  return over ? code : ENTRAIN_IN_PROGRESS;
}

entrain_status_t entrain_comm_rank(const entrain_comm_t* comm, int32_t* rank) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(rank, "rank"));
    *rank = comm->comm->rank();
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_size(const entrain_comm_t* comm, int32_t* size) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(size, "size"));
    *size = comm->comm->size();
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_transport(const entrain_comm_t* comm, int32_t peer,
                                        const char** name) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(name, "name"));
    ENTRAIN_RETURN_IF_ERROR(CheckRank("peer", peer, comm->comm->size()));
    ENTRAIN_ASSIGN_OR_RETURN(*name, comm->comm->TransportTo(peer));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_algorithm(const entrain_comm_t* comm, const char* collective,
                                        size_t count, entrain_dtype_t dtype, const char** name) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(collective, "collective"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(name, "name"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::CallKind kind, CollectiveFromName(collective));
    ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t elements,
                             CheckCount(count, DType{dtype}, comm->comm->size()));
    ENTRAIN_ASSIGN_OR_RETURN(*name, comm->comm->AlgorithmFor(kind, elements, DType{dtype}));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_explain(const entrain_comm_t* comm, const char* collective,
                                      size_t count, entrain_dtype_t dtype, char* text,
                                      size_t bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(collective, "collective"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(text, "text"));
    if (bytes == 0) {
      return absl::InvalidArgumentError("bytes 0: no room for text");
    }
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::CallKind kind, CollectiveFromName(collective));
    ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t elements,
                             CheckCount(count, DType{dtype}, comm->comm->size()));
    ENTRAIN_ASSIGN_OR_RETURN(const std::string why,
                             comm->comm->Explain(kind, elements, DType{dtype}));
    text[why.copy(text, bytes - 1)] = '\0';
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_stats(const entrain_comm_t* comm, entrain_comm_stats_t* stats) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    const entrain::CommStats now = comm->comm->stats();
    const entrain_comm_stats_t known = {.size = sizeof(known),
                                        .calls = now.calls,
                                        .bytes_sent = now.bytes_sent,
                                        .bytes_received = now.bytes_received,
                                        .generation = comm->comm->generation(),
                                        .sequence = comm->comm->last_sequence()};
    return WriteStruct(&known, sizeof(known), stats, "entrain_comm_stats_t");
  });
}

entrain_status_t entrain_comm_set_timeout(entrain_comm_t* comm, int64_t timeout_ns) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(CheckPositiveTimeout(timeout_ns));
    comm->comm->SetTimeout(timeout_ns);
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_late(const entrain_comm_t* comm, int32_t* ranks, int32_t* count) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(count, "count"));
    if (*count < 0) {
      return absl::InvalidArgumentError(absl::StrCat("*count ", *count, " is negative"));
    }
    if (*count > 0) {
      ENTRAIN_RETURN_IF_ERROR(NotNull(ranks, "ranks"));
    }
    const entrain::Blame blame = entrain::BlameOf(comm->comm->status());
    std::copy_n(blame.late.begin(), std::min(static_cast<size_t>(*count), blame.late.size()),
                ranks);
    *count = blame.late_ranks;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_error(const entrain_comm_t* comm, entrain_error_t* error) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    absl::Status ended = comm->comm->status();
    if (error != nullptr) {
      entrain_error_t record;
      ToRecord(ended, Reach::kByCode, &record);
      if (!ended.ok()) {
        record.scope = ENTRAIN_SCOPE_COMM;  // whatever the code: the communicator has ended
      }
      ENTRAIN_RETURN_IF_ERROR(WriteError(record, error));
    }
    return ended;
  });
}

entrain_status_t entrain_comm_abort(entrain_comm_t* comm, const char* reason) {
  return Guard(__func__, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    comm->comm->Abort(reason == nullptr ? "no reason was given" : reason);
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_drain(entrain_comm_t* comm, int64_t timeout_ns) {
  bool drained = false;
  const entrain_status_t code = Guard(__func__, Does::kWait, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(CheckTimeout(timeout_ns));
    drained = comm->comm->Drain(Deadline::After(timeout_ns));
    return absl::OkStatus();
  });
  return code == ENTRAIN_OK && !drained ? ENTRAIN_IN_PROGRESS : code;
}

void entrain_comm_destroy(entrain_comm_t* comm) {
  if (comm == nullptr || Forked() || !NotNull(comm, "comm").ok() || !comm->lent) {
    Destroy(__func__, comm, Does::kStart);
  }
}

entrain_status_t entrain_flight_dump(const char* path) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    if (path != nullptr && *path == '\0') {
      return absl::InvalidArgumentError("path: the text is empty");
    }
    const absl::Status status = entrain::FlightLog::Get()
                                    .DumpTo(path == nullptr ? "" : path, "entrain_flight_dump")
                                    .status();
    return entrain::Annotate(status, "path");
  });
}

}  // extern "C"
