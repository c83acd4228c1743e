// One rank of entrain-perf --tune.
#pragma once

#include "absl/status/status.h"

#include "tools/perf/measure_rank.h"
#include "tools/perf/options.h"

namespace entrain::perf {

// Measures every algorithm of every collective over each transport asked for; rank 0 then fits a model,
// prints what it found and puts it into the file, whose lines for other links and numbers of ranks
// stay. What was measured is added to FILE.times, one JSON object a line, and the least of all times
// there counts: how processes lie in memory and on cores differs from run to run more than within one.
// Errors as of MeasureRank.
absl::Status TuneRank(const Options& options, const RankPlace& place);

}  // namespace entrain::perf
