// Which algorithm a call takes, and its plan. The choice is a pure function of what all ranks agree
// on (shape of the call, size, topology, overrides), never of local facts, so it cannot diverge.
//
// Overrides: "COLLECTIVE:ALGORITHM[@LOW-HIGH]", comma separated; sizes in bytes with K, M, G, HIGH
// may be "inf"; the bytes are those of the larger buffer of one rank (1M where parts are uneven and no
// rank knows them all: gather_v, scatter_v, all_to_all_v).
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
  // How contributions must be combined; each includes the ones before.
  enum class Order : uint8_t { kAny, kByRank, kAtOnce };
  static Order OrderOf(const Reduction& reduction);
  static bool Keeps(const Algorithm& algorithm, Order order);
  struct Shape {
    CallKind kind;
    int64_t element_bytes, count;
    int root;
    Order order;
    bool in_place;  // all_to_all only
    bool operator==(const Shape&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Shape& s) {
      return H::combine(std::move(h), s.kind, s.element_bytes, s.count, s.root, s.order,
                        s.in_place);
    }
  };
  absl::StatusOr<std::shared_ptr<const Plan>> Make(const Shape& shape, const PartCounts* uneven);
  absl::StatusOr<const Algorithm*> Choose(const Shape& shape, const Spec& spec);
  absl::StatusOr<const Algorithm*> Cheapest(const Spec& spec, Order order, int log_bytes);
  double Estimate(const Algorithm& algorithm, const Spec& spec, int64_t bytes) const;
  std::shared_ptr<const Schedule> ScheduleFor(const Algorithm& algorithm, const Spec& spec);
  std::shared_ptr<const Plan> PointToPoint(const Shape& shape, Direction direction) const;
  int64_t DataBytes(const Shape& shape) const;
  int LanesFor(const Shape& shape, const Algorithm& algorithm) const;

  const int rank_;
  const Topology topology_;
  const std::vector<Override> overrides_;
  const bool local_;
  absl::flat_hash_map<Shape, std::shared_ptr<const Plan>> plans_;
  Shape last_shape_{};  // of last_plan_, if there is one: most calls are like the one before
  std::shared_ptr<const Plan> last_plan_;
  // By kind, order, uneven and the bytes' logarithm.
  absl::flat_hash_map<std::tuple<CallKind, Order, bool, int>, const Algorithm*> cheapest_;
  struct Built {
    const Algorithm* algorithm;
    std::shared_ptr<const Schedule> schedule;
  };
  std::vector<Built> schedules_;
};

}  // namespace entrain
