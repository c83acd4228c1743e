// Estimates the time of a call by each algorithm. The estimate is the same on every rank, because
// all its inputs are agreed by all ranks:
//
//   call + first lane + (lanes - 1) * next lane
//
// The first lane takes as long as its longest chain of messages and work that wait for one another.
// A message takes latency + 2 * message + bytes / rate. Combining takes bytes / reduce_rate. Each
// further lane takes the work of the busiest resource: a rank, a core that serves several ranks, or
// what the ranks of a host share (collectives/cost.h, LaneCost).
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "collectives/catalog.h"
#include "collectives/cost.h"
#include "lib/comm/tuning.h"

namespace entrain {

// Number of a call's lanes that are active at a time on a rank. A call with scratch has few, so
// that the scratch stays in the cache.
constexpr int kWindow = 4, kWindowWithoutScratch = 16;
int WindowOf(const Schedule& schedule);

// Returns the number of lanes of a call whose larger buffer has `bytes`. The pieces should stay in
// the second-level cache. `at_once`: all ranks read each other's memory.
int LanesFor(const Algorithm& algorithm, int ranks, int64_t bytes, bool at_once);

// How the ranks of a communicator reach each other. All ranks have agreed on these values.
struct Paths {
  Link inside = Link::kTcpInside;  // the slowest between two ranks of a host
  // Cores of one host. If some hosts have more ranks than cores: the fewest cores among these
  // hosts. Otherwise: a number not below the ranks of any host. 0: not known, and no host counts
  // as crowded.
  int cores = 0;
  Link across = Link::kTcpAcross;                  // the slowest between two hosts
  LinkSpeed inside_speed = {}, across_speed = {};  // the worst that their transports report
};

// The numbers of a communicator's ranks and hosts.
struct Crowd {
  int ranks = 0, hosts = 0;
  int most = 0;  // ranks of one host
  static Crowd Of(absl::Span<const int> hosts);
};

// Sets `where` to the communicators for which `choose` lines of a tuning may hold. Returns false if
// no such line can hold (several hosts, some with several ranks).
bool WhereOf(const Crowd& crowd, const Paths& paths, TunedFor* where);

// The costs of a machine, and the figures from which they are computed.
struct CostModel {
  LinkFigures inside, across;
  int64_t call_ps = 0;
  MachineCost machine;

  CostModel(const Crowd& crowd, const Paths& paths, const LinkFigures& inside_figures,
            const LinkFigures& across_figures);
  CostModel(const Crowd& crowd, const Paths& paths, const Tuning& tuning);

  // Estimates a call whose larger buffer has `bytes`. spec.rank and spec.lanes are not used.
  // `hosts`: host of each rank.
  int64_t Picoseconds(const Algorithm& algorithm, Spec spec, absl::Span<const int> hosts,
                      int64_t bytes) const;
};

}  // namespace entrain
