// What a call would take by each algorithm, the same on every rank, from what all ranks agree on:
//
//   call + first lane + (lanes - 1) * next lane
//
// The first lane takes its longest chain of messages and work that wait for one another, each message
// latency + 2 * message + bytes / rate, and each combining bytes / reduce_rate. A lane behind it takes the
// work of the busiest rank, of a core that serves several ranks, or of what the ranks of a host share
// (collectives/cost.h, LaneCost).
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "collectives/catalog.h"
#include "collectives/cost.h"
#include "lib/comm/tuning.h"

namespace entrain {

// Lanes of a call that are active at a time on a rank. With scratch they are few, so that it stays in
// cache.
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

// A machine, and the figures it is made of.
struct CostModel {
  LinkFigures inside, across;
  int64_t call_ps = 0;
  MachineCost machine;

  CostModel(const Crowd& crowd, const Paths& paths, const LinkFigures& inside_figures,
            const LinkFigures& across_figures);
  CostModel(const Crowd& crowd, const Paths& paths, const Tuning& tuning);

  // Of a call whose larger buffer has `bytes`; spec.rank and spec.lanes do not matter. `hosts`: by rank.
  int64_t Picoseconds(const Algorithm& algorithm, Spec spec, absl::Span<const int> hosts,
                      int64_t bytes) const;
};

}  // namespace entrain
