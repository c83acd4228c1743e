#include "lib/api/request.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/merging.h"
#include "lib/base/status.h"

namespace entrain::api {
namespace {

constexpr int64_t kMaxUserTag = (1 << 20) - 2;

absl::Status CheckOptions(const entrain_call_options_t& options) {
  if (options.tag < -1 || options.tag > kMaxUserTag) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.tag ", options.tag, " is not -1 or 0 to ", kMaxUserTag));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(options.timeout_ns));
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("options.wait", options.wait, ENTRAIN_WAIT_BACKGROUND, "ENTRAIN_WAIT_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckChoice("options.memory", options.memory, ENTRAIN_MEMORY_HOST_PINNED,
                                      "ENTRAIN_MEMORY_*"));
  if (options.memory == ENTRAIN_MEMORY_HOST && options.stream != nullptr) {
    return absl::InvalidArgumentError(
        "options.stream is not NULL, but options.memory is host memory");
  }
  return CheckReserved("options.reserved", options.reserved);
}

absl::Status ApplyOptions(const entrain_call_options_t& options, Call* call) {
  ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
  call->options.user_tag = options.tag;
  ENTRAIN_ASSIGN_OR_RETURN(call->options.determinism,
                           CheckDeterminism("options.determinism", options.determinism));
  call->options.background = options.wait == ENTRAIN_WAIT_BACKGROUND;
  if (call->kind == CallKind::kBarrier && options.memory != ENTRAIN_MEMORY_HOST) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.memory ", options.memory, ": a barrier has no buffers"));
  }
  call->options.device = options.memory == ENTRAIN_MEMORY_DEVICE;
  // Page-locked memory without a stream is ordinary host memory.
  call->options.on_stream = options.memory == ENTRAIN_MEMORY_DEVICE || options.stream != nullptr;
  call->options.stream = options.stream;
  if (call->kind == CallKind::kRecvAny && call->options.on_stream) {
    return absl::UnimplementedError(absl::StrCat(
        "options.memory ", options.memory, options.stream == nullptr ? "" : " with a stream",
        ": a message from any rank is received in host memory, without a stream"));
  }
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
  if (call->reduction.merging != nullptr) {
    const auto size = static_cast<size_t>(request.comm->comm->size());
    const size_t weights = call->reduction.merging->weights.size();
    if (weights != 0 && weights != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("options.reduction: ", weights, " weights for ", size, " ranks"));
    }
    if (prefix) {
      return absl::InvalidArgumentError(
          absl::StrCat("options.reduction: ", NameOf(call->reduction.op), " has no meaning in ",
                       NameOf(call->kind)));
    }
  }
  return absl::OkStatus();
}

// Return the number of parts in this rank's input, or output. A part has `count` elements.
int64_t InParts(CallKind kind, int size, bool is_root) {
  switch (kind) {
    case CallKind::kReduceScatter:
    case CallKind::kAllToAll:
      return size;
    case CallKind::kScatter:
      return is_root ? size : 0;
    case CallKind::kRecv:
    case CallKind::kRecvAny:
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

// Checks that `in` and `out` overlap only in an in-place call. There the smaller buffer is this
// rank's part of the larger one, or buffers of equal size are the same. `before`: the number of
// elements of the larger buffer before this rank's part.
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
  // All ranks have the same count. Every rank applies the limit of a rank that has all parts, so
  // that either all ranks accept the count or all refuse it.
  const int64_t most = HasParts(call->kind) ? size : 1;
  ENTRAIN_ASSIGN_OR_RETURN(call->count, CheckCount(request.count, call->dtype, most));
  const int64_t bytes = call->count * SizeOf(call->dtype);
  call->in = {const_cast<void*>(request.in), in_parts * bytes, MemoryKind::kHost};
  call->out = {request.out, out_parts * bytes, MemoryKind::kHost};
  ENTRAIN_RETURN_IF_ERROR(CheckBuffers(*call));
  return CheckApart(*call, rank * call->count);
}

// Converts the caller's counts, one per rank. Checks that the bytes of all parts together fit into
// int64_t.
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
  // In gather and scatter only the root has all counts. Every rank also has `count`, the number of
  // elements of its own part.
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
  if (call->kind == CallKind::kRecvAny) {
    call->source = request.source;
    return size > 1 ? absl::OkStatus()
                    : absl::InvalidArgumentError("comm: it has no other rank to receive from");
  }
  if (IsMessage(call->kind)) {
    ENTRAIN_RETURN_IF_ERROR(CheckRank("peer", request.root, size));
    if (request.root == rank) {
      return absl::InvalidArgumentError(
          absl::StrCat("peer ", request.root, " is this rank itself"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TagOf(const entrain_call_options_t* options) {
  entrain_call_options_t known;
  entrain_call_options_init(&known);
  const bool good = options != nullptr &&
                    CopyStruct(options, &known, sizeof(known), "entrain_call_options_t").ok() &&
                    CheckOptions(known).ok();
  return good ? known.tag : -1;
}

absl::Status Refusal(const Call& call, const absl::Status& why) {
  Blame blame = BlameOf(why);
  blame.operation = std::string(NameOf(call.kind));
  blame.tag = call.options.user_tag;
  blame.phase = Phase::kCheck;
  return WithBlame(why, blame);
}

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

}  // namespace entrain::api
