// entrain-perf --tune: computes the figures of links (lib/comm/plan/tuning.h) from measured times of
// calls. Also computes the ranges where the choice by these figures is not the fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/comm/plan/cost_model.h"
#include "lib/comm/plan/tuning.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

// The time of calls of one size with one algorithm. If `algorithm` is null, it is a ping-pong, and
// `us` is the time of one message.
struct Observation {
  Case measured;
  const Algorithm* algorithm = nullptr;
  double us = 0;
};

struct TuneResult {
  LinkFigures figures;
  TunedFor where;  // where the choices apply
  std::vector<MeasuredChoice> choices;
  std::string report;  // lines of text, one per size: the measured, estimated and chosen algorithms
};

// Computes each figure from the times of a few calls that differ in the cost of that figure. A
// figure that no call shows keeps its value from `from`. `observations` is ordered by collective,
// then by ascending size. All observations are of one communicator, which `where` and `cores`
// describe.
TuneResult Tune(const std::vector<Observation>& observations, const TunedFor& where, int cores,
                const LinkFigures& from);

// Replaces the lines of `tuning` for result.figures.where.
void Merge(const TuneResult& result, Tuning* tuning);

}  // namespace entrain::perf
