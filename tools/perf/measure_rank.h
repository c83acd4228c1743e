// One rank of entrain-perf, in a process or a thread of its own.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "entrain/entrain.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/options.h"

namespace entrain::perf {

// The place of a rank that entrain-perf -n has started. If `store` is null, the launcher's
// variables decide.
struct RankPlace {
  entrain_store_t* store = nullptr;
  int rank = 0, size = 0;
};

// Pins a rank of -n to a core if the options ask for it.
void PinIfAsked(const Options& options, const RankPlace& place);

absl::StatusOr<RuntimePtr> MakeRuntime(const std::string& transport);
// Creates a communicator. `name` must be unique among the names of these ranks. `algorithms` are
// overrides; may be empty.
absl::StatusOr<CommPtr> MakeComm(entrain_runtime_t* runtime, const RankPlace& place,
                                 const std::string& name, const std::string& algorithms);

// Measures all cases of the options; rank 0 prints the figures. The caller must print the error,
// except kAborted, because another rank then prints the reason.
absl::Status MeasureRank(const Options& options, const RankPlace& place);

}  // namespace entrain::perf
