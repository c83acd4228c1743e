// entrain-perf COLLECTIVE [options]: measures the speed of a collective, and checks its results.
// entrain-perf --flight FILES: names the rank that holds a job up.
// --help has the details.
#include <cstdio>
#include <string>
#include <vector>

#include "entrain/entrain.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/flight.h"
#include "tools/perf/local_job.h"
#include "tools/perf/measure_rank.h"
#include "tools/perf/options.h"
#include "tools/perf/tune_rank.h"

namespace entrain::perf {
namespace {

int Main(int argc, char** argv) {
  Options options;
  if (const auto code = ParseOptions(argc, argv, &options); code.has_value()) {
    return *code;
  }
  if (options.flight_of > 0) {
    return PrintFlightOf(options.flight_of);
  }
  if (!options.flight.empty()) {
    return PrintFlights(options.flight, options.json);
  }
  if (options.local_ranks > 0 && options.local_rank < 0) {
    return RunLocalJobs(options, std::vector<std::string>(argv, argv + argc));
  }
  StorePtr store;
  absl::Status status;
  if (options.local_rank >= 0) {
    entrain_store_t* opened = nullptr;
    status = FromC(entrain_store_open(options.local_store.c_str(), 0, &opened));
    store.reset(opened);
  }
  if (status.ok()) {
    const RankPlace place{store.get(), options.local_rank, options.local_ranks};
    status = options.tune.empty() ? MeasureRank(options, place) : TuneRank(options, place);
  }
  if (!status.ok() && !absl::IsAborted(status)) {
    std::fprintf(stderr, "entrain-perf: %s\n", std::string(status.message()).c_str());
  }
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  return entrain::perf::Main(argc, argv);
}
