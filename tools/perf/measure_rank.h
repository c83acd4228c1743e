// One rank of entrain-perf, in a process or a thread of its own.
#pragma once

#include "absl/status/status.h"

#include "entrain/entrain.h"
#include "tools/perf/options.h"

namespace entrain::perf {

// Where a rank was put by entrain-perf -n; store null: the launcher's variables say.
struct RankPlace {
  entrain_store_t* store = nullptr;
  int rank = 0, size = 0;
};

// Measures everything that was asked for; rank 0 prints. An error says what to print, except
// kAborted: another rank has the reason.
absl::Status MeasureRank(const Options& options, const RankPlace& place);

}  // namespace entrain::perf
