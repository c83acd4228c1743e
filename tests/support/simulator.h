// Runs the schedules of all ranks on one thread, in an order drawn from a seed. Finds errors of the
// schedules together: deadlock, lengths that differ, messages that no rank receives, values read
// before they are written, input overwritten. Validate (collectives/schedule.h) cannot find these,
// because it checks one rank.
//
// The network: messages from one rank to another in one lane arrive in the order sent. No other
// order is guaranteed. There are two methods of sending, because transports have both:
//   eager       a send is done as soon as it is posted; its bytes are copied at this time
//   rendezvous  a send is done when the receiver takes it; its bytes are read only at this time
// One step of the simulation posts a round, delivers a message, or ends a round. The next step is
// chosen at random.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "collectives/schedule.h"
#include "collectives/spec.h"

namespace entrain {

// An element that has a value, or has none yet (poison).
struct Cell {
  int64_t value = 0;
  bool set = false;
};

struct Simulation {
  uint64_t seed = 0;
  bool rendezvous = false;
  bool in_place = false;  // kIn and kOut are one memory
  // Combines the elements of the operands, in order, to one element of the result. Elements of
  // types other than int64_t are given as their bits.
  std::function<int64_t(absl::Span<const int64_t>)> combine;
  // The step that a completing combine applies to its result, as avg divides.
  std::function<int64_t(int64_t)> complete = [](int64_t value) { return value; };
};

// The layouts of one rank's input and output. Scratch is cut like the input.
struct RankLayout {
  Layout in, out;
};

// `data[rank]` is the vector D (collectives/spec.h) of that rank. Before the call: the input, unset
// outside kIn's window. Afterwards: kOut. Out of place, only the elements that were written to kOut
// are set afterwards, and kIn must not have changed.
absl::Status Simulate(absl::Span<const Schedule> schedules, absl::Span<const RankLayout> layouts,
                      const Simulation& simulation, std::vector<std::vector<Cell>>* data);
// As above, with one layout for all ranks.
absl::Status Simulate(absl::Span<const Schedule> schedules, const Layout& layout,
                      const Simulation& simulation, std::vector<std::vector<Cell>>* data);

}  // namespace entrain
