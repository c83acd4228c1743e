// What a call would take by each algorithm: its schedules, cut into lanes as the planner cuts them,
// on the timeline of a tuned machine. The same on every rank, from what all ranks agree on.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "collectives/catalog.h"
#include "collectives/timeline.h"
#include "lib/comm/tuning.h"

namespace entrain {

// Lanes of a call that are active at a time on a rank. With scratch they are few, so that it stays in
// cache; all estimates are of so few, as what more lanes are good for is not in them.
constexpr int kWindow = 4, kWindowWithoutScratch = 16;
int WindowOf(const Schedule& schedule);

// Of a call whose larger buffer has `bytes`: pieces are to stay in the second-level cache. `at_once`:
// all ranks read each other's memory.
int LanesFor(const Algorithm& algorithm, int ranks, int64_t bytes, bool at_once);

// How the ranks of a communicator reach each other, agreed by all of them.
struct Paths {
  Link inside = Link::kTcpInside;  // the slowest between two ranks of a host
  // Of the host that has fewest, of those with more ranks than cores. If there are none: at least as many as a host has
  // ranks. 0: not known, as if there were enough.
  int cores = 0;
  Link across = Link::kTcpAcross;                  // the slowest between two hosts
  LinkSpeed inside_speed = {}, across_speed = {};  // the worst that their transports say
};

// A communicator's ranks, by host number.
struct Crowd {
  int ranks = 0, hosts = 0;
  int most = 0;  // ranks of one host
  static Crowd Of(absl::Span<const int> hosts);
};

// The communicator that `choose` lines of a tuning may speak of. False: none speaks of its shape
// (several hosts, some with several ranks).
bool WhereOf(const Crowd& crowd, const Paths& paths, TunedFor* where);

// A machine to run timelines on, and where its figures come from.
struct CostModel {
  LinkFigures inside, across;
  int64_t call_ps = 0;
  MachineModel machine;
  MachineModel far;  // of calls of more than far_bytes
  int64_t far_bytes = 0;

  CostModel(const Crowd& crowd, const Paths& paths, const LinkFigures& inside_figures,
            const LinkFigures& across_figures);
  CostModel(const Crowd& crowd, const Paths& paths, const Tuning& tuning);
};

// The schedules of all ranks for one algorithm and size, made once to be timed by several models.
class Rehearsal {
 public:
  // spec.rank and spec.lanes do not matter. `hosts`: by rank.
  Rehearsal(const Algorithm& algorithm, const Spec& spec, absl::Span<const int> hosts,
            int64_t bytes);
  // Of schedules that were drawn up otherwise, in order of their ranks.
  Rehearsal(std::vector<Schedule> schedules, absl::Span<const int> hosts, Layout layout,
            int64_t bytes);
  int64_t Picoseconds(const CostModel& model) const;

 private:
  struct Cut {
    std::vector<Schedule> schedules;
    Layout layout;
  };
  Cut Make(const Algorithm& algorithm, Spec spec, int lanes, int64_t bytes) const;
  int64_t Time(const Cut& cut, const MachineModel& machine) const;

  const std::vector<int> hosts_;
  int64_t bytes_ = 0;
  int lanes_ = 1;  // of the call; pieces of a message that is left whole count as lanes
  // All its lanes; or, where these are many, some of them and half of those: lanes that follow each
  // other take equally long.
  Cut cut_, half_;
};

}  // namespace entrain
