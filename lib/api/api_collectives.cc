// collectives.h: the collectives, send and recv, started calls, reductions. Each call becomes one
// entrain::Call.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

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
  // The v-forms: elements by rank, `size` entries each.
  bool uneven = false;
  const size_t* in_counts = nullptr;
  const size_t* out_counts = nullptr;
};

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
  const bool prefix = call->kind == CallKind::kScan || call->kind == CallKind::kExclusiveScan;
  if (prefix && call->reduction.op == ReduceOp::kAvg) {
    return absl::InvalidArgumentError(
        absl::StrCat("op avg has no meaning in ", NameOf(call->kind), "; use sum"));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckReduction(call->reduction.op, call->dtype));
  const double factor = call->reduction.factor;
  if (!IsFloat(call->dtype) && factor != std::trunc(factor)) {
    return absl::InvalidArgumentError(absl::StrCat("options.reduction: factor ", factor,
                                                   " is not whole, but the elements are ",
                                                   NameOf(call->dtype)));
  }
  if (call->reduction.weights != nullptr) {
    const auto size = static_cast<size_t>(request.comm->comm->size());
    if (call->reduction.weights->size() != size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "options.reduction: ", call->reduction.weights->size(), " weights for ", size, " ranks"));
    }
    if (prefix) {
      return absl::InvalidArgumentError(absl::StrCat(
          "options.reduction: a weighted mean has no meaning in ", NameOf(call->kind)));
    }
  }
  return absl::OkStatus();
}

// How many parts of `count` elements the buffers have on this rank.
int64_t InParts(CallKind kind, int size, bool is_root) {
  switch (kind) {
    case CallKind::kReduceScatter:
    case CallKind::kAllToAll:
      return size;
    case CallKind::kScatter:
      return is_root ? size : 0;
    case CallKind::kRecv:
      return 0;
    default:
      return 1;
  }
}
int64_t OutParts(CallKind kind, int size, bool is_root) {
  switch (kind) {
    case CallKind::kAllGather:
    case CallKind::kAllToAll:
      return size;
    case CallKind::kGather:
      return is_root ? size : 0;
    case CallKind::kReduce:
      return is_root ? 1 : 0;
    case CallKind::kSend:
      return 0;
    default:
      return 1;
  }
}

int64_t SumOf(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// `in` and `out` may share memory only in the way the call documents: the own part of the one that has all parts is the
// other. `before`: elements before that part.
absl::Status CheckApart(const Call& call, int64_t before) {
  if (!Overlap(call.in.data, call.in.bytes, call.out.data, call.out.bytes)) {
    return absl::OkStatus();
  }
  const int64_t part = before * SizeOf(call.dtype);
  const bool of_in = call.kind == CallKind::kReduceScatter || call.kind == CallKind::kScatter;
  const bool of_out = call.kind == CallKind::kAllGather || call.kind == CallKind::kGather;
  const char* in = static_cast<const char*>(call.in.data) + (of_in ? part : 0);
  const char* out = static_cast<const char*>(call.out.data) + (of_out ? part : 0);
  if (in != out) {
    return absl::InvalidArgumentError(
        absl::StrCat("in (", call.in.bytes, " bytes) and out (", call.out.bytes,
                     " bytes) overlap by other than being ",
                     of_in || of_out ? "this rank's part of each other" : "the same buffer"));
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(const Call& call) {
  const char* in_name = call.kind == CallKind::kBroadcast ? "buffer" : "in";
  ENTRAIN_RETURN_IF_ERROR(CheckBuffer(in_name, call.in.data, call.in.bytes, call.dtype));
  return CheckBuffer("out", call.out.data, call.out.bytes, call.dtype);
}

absl::Status ApplyBuffers(const Request& request, Call* call, int rank, int size) {
  const bool is_root = rank == call->root;
  const int64_t in_parts = InParts(call->kind, size, is_root);
  const int64_t out_parts = OutParts(call->kind, size, is_root);
  // One count on all ranks, so also one limit: that of who has all the parts.
  const int64_t most = HasParts(call->kind) ? size : 1;
  ENTRAIN_ASSIGN_OR_RETURN(call->count, CheckCount(request.count, call->dtype, most));
  const int64_t bytes = call->count * SizeOf(call->dtype);
  call->in = {const_cast<void*>(request.in), in_parts * bytes, MemoryKind::kHost};
  call->out = {request.out, out_parts * bytes, MemoryKind::kHost};
  ENTRAIN_RETURN_IF_ERROR(CheckBuffers(*call));
  return CheckApart(*call, rank * call->count);
}

// The caller's elements by rank, and that they fit into memory together.
absl::StatusOr<std::vector<int64_t>> CheckCounts(const char* name, const size_t* counts,
                                                 DType dtype, int size) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(counts, name));
  std::vector<int64_t> checked;
  size_t sum = 0;
  for (int r = 0; r < size; ++r) {
    const auto one = CheckCount(counts[r], dtype, 1);
    if (!one.ok()) {
      return Annotate(one.status(), absl::StrCat(name, "[", r, "]"));
    }
    checked.push_back(*one);
    sum += counts[r];
    if (const auto so_far = CheckCount(sum, dtype, 1); !so_far.ok()) {
      return Annotate(so_far.status(), absl::StrCat("sum of ", name));
    }
  }
  return checked;
}

absl::Status ApplyUnevenBuffers(const Request& request, Call* call, int rank, int size) {
  PartCounts counts;
  const bool is_root = rank == call->root;
  const bool rooted = HasRoot(call->kind);
  const auto own = static_cast<size_t>(rank);
  // gather and scatter: `counts` is the root's; the other side of the call is `count` everywhere.
  const size_t* const parts =
      call->kind == CallKind::kGather ? request.out_counts : request.in_counts;
  const char* const name = call->kind == CallKind::kAllToAll ? "in_counts" : "counts";
  if (!rooted || is_root) {
    ENTRAIN_ASSIGN_OR_RETURN(counts.in, CheckCounts(name, parts, call->dtype, size));
  }
  if (rooted) {
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t mine, CheckCount(request.count, call->dtype, 1));
    if (is_root && counts.in[own] != mine) {
      return absl::InvalidArgumentError(absl::StrCat("counts[", rank, "] ", counts.in[own],
                                                     " is not the root's own count ", mine));
    }
    counts.in.resize(static_cast<size_t>(size));
    counts.in[own] = mine;
  }
  if (call->kind == CallKind::kAllToAll) {
    ENTRAIN_ASSIGN_OR_RETURN(counts.out,
                             CheckCounts("out_counts", request.out_counts, call->dtype, size));
    if (counts.in[own] != counts.out[own]) {
      return absl::InvalidArgumentError(absl::StrCat("in_counts[", rank, "] ", counts.in[own],
                                                     " and out_counts[", rank, "] ",
                                                     counts.out[own], " are both this rank's own"));
    }
    if (request.in == request.out && counts.in != counts.out) {
      return absl::InvalidArgumentError(
          "in and out are the same buffer, but in_counts and "
          "out_counts differ");
    }
  } else {
    counts.out = counts.in;
  }
  const int64_t width = SizeOf(call->dtype);
  const int64_t in_parts = InParts(call->kind, size, is_root);
  const int64_t out_parts = OutParts(call->kind, size, is_root);
  const auto bytes = [&](int64_t buffer_parts, const std::vector<int64_t>& by_rank) {
    return (buffer_parts == 0               ? 0
            : buffer_parts == 1 && size > 1 ? by_rank[own]
                                            : SumOf(by_rank)) *
           width;
  };
  call->in = {const_cast<void*>(request.in), bytes(in_parts, counts.in), MemoryKind::kHost};
  call->out = {request.out, bytes(out_parts, counts.out), MemoryKind::kHost};
  const bool all_know =
      call->kind == CallKind::kAllGather || call->kind == CallKind::kReduceScatter;
  call->count = all_know ? SumOf(counts.in) : 0;
  const int64_t before = std::accumulate(counts.in.begin(), counts.in.begin() + rank, int64_t{0});
  ENTRAIN_RETURN_IF_ERROR(CheckBuffers(*call));
  ENTRAIN_RETURN_IF_ERROR(CheckApart(*call, before));
  call->uneven = std::make_shared<const PartCounts>(std::move(counts));
  return absl::OkStatus();
}

absl::Status ApplyRoot(const Request& request, Call* call, int rank, int size) {
  call->root = request.root;
  if (HasRoot(call->kind)) {
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
absl::Status ToCall(const Request& request, Call* call, entrain_batch_t** batch) {
  call->kind = request.kind;
  entrain_reduction_t* reduction = nullptr;
  if (request.options != nullptr) {
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    ENTRAIN_RETURN_IF_ERROR(
        CopyStruct(request.options, &options, sizeof(options), "entrain_call_options_t"));
    ENTRAIN_RETURN_IF_ERROR(ApplyOptions(options, call));
    reduction = options.reduction;
    *batch = options.batch;
  }
  if (call->kind == CallKind::kBarrier) {
    return absl::OkStatus();
  }
  const int rank = request.comm->comm->rank();
  const int size = request.comm->comm->size();
  ENTRAIN_RETURN_IF_ERROR(ApplyRoot(request, call, rank, size));
  ENTRAIN_RETURN_IF_ERROR(CheckDType(request.dtype));
  call->dtype = DType{request.dtype};
  ENTRAIN_RETURN_IF_ERROR(request.uneven ? ApplyUnevenBuffers(request, call, rank, size)
                                         : ApplyBuffers(request, call, rank, size));
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

absl::Status AddToBatch(const Request& request, Call call, entrain_batch_t* batch) {
  if (request.work != nullptr) {
    return absl::InvalidArgumentError(
        "work is not NULL, but options.batch is given: the batch has the work");
  }
  if (batch->comm != request.comm->comm) {
    return absl::InvalidArgumentError("options.batch is of another communicator");
  }
  call.options.deadline = Deadline::Never();  // its time begins when the batch starts
  batch->calls.push_back(std::move(call));
  return absl::OkStatus();
}

entrain_status_t Submit(const Request& request) {
  return Guard(request.function, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(request.comm, "comm"));
    Call call;
    entrain_batch_t* batch = nullptr;
    if (absl::Status checked = ToCall(request, &call, &batch); !checked.ok()) {
      return Refused(request, call, checked);
    }
    Communicator& comm = *request.comm->comm;
    if (batch != nullptr) {
      return AddToBatch(request, std::move(call), batch);
    }
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
using entrain::RefPtr;
using entrain::Work;

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
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp{op};
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_user(entrain_reduce_fn combine, void* user, uint32_t signature,
                                        int32_t commutative, entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(combine), "combine"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp::kCustom;
    (*reduction)->reduction.combine = combine;
    (*reduction)->reduction.user = user;
    (*reduction)->reduction.signature = signature;
    (*reduction)->reduction.commutative = commutative != 0;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_premultiplied_sum(double factor,
                                                     entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (!std::isfinite(factor)) {
      return absl::InvalidArgumentError(absl::StrCat("factor ", factor, " is not finite"));
    }
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp::kPreMultipliedSum;
    (*reduction)->reduction.factor = factor;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_weighted(const double* weights, int32_t ranks,
                                            entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(weights, "weights"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (ranks < 1) {
      return absl::InvalidArgumentError(absl::StrCat("ranks ", ranks, " is less than 1"));
    }
    std::vector<double> shares(weights, weights + ranks);
    double sum = 0;
    for (int32_t r = 0; r < ranks; ++r) {
      if (!std::isfinite(weights[r]) || weights[r] < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("weights[", r, "] ", weights[r], " is not finite and at least 0"));
      }
      sum += weights[r];
    }
    if (sum == 0 || !std::isfinite(sum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights: their sum ", sum, " is not finite and above 0"));
    }
    for (double& share : shares) {
      share /= sum;
    }
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp::kWeightedMean;
    (*reduction)->reduction.weights =
        std::make_shared<const std::vector<double>>(std::move(shares));
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

entrain_status_t entrain_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                entrain_dtype_t dtype, entrain_op_t op, int32_t root,
                                const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit(
      {__func__, CallKind::kReduce, comm, in, out, count, dtype, op, root, options, work});
}

entrain_status_t entrain_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                entrain_dtype_t dtype, int32_t root,
                                const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit(
      {__func__, CallKind::kGather, comm, in, out, count, dtype, ENTRAIN_SUM, root, options, work});
}

entrain_status_t entrain_scatter(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                 entrain_dtype_t dtype, int32_t root,
                                 const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit({__func__, CallKind::kScatter, comm, in, out, count, dtype, ENTRAIN_SUM, root,
                 options, work});
}

entrain_status_t entrain_all_to_all(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                    entrain_dtype_t dtype, const entrain_call_options_t* options,
                                    entrain_work_t** work) {
  return Submit(
      {__func__, CallKind::kAllToAll, comm, in, out, count, dtype, ENTRAIN_SUM, 0, options, work});
}

entrain_status_t entrain_scan(entrain_comm_t* comm, const void* in, void* out, size_t count,
                              entrain_dtype_t dtype, entrain_op_t op,
                              const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit({__func__, CallKind::kScan, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_exclusive_scan(entrain_comm_t* comm, const void* in, void* out,
                                        size_t count, entrain_dtype_t dtype, entrain_op_t op,
                                        const entrain_call_options_t* options,
                                        entrain_work_t** work) {
  return Submit(
      {__func__, CallKind::kExclusiveScan, comm, in, out, count, dtype, op, 0, options, work});
}

entrain_status_t entrain_all_gather_v(entrain_comm_t* comm, const void* in, void* out,
                                      const size_t* counts, entrain_dtype_t dtype,
                                      const entrain_call_options_t* options,
                                      entrain_work_t** work) {
  return Submit({__func__, CallKind::kAllGather, comm, in, out, 0, dtype, ENTRAIN_SUM, 0, options,
                 work, true, counts, counts});
}

entrain_status_t entrain_reduce_scatter_v(entrain_comm_t* comm, const void* in, void* out,
                                          const size_t* counts, entrain_dtype_t dtype,
                                          entrain_op_t op, const entrain_call_options_t* options,
                                          entrain_work_t** work) {
  return Submit({__func__, CallKind::kReduceScatter, comm, in, out, 0, dtype, op, 0, options, work,
                 true, counts, counts});
}

entrain_status_t entrain_gather_v(entrain_comm_t* comm, const void* in, size_t count, void* out,
                                  const size_t* counts, entrain_dtype_t dtype, int32_t root,
                                  const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit({__func__, CallKind::kGather, comm, in, out, count, dtype, ENTRAIN_SUM, root,
                 options, work, true, nullptr, counts});
}

entrain_status_t entrain_scatter_v(entrain_comm_t* comm, const void* in, const size_t* counts,
                                   void* out, size_t count, entrain_dtype_t dtype, int32_t root,
                                   const entrain_call_options_t* options, entrain_work_t** work) {
  return Submit({__func__, CallKind::kScatter, comm, in, out, count, dtype, ENTRAIN_SUM, root,
                 options, work, true, counts, nullptr});
}

entrain_status_t entrain_all_to_all_v(entrain_comm_t* comm, const void* in, const size_t* in_counts,
                                      void* out, const size_t* out_counts, entrain_dtype_t dtype,
                                      const entrain_call_options_t* options,
                                      entrain_work_t** work) {
  return Submit({__func__, CallKind::kAllToAll, comm, in, out, 0, dtype, ENTRAIN_SUM, 0, options,
                 work, true, in_counts, out_counts});
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

entrain_status_t entrain_batch_create(entrain_comm_t* comm, entrain_batch_t** batch) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(batch, "batch"));
    *batch = new entrain_batch{comm->comm, {}};
    return absl::OkStatus();
  });
}

entrain_status_t entrain_batch_start(entrain_batch_t* batch, entrain_work_t** work) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(batch, "batch"));
    RefPtr<Work> started = batch->comm->StartAll(batch->calls);
    if (work != nullptr) {
      *work = ToHandle(std::move(started), /*background=*/false);
      return absl::OkStatus();
    }
    started->Wait(Deadline::Never());
    return started->status();
  });
}

void entrain_batch_destroy(entrain_batch_t* batch) {
  delete batch;
}

entrain_status_t entrain_work_notify(entrain_work_t* work, entrain_done_fn done, void* user) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(done), "done"));
    ToWork(work)->Then([done, user](const absl::Status& status) {
      entrain_error_t record;
      ToRecord(status, Reach::kByCode, &record);
      done(record.code, user);
    });
    return absl::OkStatus();
  });
}

entrain_status_t entrain_work_descriptor(entrain_work_t* work, int* fd) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(work, "work"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(fd, "fd"));
    ENTRAIN_ASSIGN_OR_RETURN(*fd, ToWork(work)->Descriptor());
    return absl::OkStatus();
  });
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
