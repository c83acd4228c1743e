// all_to_all over hosts: what goes to another host goes there together.
//
// On four ranks, hosts {0 1} and {2 3}; ab: what rank a has for rank b. A rank collects what its host has for the rank
// at its own place on each other host:
//
//   round        rank 0         rank 1         rank 2         rank 3
//     0  inside  01 03 -> 1     10 12 -> 0     23 21 -> 3     32 30 -> 2
//     1  across  02 12 -> 2     03 13 -> 3     20 30 -> 0     21 31 -> 1
//
//   h hosts of m ranks: 2 rounds, m - 1 messages of h parts inside and h - 1 messages of m parts across, where direct has
//   n - m across. Everything is packed first, so it is right in place. For few bytes: most are moved twice.
#pragma once

#include "absl/types/span.h"

#include "collectives/schedule.h"

namespace entrain::composed {

// One lane, on all ranks. Parts must be equally long.
void AllToAll(ScheduleBuilder* builder, int lane, absl::Span<const int> hosts);

}  // namespace entrain::composed
