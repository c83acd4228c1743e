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

struct Algorithm {
  const char* name;  // "ring", "halving_doubling", "direct", "two_step", "tree", "composed", ...
  CallKind kind;
  Order order;
  // Whether it can do this; never asks for more than spec.kind's own fields. `hosts` as in Build.
  bool (*fits)(const Spec& spec, absl::Span<const int> hosts);
  // `hosts[r]` is the host number of rank r (composed algorithms use it; others ignore it).
  Schedule (*build)(const Spec& spec, absl::Span<const int> hosts);
};

// Every algorithm, grouped by kind.
absl::Span<const Algorithm> Catalog();
// INVALID_ARGUMENT when there is none; the message lists the names that exist for this kind.
absl::StatusOr<const Algorithm*> FindAlgorithm(CallKind kind, absl::string_view name);

}  // namespace entrain
