// One rank of entrain-perf --tune.
#pragma once

#include "absl/status/status.h"

#include "tools/perf/measure_rank.h"
#include "tools/perf/options.h"

namespace entrain::perf {

// Measures every algorithm of every collective, and a ping-pong, over each transport asked for. Rank 0 then prints
// what it found and puts figures and ranges into the file, whose lines for other links and numbers of ranks stay.
// Errors as of MeasureRank.
absl::Status TuneRank(const Options& options, const RankPlace& place);

}  // namespace entrain::perf
