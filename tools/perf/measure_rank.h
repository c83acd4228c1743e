// One rank of entrain-perf, in a process or a thread of its own.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "entrain/entrain.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/options.h"

namespace entrain::perf {

// Where a rank was put by entrain-perf -n; store null: the launcher's variables say.
struct RankPlace {
  entrain_store_t* store = nullptr;
  int rank = 0, size = 0;
};

// Pins a rank of -n as its options say.
void PinIfAsked(const Options& options, const RankPlace& place);

absl::StatusOr<RuntimePtr> MakeRuntime(const std::string& transport);
// `name`: no other of these ranks has it. `algorithms`: overrides, may be empty.
absl::StatusOr<CommPtr> MakeComm(entrain_runtime_t* runtime, const RankPlace& place,
                                 const std::string& name, const std::string& algorithms);

// Measures everything that was asked for; rank 0 prints. An error says what to print, except
// kAborted: another rank has the reason.
absl::Status MeasureRank(const Options& options, const RankPlace& place);

}  // namespace entrain::perf
