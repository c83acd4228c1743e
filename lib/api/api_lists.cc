// Implements the list calls of collectives.h, whose parts may lie apart in memory. Each list call
// makes the corresponding call on contiguous memory. If the parts are contiguous, this is the
// memory of the caller, otherwise a temporary copy.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "include/entrain/collectives.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/request.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

namespace entrain::api {
namespace {

// A list of buffers, and one contiguous buffer for all of them.
struct Parts {
  std::vector<const void*> list;  // a copy, because the caller's list is valid only during the call
  std::vector<size_t> bytes;
  std::unique_ptr<std::byte[]> staged;  // the copy of all parts; null: the caller's parts are
                                        // contiguous
  void* whole = nullptr;

  void CopyIn() const {
    std::byte* at = staged.get();
    for (size_t r = 0; staged != nullptr && r < bytes.size(); at += bytes[r++]) {
      if (bytes[r] > 0) {
        std::memcpy(at, list[r], bytes[r]);
      }
    }
  }
  // Must be called only if `list` has output buffers.
  void CopyOut() const {
    const std::byte* at = staged.get();
    for (size_t r = 0; staged != nullptr && r < bytes.size(); at += bytes[r++]) {
      if (bytes[r] > 0) {
        std::memcpy(const_cast<void*>(list[r]), at, bytes[r]);
      }
    }
  }
};

// The arguments of a list function, without its lists and counts.
struct ListCall {
  const char* function;
  CallKind kind;
  entrain_comm_t* comm;
  entrain_dtype_t dtype;
  const entrain_call_options_t* options;
  entrain_work_t** work;
};

// Checks the list and returns its parts. `counts` has the number of elements of each part. If
// `counts` is null, each part has `count` elements.
absl::StatusOr<Parts> PartsOf(const ListCall& call, const char* name, const void* const* list,
                              size_t count, const size_t* counts) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(call.comm, "comm"));
  ENTRAIN_RETURN_IF_ERROR(NotNull(list, name));
  ENTRAIN_RETURN_IF_ERROR(CheckDType(call.dtype));
  const auto size = static_cast<size_t>(call.comm->comm->size());
  const size_t width = entrain_dtype_size(call.dtype);
  Parts parts;
  parts.list.assign(list, list + size);
  size_t elements = 0;
  bool side_by_side = true;
  const char* first = nullptr;  // the first address, if the parts are contiguous
  for (size_t r = 0; r < size; ++r) {
    const size_t one = counts == nullptr ? count : counts[r];
    ENTRAIN_RETURN_IF_ERROR(CheckCount(one, DType{call.dtype}, 1).status());
    if (one > 0) {
      const std::string part = absl::StrCat(name, "[", r, "]");
      ENTRAIN_RETURN_IF_ERROR(
          CheckBuffer(part.c_str(), list[r], static_cast<int64_t>(one * width), DType{call.dtype}));
      const char* const at = static_cast<const char*>(list[r]);
      first = first == nullptr ? at : first;
      side_by_side &= at == first + elements * width;
    }
    elements += one;
    ENTRAIN_RETURN_IF_ERROR(CheckCount(elements, DType{call.dtype}, 1).status());
    parts.bytes.push_back(one * width);
  }
  parts.whole = const_cast<char*>(first);
  if (side_by_side) {
    return parts;
  }
  entrain_call_options_t options;
  entrain_call_options_init(&options);
  if (call.options != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(
        CopyStruct(call.options, &options, sizeof(options), "entrain_call_options_t"));
  }
  if (options.memory == ENTRAIN_MEMORY_DEVICE || options.stream != nullptr ||
      options.batch != nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        name,
        ": parts that do not lie side by side are served in host memory, without a stream and "
        "without a batch"));
  }
  parts.staged.reset(new (std::nothrow) std::byte[elements * width]);
  if (parts.staged == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, ": no memory for ", elements * width, " bytes of all parts"));
  }
  parts.whole = parts.staged.get();
  return parts;
}

// The work of a list call. It ends when the result has been copied to the caller's parts.
class ListWork final : public Work {
 public:
  ListWork(Engine* engine, RefPtr<Work> whole, Parts ins, Parts outs)
      : Work(engine), whole_(std::move(whole)), ins_(std::move(ins)), outs_(std::move(outs)) {}
  WorkInfo Info() const override { return whole_->Info(); }
  void Begin() {
    AddRef();
    whole_->Then([this](const absl::Status& status) {
      if (status.ok()) {
        outs_.CopyOut();
      }
      Finish(status);
      Release();
    });
  }

 private:
  const RefPtr<Work> whole_;
  const Parts ins_, outs_;
};

// Runs or starts a list call. `start(in, out, work)` must make the call on contiguous memory. `ins`
// is empty if the call has no list of inputs; `outs` is empty if it has no list of outputs.
template <typename Start>
entrain_status_t Run(const ListCall& call, absl::StatusOr<Parts> ins, absl::StatusOr<Parts> outs,
                     const Start& start) {
  const entrain_status_t checked = Guard(call.function, [&]() -> absl::Status {
    const absl::Status status = ins.ok() ? outs.status() : ins.status();
    ENTRAIN_RETURN_IF_ERROR(NotNull(call.comm, "comm"));
    if (status.ok()) {
      return status;
    }
    Call refused;
    refused.kind = call.kind;
    refused.options.user_tag = TagOf(call.options);
    call.comm->comm->Refused(refused, status);
    return Refusal(refused, status);
  });
  if (checked != ENTRAIN_OK) {
    return checked;
  }
  ins->CopyIn();
  const bool staged = ins->staged != nullptr || outs->staged != nullptr;
  const entrain_status_t code = start(ins->whole, outs->whole, call.work);
  if (code != ENTRAIN_OK || !staged) {
    return code;
  }
  if (call.work == nullptr) {
    outs->CopyOut();
    return code;
  }
  const bool background = WaitsInBackground(*call.work);
  auto work = RefPtr<ListWork>::Adopt(new ListWork(&call.comm->comm->runtime().engine(),
                                                   RefPtr<Work>::Adopt(ToWork(*call.work)),
                                                   *std::move(ins), *std::move(outs)));
  work->Begin();
  *call.work = ToHandle(RefPtr<Work>::Adopt(work.Leak()), background);
  return code;
}

absl::StatusOr<Parts> None() {
  return Parts();
}
const void* const* AsList(void* const* outs) {
  return const_cast<const void* const*>(outs);
}
bool IsRoot(const entrain_comm_t* comm, int32_t root) {
  return comm == nullptr || comm->comm->rank() == root;  // if null, PartsOf returns the error
}

}  // namespace
}  // namespace entrain::api

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::CallKind;

extern "C" {

entrain_status_t entrain_all_gather_list(entrain_comm_t* comm, const void* in, size_t count,
                                         void* const* outs, const size_t* counts,
                                         entrain_dtype_t dtype,
                                         const entrain_call_options_t* options,
                                         entrain_work_t** work) {
  const ListCall call{__func__, CallKind::kAllGather, comm, dtype, options, work};
  return Run(call, None(), PartsOf(call, "outs", AsList(outs), count, counts),
             [&](const void*, void* out, entrain_work_t** started) {
               return counts == nullptr
                          ? entrain_all_gather(comm, in, out, count, dtype, options, started)
                          : entrain_all_gather_v(comm, in, out, counts, dtype, options, started);
             });
}

entrain_status_t entrain_reduce_scatter_list(entrain_comm_t* comm, const void* const* ins,
                                             const size_t* counts, void* out, size_t count,
                                             entrain_dtype_t dtype, entrain_op_t op,
                                             const entrain_call_options_t* options,
                                             entrain_work_t** work) {
  const ListCall call{__func__, CallKind::kReduceScatter, comm, dtype, options, work};
  return Run(
      call, PartsOf(call, "ins", ins, count, counts), None(),
      [&](const void* in, void*, entrain_work_t** started) {
        return counts == nullptr
                   ? entrain_reduce_scatter(comm, in, out, count, dtype, op, options, started)
                   : entrain_reduce_scatter_v(comm, in, out, counts, dtype, op, options, started);
      });
}

entrain_status_t entrain_gather_list(entrain_comm_t* comm, const void* in, size_t count,
                                     void* const* outs, const size_t* counts, entrain_dtype_t dtype,
                                     int32_t root, const entrain_call_options_t* options,
                                     entrain_work_t** work) {
  const ListCall call{__func__, CallKind::kGather, comm, dtype, options, work};
  return Run(call, None(),
             IsRoot(comm, root) ? PartsOf(call, "outs", AsList(outs), count, counts) : None(),
             [&](const void*, void* out, entrain_work_t** started) {
               return counts == nullptr
                          ? entrain_gather(comm, in, out, count, dtype, root, options, started)
                          : entrain_gather_v(comm, in, count, out, counts, dtype, root, options,
                                             started);
             });
}

entrain_status_t entrain_scatter_list(entrain_comm_t* comm, const void* const* ins,
                                      const size_t* counts, void* out, size_t count,
                                      entrain_dtype_t dtype, int32_t root,
                                      const entrain_call_options_t* options,
                                      entrain_work_t** work) {
  const ListCall call{__func__, CallKind::kScatter, comm, dtype, options, work};
  return Run(call, IsRoot(comm, root) ? PartsOf(call, "ins", ins, count, counts) : None(), None(),
             [&](const void* in, void*, entrain_work_t** started) {
               return counts == nullptr
                          ? entrain_scatter(comm, in, out, count, dtype, root, options, started)
                          : entrain_scatter_v(comm, in, counts, out, count, dtype, root, options,
                                              started);
             });
}

entrain_status_t entrain_all_to_all_list(entrain_comm_t* comm, const void* const* ins,
                                         const size_t* in_counts, void* const* outs,
                                         const size_t* out_counts, entrain_dtype_t dtype,
                                         const entrain_call_options_t* options,
                                         entrain_work_t** work) {
  const ListCall call{__func__, CallKind::kAllToAll, comm, dtype, options, work};
  const auto parts_of = [&](const char* name, const void* const* list, const char* counts_name,
                            const size_t* counts) -> absl::StatusOr<Parts> {
    ENTRAIN_RETURN_IF_ERROR(NotNull(counts, counts_name));
    return PartsOf(call, name, list, 0, counts);
  };
  return Run(call, parts_of("ins", ins, "in_counts", in_counts),
             parts_of("outs", AsList(outs), "out_counts", out_counts),
             [&](const void* in, void* out, entrain_work_t** started) {
               return entrain_all_to_all_v(comm, in, in_counts, out, out_counts, dtype, options,
                                           started);
             });
}

}  // extern "C"
