// The table of algorithms: their names, their properties, and the functions that build them.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "collectives/schedule.h"

namespace entrain {

// The order in which an algorithm combines contributions. Each value also gives the guarantees of
// all values before it. Algorithms that combine nothing have kAtOnce.
enum class Order : uint8_t {
  kAny,
  // In rank order. Reductions that do not commute need this.
  kByRank,
  // In rank order. All algorithms of one CallKind with this value group the contributions in the
  // same way. So the bits of a result depend only on the contributions, not on the algorithm.
  kFixed,
  // Combines each part in one operation. The operands of this operation are the contributions of
  // all ranks, in rank order. Reductions that treat ranks differently (a weighted mean) need this.
  kAtOnce,
};

// The unit of the messages of a lane: each message is one or more units. The number of lanes of a
// call depends on the unit.
enum class Message : uint8_t {
  kPart,  // the part of one rank in the lane
  kLane,  // the whole lane
};

// The number of other ranks with which a rank exchanges messages.
enum class Partners : uint8_t {
  // The number grows more slowly than the number of ranks. If by_hosts, ranks on the same host do
  // not count.
  kFew,
  kRoot,       // the root: all other ranks, in one round. Each other rank: few
  kAll,        // every rank: all other ranks, in one round
  kAllInTurn,  // every rank: all other ranks, one after the other
};

struct Algorithm {
  const char* name;  // "ring", "halving_doubling", "direct", "two_step", "tree", "composed", ...
  CallKind kind;
  Order order;
  Message message;
  Partners partners;
  // Returns true if the algorithm supports the spec. Reads only the fields that spec.kind uses.
  // `hosts` is as in `build`.
  bool (*fits)(const Spec& spec, absl::Span<const int> hosts);
  // `hosts[r]` is the host number of rank r. Only composed algorithms use `hosts`.
  Schedule (*build)(const Spec& spec, absl::Span<const int> hosts);
  // True for the composed algorithms. They move data inside hosts and between hosts in separate
  // rounds.
  bool by_hosts = false;
};

// All algorithms, grouped by kind.
absl::Span<const Algorithm> Catalog();
// Returns INVALID_ARGUMENT if there is no such algorithm. The error message lists the names for
// this kind.
absl::StatusOr<const Algorithm*> FindAlgorithm(CallKind kind, absl::string_view name);

}  // namespace entrain
