// One rank of entrain-perf --tune.
#pragma once

#include "absl/status/status.h"

#include "tools/perf/measure_rank.h"
#include "tools/perf/options.h"

namespace entrain::perf {

// Measures every algorithm of every collective, and a ping-pong, over each requested transport.
// Then rank 0 prints the result, and writes figures and ranges into the file. The file's lines for
// other links and numbers of ranks stay. Errors are those of MeasureRank.
absl::Status TuneRank(const Options& options, const RankPlace& place);

}  // namespace entrain::perf
