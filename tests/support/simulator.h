// Runs the schedules of all ranks on one thread, in an order drawn from a seed, and finds what is
// wrong with them together: deadlock, lengths that differ, messages nobody receives, values read
// before they are written, input overwritten. What Validate (collectives/schedule.h) cannot see,
// because it looks at one rank.
//
// The network: messages from one rank to another in one lane arrive in the order sent; nothing else
// is ordered. Two ways of sending, because transports have both:
//   eager       a send is done as soon as it is posted, its bytes taken then
//   rendezvous  a send is done when the receiver takes it, and its bytes are read only then
// One step of the simulation posts a round, delivers a message, or ends a round; which step is next
// is random.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "collectives/schedule.h"
#include "collectives/spec.h"

namespace entrain {

// An element, or nothing yet (poison).
struct Cell {
  int64_t value = 0;
  bool set = false;
};

struct Simulation {
  uint64_t seed = 0;
  bool rendezvous = false;
  bool in_place = false;  // kIn and kOut are one memory
  // The elements of one result from those of the operands, in order. Other types than int64_t: by
  // their bits.
  std::function<int64_t(absl::Span<const int64_t>)> combine;
  // What a completing combine does to its result, as avg divides.
  std::function<int64_t(int64_t)> complete = [](int64_t value) { return value; };
};

// Where blocks lie in one rank's input and output. Scratch is cut as the input.
struct RankLayout {
  Layout in, out;
};

// `data[rank]` is D as that rank sees it: on entry its input (unset outside kIn's window),
// afterwards kOut. Out of place, afterwards only what was written to kOut is set; kIn is checked to
// be as it was.
absl::Status Simulate(absl::Span<const Schedule> schedules, absl::Span<const RankLayout> layouts,
                      const Simulation& simulation, std::vector<std::vector<Cell>>* data);
// The same layout everywhere.
absl::Status Simulate(absl::Span<const Schedule> schedules, const Layout& layout,
                      const Simulation& simulation, std::vector<std::vector<Cell>>* data);

}  // namespace entrain
