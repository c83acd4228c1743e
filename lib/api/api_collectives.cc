// collectives.h: the collectives, send and recv, started calls, reductions. Each call becomes one
// entrain::Call.
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "include/entrain/collectives.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

namespace entrain::api {
namespace {

constexpr int64_t kMaxUserTag = (1 << 20) - 2;

// One call as the C function got it.
struct Request {
  const char* function;
  CallKind kind;
  entrain_comm_t* comm;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  entrain_dtype_t dtype = ENTRAIN_U8;
  entrain_op_t op = ENTRAIN_SUM;
  int32_t root = 0;  // or the peer
  const entrain_call_options_t* options = nullptr;
  entrain_work_t** work = nullptr;
};

bool Reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduceScatter;
}

absl::Status CheckOptions(const entrain_call_options_t& options) {
  if (options.tag < -1 || options.tag > kMaxUserTag) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.tag ", options.tag, " is not -1 or 0 to ", kMaxUserTag));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(options.timeout_ns));
  if (options.wait != ENTRAIN_WAIT_FOREGROUND && options.wait != ENTRAIN_WAIT_BACKGROUND) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.wait ", options.wait, " is not an ENTRAIN_WAIT_* value"));
  }
  if (options.memory < ENTRAIN_MEMORY_HOST || options.memory > ENTRAIN_MEMORY_HOST_PINNED) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.memory ", options.memory, " is not an ENTRAIN_MEMORY_* value"));
  }
  if (options.memory != ENTRAIN_MEMORY_HOST) {
    return absl::UnimplementedError(
        absl::StrCat("options.memory ", options.memory, ": this build has host memory only"));
  }
  if (options.stream != nullptr) {
    return absl::InvalidArgumentError(
        "options.stream is not NULL, but options.memory is host memory");
  }
  return absl::OkStatus();
}

absl::Status ApplyOptions(const entrain_call_options_t& options, Call* call) {
  ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
  call->options.user_tag = options.tag;
  call->options.background = options.wait == ENTRAIN_WAIT_BACKGROUND;
  if (options.timeout_ns > 0) {
    call->options.timeout_ns = options.timeout_ns;
    call->options.deadline = Deadline::After(options.timeout_ns);
  }
  return absl::OkStatus();
}

absl::Status ApplyReduction(const Request& request, const entrain_reduction_t* reduction,
                            Call* call) {
  if (request.op == ENTRAIN_REDUCTION) {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "options.reduction"));
    call->reduction = reduction->reduction;
  } else if (IsOp(request.op)) {
    call->reduction.op = ReduceOp{request.op};
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("op ", request.op, " is not a reduction operator"));
  }
  return CheckReduction(call->reduction.op, call->dtype);
}

// Elements of the larger buffer for each element of `count`.
int64_t InParts(CallKind kind, int size) {
  return kind == CallKind::kReduceScatter ? size : kind == CallKind::kRecv ? 0 : 1;
}
int64_t OutParts(CallKind kind, int size) {
  return kind == CallKind::kAllGather ? size : kind == CallKind::kSend ? 0 : 1;
}

// `in` and `out` may share memory only in the way the call documents: they begin at the same
// element.
absl::Status CheckApart(const Call& call, int rank) {
  if (!Overlap(call.in.data, call.in.bytes, call.out.data, call.out.bytes)) {
    return absl::OkStatus();
  }
  const int64_t part = rank * call.count * SizeOf(call.dtype);
  const char* in =
      static_cast<const char*>(call.in.data) + (call.kind == CallKind::kReduceScatter ? part : 0);
  const char* out =
      static_cast<const char*>(call.out.data) + (call.kind == CallKind::kAllGather ? part : 0);
  if (in != out) {
    return absl::InvalidArgumentError(absl::StrCat(
        "in (", call.in.bytes, " bytes) and out (", call.out.bytes,
        " bytes) overlap by other than being ",
        call.in.bytes == call.out.bytes ? "the same buffer" : "this rank's part of each other"));
  }
  return absl::OkStatus();
}

absl::Status ApplyBuffers(const Request& request, Call* call, int rank, int size) {
  ENTRAIN_RETURN_IF_ERROR(CheckDType(request.dtype));
  call->dtype = DType{request.dtype};
  const int64_t in_parts = InParts(call->kind, size);
  const int64_t out_parts = OutParts(call->kind, size);
  ENTRAIN_ASSIGN_OR_RETURN(call->count,
                           CheckCount(request.count, call->dtype, std::max(in_parts, out_parts)));
  const int64_t bytes = call->count * SizeOf(call->dtype);
  call->in = {const_cast<void*>(request.in), in_parts * bytes, MemoryKind::kHost};
  call->out = {request.out, out_parts * bytes, MemoryKind::kHost};
  const char* in_name = call->kind == CallKind::kBroadcast ? "buffer" : "in";
  ENTRAIN_RETURN_IF_ERROR(CheckBuffer(in_name, call->in.data, call->in.bytes, call->dtype));
  ENTRAIN_RETURN_IF_ERROR(CheckBuffer("out", call->out.data, call->out.bytes, call->dtype));
  return CheckApart(*call, rank);
}

absl::Status ApplyRoot(const Request& request, Call* call, int rank, int size) {
  call->root = request.root;
  if (call->kind == CallKind::kBroadcast) {
    return CheckRank("root", request.root, size);
  }
  if (call->kind == CallKind::kSend || call->kind == CallKind::kRecv) {
    ENTRAIN_RETURN_IF_ERROR(CheckRank("peer", request.root, size));
    if (request.root == rank) {
      return absl::InvalidArgumentError(
          absl::StrCat("peer ", request.root, " is this rank itself"));
    }
  }
  return absl::OkStatus();
}

// Everything that can be known to be wrong without another rank.
absl::Status ToCall(const Request& request, Call* call) {
  call->kind = request.kind;
  entrain_reduction_t* reduction = nullptr;
  if (request.options != nullptr) {
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    ENTRAIN_RETURN_IF_ERROR(
        CopyStruct(request.options, &options, sizeof(options), "entrain_call_options_t"));
    ENTRAIN_RETURN_IF_ERROR(ApplyOptions(options, call));
    reduction = options.reduction;
  }
  if (call->kind == CallKind::kBarrier) {
    return absl::OkStatus();
  }
  const int rank = request.comm->comm->rank();
  const int size = request.comm->comm->size();
  ENTRAIN_RETURN_IF_ERROR(ApplyRoot(request, call, rank, size));
  ENTRAIN_RETURN_IF_ERROR(ApplyBuffers(request, call, rank, size));
  return Reduces(call->kind) ? ApplyReduction(request, reduction, call) : absl::OkStatus();
}

// A refused call has no number, but its record says what it was.
absl::Status Refused(const Request& request, const Call& call, const absl::Status& why) {
  Blame blame = BlameOf(why);
  const absl::string_view name = NameOf(request.kind);
  blame.operation.assign(name.data(), name.size());
  blame.tag = call.options.user_tag;
  blame.phase = Phase::kCheck;
  return WithBlame(why, blame);
}

entrain_status_t Submit(const Request& request) {
  return Guard(request.function, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(request.comm, "comm"));
    Call call;
    if (absl::Status checked = ToCall(request, &call); !checked.ok()) {
      return Refused(request, call, checked);
    }
    Communicator& comm = *request.comm->comm;
    if (request.work == nullptr) {
      return comm.Run(call);
    }
    ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work, comm.Start(call));
    *request.work = ToHandle(std::move(work), call.options.background);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace entrain::api

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::CallKind;
using entrain::Deadline;
using entrain::ReduceOp;

extern "C" {

void entrain_call_options_init(entrain_call_options_t* options) {
  *options = {};
  options->size = sizeof(*options);
  options->tag = -1;
}

entrain_status_t entrain_reduction_builtin(entrain_op_t op, entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (!IsOp(op)) {
      return absl::InvalidArgumentError(absl::StrCat("op ", op, " is not a built-in operator"));
    }
    *reduction = new entrain_reduction{{.op = ReduceOp{op}}};
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_user(entrain_reduce_fn combine, void* user, uint32_t signature,
                                        int32_t commutative, entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(combine), "combine"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    *reduction = new entrain_reduction{{.op = ReduceOp::kCustom,
                                        .combine = combine,
                                        .user = user,
                                        .signature = signature,
                                        .commutative = commutative != 0}};
    return absl::OkStatus();
  });
}

void entrain_reduction_destroy(entrain_reduction_t* reduction) {
  delete reduction;
}

entrain_status_t entrain_all_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                    entrain_dtype_t dtype, entrain_op_t op,
                                    const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit(
      {__func__, CallKind::kAllReduce, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_reduce_scatter(entrain_comm_t* comm, const void* in, void* out,
                                        size_t count, entrain_dtype_t dtype, entrain_op_t op,
                                        const entrain_call_options_t* options,
                                        entrain_work_t** work) {
  return Submit(
      {__func__, CallKind::kReduceScatter, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_all_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                    entrain_dtype_t dtype, const entrain_call_options_t* options,
                                    entrain_work_t** work) {
  return Submit(
      {__func__, CallKind::kAllGather, comm, in, out, count, dtype, ENTRAIN_SUM, 0, options, work});
}

entrain_status_t entrain_broadcast(entrain_comm_t* comm, void* buffer, size_t count,
                                   entrain_dtype_t dtype, int32_t root,
                                   const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit({__func__, CallKind::kBroadcast, comm, buffer, buffer, count, dtype, ENTRAIN_SUM,
                 root, options, work});
}

entrain_status_t entrain_barrier(entrain_comm_t* comm, const entrain_call_options_t* options,
                                 entrain_work_t** work) {
  return Submit({.function = __func__,
                 .kind = CallKind::kBarrier,
                 .comm = comm,
                 .options = options,
                 .work = work});
}

entrain_status_t entrain_send(entrain_comm_t* comm, const void* in, size_t count,
                              entrain_dtype_t dtype, int32_t peer,
                              const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit({__func__, CallKind::kSend, comm, in, nullptr, count, dtype, ENTRAIN_SUM, peer,
                 options, work});
}

entrain_status_t entrain_recv(entrain_comm_t* comm, void* out, size_t count, entrain_dtype_t dtype,
                              int32_t peer, const entrain_call_options_t* options,
                              entrain_work_t** work) {
  return Submit({__func__, CallKind::kRecv, comm, nullptr, out, count, dtype, ENTRAIN_SUM, peer,
                 options, work});
}

entrain_status_t entrain_work_test(entrain_work_t* work, int32_t* done) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(done, "done"));
    const bool over = ToWork(work)->Test();
    *done = over ? 1 : 0;
    return over ? ToWork(work)->status() : absl::OkStatus();
  });
}

entrain_status_t entrain_work_wait(entrain_work_t* work, int64_t timeout_ns) {
  bool over = true;
  const entrain_status_t code = Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    const Deadline give_up = timeout_ns < 0 ? Deadline::Never() : Deadline::After(timeout_ns);
    over = ToWork(work)->Wait(give_up, WaitsInBackground(work));
    return over ? ToWork(work)->status() : absl::OkStatus();
  });
  return over ? code : ENTRAIN_IN_PROGRESS;
}

entrain_status_t entrain_work_error(const entrain_work_t* work, entrain_error_t* error) {
  bool over = true;
  const entrain_status_t code = Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    over = ToWork(work)->done();
    if (!over) {
      return absl::OkStatus();
    }
    entrain_error_t record;
    ToRecord(ToWork(work)->status(), Reach::kByCode, &record);
    return WriteStruct(&record, sizeof(record), error, "entrain_error_t");
  });
  return over ? code : ENTRAIN_IN_PROGRESS;
}

void entrain_work_free(entrain_work_t* work) {
  if (work != nullptr && !Forked()) {
    ToWork(work)->Release();
  }
}

}  // extern "C"
