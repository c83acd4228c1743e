// Estimates the time of a call by each algorithm. The inputs of the estimate are equal on all
// ranks, so the estimate is equal on all ranks:
//
//   call + first lane + (lanes - 1) * next lane
//
// The time of the first lane is its critical path: the longest chain of dependent messages and
// reductions. A message takes latency + 2 * message + bytes / rate. A reduction takes bytes /
// reduce_rate. The time of each further lane is the busy time of the busiest resource. A resource
// is a rank, a core of several ranks, or the medium that the ranks of a host share
// (collectives/cost.h, LaneCost).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "collectives/catalog.h"
#include "collectives/cost.h"
#include "lib/base/clock.h"
#include "lib/comm/plan/tuning.h"

namespace entrain {

// The number of lanes of a call that are active at the same time on a rank. A call with scratch
// memory has fewer active lanes, so that the scratch memory stays in the cache.
constexpr int kWindow = 4, kWindowWithoutScratch = 16;
int WindowOf(const Schedule& schedule);
// Returns the same for a communicator with several sites (Paths::sites), where a lane takes a round
// trip or more: so many lanes that the link does not idle, within the memory that a call may use.
// `lane_scratch` is the scratch memory of a lane in bytes.
int WindowBetweenSites(int64_t lane_scratch);

// Returns the number of lanes of a call. `bytes`: the size of the larger of its two buffers. The
// messages of one lane should fit in the second-level cache. `at_once`: every rank reads messages
// from the sender's memory, as over shm.
int LanesFor(const Algorithm& algorithm, int ranks, int64_t bytes, bool at_once);

// The links between the ranks of a communicator. These values are equal on all ranks.
struct Paths {
  Link inside = Link::kTcpInside;  // the slowest link between two ranks of one host
  // The number of cores of a host. If some hosts have more ranks than cores, this is the smallest
  // number of cores among those hosts. Otherwise no host has more ranks than this number. 0: not
  // known, and no host counts as crowded.
  int cores = 0;
  Link across = Link::kTcpAcross;                  // the slowest link between two hosts
  LinkSpeed inside_speed = {}, across_speed = {};  // the worst values that the transports report
  // By rank, the number of the rank's site. The round trip between two ranks of a site is below
  // kSiteRoundTrip. Empty: all ranks are at one site.
  std::vector<int> sites = {};
  // The longest round trip between two sites, rounded down to a power of two of milliseconds, so
  // that the choice of algorithms does not depend on the noise of a measurement. 0: one site.
  int64_t round_trip_ns = 0;

  // What a rank has found: the lowest rank that is near, and the number of near ranks, both with
  // itself.
  struct Near {
    int64_t first = 0, count = 1;
  };
  // Sets `sites` and `round_trip_ns`. `near` has what each rank has found. If ranks disagree (a is
  // near b, b is near c, and a is not near c), each rank is a site of its own.
  void SetSites(absl::Span<const Near> near, int64_t longest_ns);
  // Returns the paths of a communicator of these ranks.
  Paths Of(absl::Span<const int> ranks) const;
};

// Two ranks with a round trip of this length or longer are at different sites.
constexpr int64_t kSiteRoundTrip = 4 * kMillisecond;

// The numbers of ranks and hosts of a communicator.
struct Crowd {
  int ranks = 0, hosts = 0;
  int most = 0;  // the largest number of ranks on one host
  // `hosts[r]` is the host number of rank r.
  static Crowd Of(absl::Span<const int> hosts);
};

// Sets `where` to the values that select the `choose` lines of a tuning for this communicator.
// Returns false if no such line can apply. This is the case if there are several hosts and a host
// has several ranks.
bool WhereOf(const Crowd& crowd, const Paths& paths, TunedFor* where);

// The costs of a machine, and the measured values from which the costs are computed.
struct CostModel {
  LinkFigures inside, across;
  int64_t call_ps = 0;
  MachineCost machine;

  CostModel(const Crowd& crowd, const Paths& paths, const LinkFigures& inside_figures,
            const LinkFigures& across_figures);
  CostModel(const Crowd& crowd, const Paths& paths, const Tuning& tuning);

  // Returns the estimated time of a call. `bytes`: the size of the larger of its two buffers.
  // `hosts[r]` is the number of rank r's host or, if there are several sites, of its site. Ignores
  // spec.rank and spec.lanes.
  int64_t Picoseconds(const Algorithm& algorithm, Spec spec, absl::Span<const int> hosts,
                      int64_t bytes) const;
};

}  // namespace entrain
