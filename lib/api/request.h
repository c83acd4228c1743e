// What a C function of collectives.h was asked, and the entrain::Call it becomes once it is checked.
//
// Thread safety: any thread; a request is its caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "include/entrain/collectives.h"
#include "lib/base/call.h"

namespace entrain::api {

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
  int32_t root = 0;  // or the peer; recv_any: -1
  const entrain_call_options_t* options = nullptr;
  entrain_work_t** work = nullptr;
  // The v-forms: elements by rank, `size` entries each.
  bool uneven = false;
  const size_t* in_counts = nullptr;
  const size_t* out_counts = nullptr;
  int32_t* source = nullptr;  // of recv_any
};

// Everything that can be known to be wrong without another rank. `batch`: that of the options, or as it
// was.
absl::Status ToCall(const Request& request, Call* call, entrain_batch_t** batch);
// The tag that the options give; -1: none, or one that is refused.
int64_t TagOf(const entrain_call_options_t* options);
// `why`, with the record of a call that was refused: it has no number, but says what it was.
absl::Status Refusal(const Call& call, const absl::Status& why);

}  // namespace entrain::api
