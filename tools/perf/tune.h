// entrain-perf --tune: from measured times of calls to the figures of a model (lib/comm/tuning.h), and
// to the ranges where its choice is not the fastest.
//
// The figures are those with which the model's times are nearest to all that was measured (by the
// ratios' logarithms, the fastest algorithms counting most), found by changing one after the other, up
// and down, in smaller and smaller steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/comm/cost_model.h"
#include "lib/comm/tuning.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

// What calls of one size took by one algorithm; null: point to point.
struct Observation {
  Case measured;
  const Algorithm* algorithm = nullptr;
  double us = 0;
};

struct TuneResult {
  LinkFigures figures;
  TunedFor where;  // of the choices
  std::vector<MeasuredChoice> choices;
  double off = 0;      // the model's time over the measured or the other way round, the middle one
  std::string report;  // lines of text: each size, what was measured, estimated and chosen
};

// Observations: sizes of one collective one after the other, ascending. All of one communicator,
// which `where` and `cores` describe. `from`: where to begin.
TuneResult Tune(const std::vector<Observation>& observations, const TunedFor& where, int cores,
                LinkFigures from);

// `tuning`'s lines, with those for result.figures.where replaced.
void Merge(const TuneResult& result, Tuning* tuning);

}  // namespace entrain::perf
