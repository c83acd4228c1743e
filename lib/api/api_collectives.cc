// Implements the collectives, send and recv of collectives.h. Converts each call to one
// entrain::Call (request.h).
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "include/entrain/collectives.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/request.h"
#include "lib/base/status.h"

namespace entrain::api {
namespace {

absl::Status AddToBatch(const Request& request, Call call, entrain_batch_t* batch) {
  if (request.work != nullptr) {
    return absl::InvalidArgumentError(
        "work is not NULL, but options.batch is given: the batch has the work");
  }
  ENTRAIN_RETURN_IF_ERROR(NotNull(batch, "options.batch"));
  if (batch->comm != request.comm->comm) {
    return absl::InvalidArgumentError("options.batch is of another communicator");
  }
  call.options.deadline = Deadline::Never();  // the time limit begins when the batch starts
  batch->calls.push_back(std::move(call));
  return absl::OkStatus();
}

// Makes all checks that can refuse a call. Adds the operation and its tag to the error.
absl::Status Check(const Request& request, Call* call, entrain_batch_t** batch) {
  absl::Status checked = ToCall(request, call, batch);
  if (checked.ok() && *batch == nullptr && request.work == nullptr) {
    checked = CallbackScope::Check(Does::kWait);
  }
  return checked.ok() ? checked : Refusal(*call, checked);
}

absl::Status StartCall(const Request& request, const Call& call) {
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work, request.comm->comm->Start(call));
  *request.work = ToHandle(std::move(work), call.options.background);
  return absl::OkStatus();
}

entrain_status_t MakeCall(const Request& request) {
  return Guard(request.function, Does::kStart, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(request.comm, "comm"));
    if (request.options == nullptr && request.work == nullptr && !request.uneven &&
        CallbackScope::Check(Does::kWait).ok()) {
      const CallKey key{request.kind, DType{request.dtype}, ReduceOp{request.op}, request.root,
                        static_cast<int64_t>(request.count)};
      if (auto status = request.comm->comm->RunAgain(key, request.in, request.out)) {
        return *std::move(status);
      }
    }
    Call call;
    call.kind = request.kind;
    call.root = request.root;
    entrain_batch_t* batch = nullptr;
    absl::Status status = Check(request, &call, &batch);
    if (status.ok() && batch == nullptr && request.work == nullptr) {
      return request.comm->comm->RunOrRefuse(call);  // request.comm may be destroyed during this
                                                     // call
    }
    if (status.ok()) {
      status = batch == nullptr ? StartCall(request, call) : AddToBatch(request, call, batch);
    }
    if (!status.ok()) {
      request.comm->comm->Refused(call, status);
    }
    return status;
  });
}

}  // namespace
}  // namespace entrain::api

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::CallKind;

extern "C" {

entrain_status_t entrain_all_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                    entrain_dtype_t dtype, entrain_op_t op,
                                    const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall(
      {__func__, CallKind::kAllReduce, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_reduce_scatter(entrain_comm_t* comm, const void* in, void* out,
                                        size_t count, entrain_dtype_t dtype, entrain_op_t op,
                                        const entrain_call_options_t* options,
                                        entrain_work_t** work) {
  return MakeCall(
      {__func__, CallKind::kReduceScatter, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_all_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                    entrain_dtype_t dtype, const entrain_call_options_t* options,
                                    entrain_work_t** work) {
  return MakeCall(
      {__func__, CallKind::kAllGather, comm, in, out, count, dtype, ENTRAIN_SUM, 0, options, work});
}

entrain_status_t entrain_broadcast(entrain_comm_t* comm, void* buffer, size_t count,
                                   entrain_dtype_t dtype, int32_t root,
                                   const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kBroadcast, comm, buffer, buffer, count, dtype, ENTRAIN_SUM,
                   root, options, work});
}

entrain_status_t entrain_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                entrain_dtype_t dtype, entrain_op_t op, int32_t root,
                                const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall(
      {__func__, CallKind::kReduce, comm, in, out, count, dtype, op, root, options, work});
}

entrain_status_t entrain_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                entrain_dtype_t dtype, int32_t root,
                                const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall(
      {__func__, CallKind::kGather, comm, in, out, count, dtype, ENTRAIN_SUM, root, options, work});
}

entrain_status_t entrain_scatter(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                 entrain_dtype_t dtype, int32_t root,
                                 const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kScatter, comm, in, out, count, dtype, ENTRAIN_SUM, root,
                   options, work});
}

entrain_status_t entrain_all_to_all(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                    entrain_dtype_t dtype, const entrain_call_options_t* options,
                                    entrain_work_t** work) {
  return MakeCall(
      {__func__, CallKind::kAllToAll, comm, in, out, count, dtype, ENTRAIN_SUM, 0, options, work});
}

entrain_status_t entrain_scan(entrain_comm_t* comm, const void* in, void* out, size_t count,
                              entrain_dtype_t dtype, entrain_op_t op,
                              const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kScan, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_exclusive_scan(entrain_comm_t* comm, const void* in, void* out,
                                        size_t count, entrain_dtype_t dtype, entrain_op_t op,
                                        const entrain_call_options_t* options,
                                        entrain_work_t** work) {
  return MakeCall(
      {__func__, CallKind::kExclusiveScan, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_all_gather_v(entrain_comm_t* comm, const void* in, void* out,
                                      const size_t* counts, entrain_dtype_t dtype,
                                      const entrain_call_options_t* options,
                                      entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kAllGather, comm, in, out, 0, dtype, ENTRAIN_SUM, 0, options,
                   work, true, counts, counts});
}

entrain_status_t entrain_reduce_scatter_v(entrain_comm_t* comm, const void* in, void* out,
                                          const size_t* counts, entrain_dtype_t dtype,
                                          entrain_op_t op, const entrain_call_options_t* options,
                                          entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kReduceScatter, comm, in, out, 0, dtype, op, 0, options,
                   work, true, counts, counts});
}

entrain_status_t entrain_gather_v(entrain_comm_t* comm, const void* in, size_t count, void* out,
                                  const size_t* counts, entrain_dtype_t dtype, int32_t root,
                                  const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kGather, comm, in, out, count, dtype, ENTRAIN_SUM, root,
                   options, work, true, nullptr, counts});
}

entrain_status_t entrain_scatter_v(entrain_comm_t* comm, const void* in, const size_t* counts,
                                   void* out, size_t count, entrain_dtype_t dtype, int32_t root,
                                   const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kScatter, comm, in, out, count, dtype, ENTRAIN_SUM, root,
                   options, work, true, counts, nullptr});
}

entrain_status_t entrain_all_to_all_v(entrain_comm_t* comm, const void* in, const size_t* in_counts,
                                      void* out, const size_t* out_counts, entrain_dtype_t dtype,
                                      const entrain_call_options_t* options,
                                      entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kAllToAll, comm, in, out, 0, dtype, ENTRAIN_SUM, 0, options,
                   work, true, in_counts, out_counts});
}

entrain_status_t entrain_barrier(entrain_comm_t* comm, const entrain_call_options_t* options,
                                 entrain_work_t** work) {
  return MakeCall({.function = __func__,
                   .kind = CallKind::kBarrier,
                   .comm = comm,
                   .options = options,
                   .work = work});
}

entrain_status_t entrain_send(entrain_comm_t* comm, const void* in, size_t count,
                              entrain_dtype_t dtype, int32_t peer,
                              const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kSend, comm, in, nullptr, count, dtype, ENTRAIN_SUM, peer,
                   options, work});
}

entrain_status_t entrain_recv(entrain_comm_t* comm, void* out, size_t count, entrain_dtype_t dtype,
                              int32_t peer, const entrain_call_options_t* options,
                              entrain_work_t** work) {
  return MakeCall({__func__, CallKind::kRecv, comm, nullptr, out, count, dtype, ENTRAIN_SUM, peer,
                   options, work});
}

entrain_status_t entrain_recv_any(entrain_comm_t* comm, void* out, size_t count,
                                  entrain_dtype_t dtype, int32_t* source,
                                  const entrain_call_options_t* options, entrain_work_t** work) {
  return MakeCall({.function = __func__,
                   .kind = CallKind::kRecvAny,
                   .comm = comm,
                   .out = out,
                   .count = count,
                   .dtype = dtype,
                   .root = -1,
                   .options = options,
                   .work = work,
                   .source = source});
}

}  // extern "C"
