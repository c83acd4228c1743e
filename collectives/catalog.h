// The table of algorithms: their names, their properties, and the functions that build them.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "collectives/schedule.h"

namespace entrain {

// The order in which an algorithm combines contributions. Each value has the properties of all
// values before it. Algorithms that combine nothing have kAtOnce.
enum class Order : uint8_t {
  kAny,
  // In rank order. Reductions that do not commute need this.
  kByRank,
  // In rank order. All algorithms of one CallKind with this value group the contributions in the
  // same way. So the bits of a result depend only on the contributions.
  kFixed,
  // Combines each part in one operation whose operands are the ranks' contributions in rank order.
  // Reductions that treat ranks differently (weighted) need this.
  kAtOnce,
};

// The messages of a lane are multiples of this unit. The unit decides how a call is cut into lanes.
enum class Message : uint8_t {
  kPart,  // a rank's part of the lane
  kLane,  // the lane
};

// The number of other ranks with which a rank exchanges messages.
enum class Partners : uint8_t {
  kFew,        // grows more slowly than the ranks; if by_hosts, counts only ranks on other hosts
  kRoot,       // the root exchanges with all others, in one round; each other rank with few
  kAll,        // every rank exchanges with all others, in one round
  kAllInTurn,  // every rank exchanges with all others, one after the other
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
  // `hosts[r]` is the host number of rank r. Only composed algorithms use it.
  Schedule (*build)(const Spec& spec, absl::Span<const int> hosts);
  bool by_hosts = false;  // messages stay inside hosts, or go between few ranks of each host
};

// All algorithms, grouped by kind.
absl::Span<const Algorithm> Catalog();
// Returns INVALID_ARGUMENT if there is no such algorithm. The message then lists the names for this
// kind.
absl::StatusOr<const Algorithm*> FindAlgorithm(CallKind kind, absl::string_view name);

}  // namespace entrain
