// entrain-perf --tune: from measured times of calls to the figures of links (lib/comm/tuning.h), and to the ranges
// where the choice by these figures is not the fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/comm/cost_model.h"
#include "lib/comm/tuning.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

// What calls of one size took by one algorithm; null: a ping-pong, one message of it.
struct Observation {
  Case measured;
  const Algorithm* algorithm = nullptr;
  double us = 0;
};

struct TuneResult {
  LinkFigures figures;
  TunedFor where;  // of the choices
  std::vector<MeasuredChoice> choices;
  std::string report;  // lines of text: each size, what was measured, estimated and chosen
};

// Each figure from the times of a few calls that differ in what it prices; one that no call shows keeps its value in
// `from`. Observations: sizes of one collective one after the other, ascending. All of one communicator, which `where`
// and `cores` describe.
TuneResult Tune(const std::vector<Observation>& observations, const TunedFor& where, int cores,
                const LinkFigures& from);

// `tuning`'s lines, with those for result.figures.where replaced.
void Merge(const TuneResult& result, Tuning* tuning);

}  // namespace entrain::perf
