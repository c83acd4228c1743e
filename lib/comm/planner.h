// Which algorithm a call takes, and its plan. The choice is a pure function of what all ranks agree
// on (shape of the call, size, topology, paths, overrides, tuning), never of local facts, so it cannot
// diverge. The first that can serve the call counts: an override, a choice that the tuning has
// measured, the least estimate of the cost model.
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

#include "collectives/catalog.h"
#include "lib/comm/cost_model.h"
#include "lib/comm/overrides.h"
#include "lib/comm/topology.h"
#include "lib/comm/tuning.h"
#include "lib/engine/executor.h"

namespace entrain {

class Planner {
 public:
  Planner(int rank, Topology topology, std::vector<Override> overrides,
          std::shared_ptr<const Tuning> tuning, const Paths& paths,
          Determinism determinism = Determinism::kDefault);

  // What ranks agreed on when they had met. Plans made before are forgotten.
  void SetPaths(const Paths& paths);
  // Links were measured just now: `model` instead of the tuning, whose choices count no more.
  void SetProbed(const CostModel& model);
  const CostModel& model() const { return model_; }
  const Paths& paths() const { return paths_; }

  // The plan for a call; made once for each shape. Sends and receives get a plan of one transfer.
  absl::StatusOr<std::shared_ptr<const Plan>> PlanFor(const Call& call);
  // Two lines: the choice, its reason and the estimate of every candidate; and "for", which lines of a
  // tuning speak of these ranks, "on N cores, from", where the model's figures come from, and these.
  absl::StatusOr<std::string> Explain(const Call& call);

 private:
  // A result of this rank's is cold from here on, see Plan::Make.
  int64_t ColdBytes(const Spec& spec) const;
  // How contributions must be combined.
  Order OrderOf(const Call& call) const;
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
  Shape ShapeOf(const Call& call) const;
  Spec SpecOf(const Shape& shape, const PartCounts* uneven) const;
  // `reason` may be null.
  absl::StatusOr<const Algorithm*> Choose(const Shape& shape, const Spec& spec,
                                          std::string* reason);
  // The first of them that covers and can serve the call, or null.
  const Algorithm* Named(const Override& named, int64_t bytes, Order order, const Spec& spec) const;
  absl::StatusOr<const Algorithm*> Cheapest(Spec spec, Order order, int log_bytes);
  std::vector<const Algorithm*> Candidates(const Spec& spec, Order order) const;
  void Forget();
  std::shared_ptr<const Schedule> ScheduleFor(const Algorithm& algorithm, const Spec& spec);
  std::shared_ptr<const Plan> PointToPoint(const Shape& shape, Direction direction) const;
  int64_t DataBytes(const Shape& shape) const;

  const int rank_;
  const Topology topology_;
  const std::vector<Override> overrides_;
  const std::shared_ptr<const Tuning> tuning_;
  const Determinism determinism_;  // of calls that do not say
  const Crowd crowd_;
  Paths paths_;
  CostModel model_;
  std::string source_;              // of the model
  std::vector<Override> measured_;  // the tuning's choices for this communicator
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
