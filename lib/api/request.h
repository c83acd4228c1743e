// The arguments of a C function of collectives.h, and their conversion to a checked entrain::Call.
//
// Thread safety: any thread; each request belongs to its caller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "include/entrain/collectives.h"
#include "lib/base/call.h"

namespace entrain::api {

// One call, with the arguments of the C function.
struct Request {
  const char* function;
  CallKind kind;
  entrain_comm_t* comm;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  entrain_dtype_t dtype = ENTRAIN_U8;
  entrain_op_t op = ENTRAIN_SUM;
  int32_t root = 0;  // the root; send and recv: the peer; recv_any: -1
  const entrain_call_options_t* options = nullptr;
  entrain_work_t** work = nullptr;
  // For functions whose names end in _v: the number of elements of each rank's part.
  bool uneven = false;
  const size_t* in_counts = nullptr;
  const size_t* out_counts = nullptr;
  int32_t* source = nullptr;  // for recv_any
};

// Converts the request to *call. Makes all checks that need no other rank. If the options name a
// batch, sets *batch.
absl::Status ToCall(const Request& request, Call* call, entrain_batch_t** batch);
// Returns the tag in the options. Returns -1 if `options` is null or has a value that CheckOptions
// refuses.
int64_t TagOf(const entrain_call_options_t* options);
// Returns `why` with the blame record of a refused call. The record has the operation and the tag,
// but no number.
absl::Status Refusal(const Call& call, const absl::Status& why);

}  // namespace entrain::api
