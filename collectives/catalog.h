// The table of algorithms: what they are called, what they can do, and how to build them.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "collectives/schedule.h"

namespace entrain {

// How contributions are combined; each includes those before. Where nothing is combined: kAtOnce.
enum class Order : uint8_t {
  kAny,
  // In rank order: right for reductions that do not commute.
  kByRank,
  // In rank order and grouped alike by all algorithms of the kind that say so: the bits of a result depend on the
  // contributions alone.
  kFixed,
  // Every part in one operation whose operands are the ranks' contributions in rank order: what reductions need that
  // treat ranks differently (weighted).
  kAtOnce,
};

// What the messages of a lane are multiples of. A call is cut into lanes by it.
enum class Message : uint8_t {
  kPart,  // a rank's part of the lane
  kLane,  // the lane
};

// With how many others a rank exchanges messages.
enum class Partners : uint8_t {
  kFew,   // a number that grows slower than that of ranks; of other hosts where it goes by hosts
  kRoot,  // the root with all, in one round; the others with few
  kAll,   // every rank with all others, in one round
  kAllInTurn,  // every rank with all others, one after the other
};

struct Algorithm {
  const char* name;  // "ring", "halving_doubling", "direct", "two_step", "tree", "composed", ...
  CallKind kind;
  Order order;
  Message message;
  Partners partners;
  // Whether it can do this; never asks for more than spec.kind's own fields. `hosts` as in Build.
  bool (*fits)(const Spec& spec, absl::Span<const int> hosts);
  // `hosts[r]` is the host number of rank r (composed algorithms use it; others ignore it).
  Schedule (*build)(const Spec& spec, absl::Span<const int> hosts);
  bool by_hosts = false;  // inside each host, and between one rank, or as many as it takes, of each
};

// Every algorithm, grouped by kind.
absl::Span<const Algorithm> Catalog();
// INVALID_ARGUMENT when there is none; the message lists the names that exist for this kind.
absl::StatusOr<const Algorithm*> FindAlgorithm(CallKind kind, absl::string_view name);

}  // namespace entrain
