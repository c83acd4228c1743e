// Which algorithm a call takes, and its plan. The choice is a pure function of what all ranks agree
// on (shape of the call, size, topology, overrides), never of local facts, so it cannot diverge.
//
// Overrides: "COLLECTIVE:ALGORITHM[@LOW-HIGH]", comma separated; sizes in bytes with K, M, G, HIGH
// may be "inf"; the bytes are those of the larger buffer of one rank.
// "all_reduce:ring@1M-inf,broadcast:tree". The first that covers a size counts.
//
// Thread safety: none; the communicator's mutex guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "collectives/cost.h"
#include "lib/comm/topology.h"
#include "lib/engine/executor.h"

namespace entrain {

struct Override {
  CallKind kind;
  std::string algorithm;
  int64_t low = 0, high = 0;  // bytes, low <= size <= high
};
absl::StatusOr<std::vector<Override>> ParseOverrides(absl::string_view text);

class Planner {
 public:
  // `local`: every rank can reach every other through memory (one host).
  Planner(int rank, Topology topology, std::vector<Override> overrides, bool local);

  // The plan for a call; made once for each shape. Sends and receives get a plan of one transfer.
  absl::StatusOr<std::shared_ptr<const Plan>> PlanFor(const Call& call);

 private:
  struct Shape {
    CallKind kind;
    int64_t element_bytes, count;
    int root;
    bool ordered;  // contributions must be combined in rank order
    bool operator==(const Shape&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Shape& s) {
      return H::combine(std::move(h), s.kind, s.element_bytes, s.count, s.root, s.ordered);
    }
  };
  absl::StatusOr<const Algorithm*> Choose(const Shape& shape, const Spec& spec);
  absl::StatusOr<const Algorithm*> Cheapest(CallKind kind, bool ordered, int log_bytes);
  double Estimate(const Algorithm& algorithm, const Spec& spec, int64_t bytes) const;
  std::shared_ptr<const Schedule> ScheduleFor(const Algorithm& algorithm, const Spec& spec);
  std::shared_ptr<const Plan> PointToPoint(const Shape& shape, Direction direction) const;
  int64_t DataBytes(const Shape& shape) const;
  int LanesFor(const Shape& shape) const;

  const int rank_;
  const Topology topology_;
  const std::vector<Override> overrides_;
  const bool local_;
  absl::flat_hash_map<Shape, std::shared_ptr<const Plan>> plans_;
  absl::flat_hash_map<std::tuple<CallKind, bool, int>, const Algorithm*> cheapest_;
  struct Built {
    const Algorithm* algorithm;
    std::shared_ptr<const Schedule> schedule;
  };
  std::vector<Built> schedules_;
};

}  // namespace entrain
