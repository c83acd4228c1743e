// Chooses the algorithm of a call and makes its plan. The choice is a pure function of values on
// which all ranks agree (shape of the call, size, topology, paths, overrides, tuning), never of
// local facts, so all ranks choose alike. The planner takes the first of these that can serve the
// call: an override, a choice measured in the tuning, the algorithm with the least estimate of the
// cost model.
//
// Thread safety: none. The communicator's mutex guards it.
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

  // Sets what the ranks have agreed on at their meeting. Forgets the plans made before.
  void SetPaths(const Paths& paths);
  // Sets a model of links that were just measured. `model` replaces the tuning, and the tuning's
  // choices are not used any more.
  void SetProbed(const CostModel& model);
  const CostModel& model() const { return model_; }
  const Paths& paths() const { return paths_; }

  // Returns the plan for a call. Makes it once for each shape. The plan of a send or receive has
  // one transfer.
  absl::StatusOr<std::shared_ptr<const Plan>> PlanFor(const Call& call);
  // Returns two lines. The first gives the choice, its reason and the estimate of every candidate.
  // The second begins with "for" and names the lines of a tuning that hold for these ranks. It
  // continues with "on N cores, from", the origin of the model's figures, and the figures.
  absl::StatusOr<std::string> Explain(const Call& call);

 private:
  // Returns the order in which contributions must be combined.
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
  // Returns the first algorithm that `named` covers and that can serve the call, or null.
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
  const Determinism determinism_;  // default of calls
  const Crowd crowd_;
  Paths paths_;
  CostModel model_;
  std::string source_;              // origin of the model
  std::vector<Override> measured_;  // the tuning's choices for this communicator
  absl::flat_hash_map<Shape, std::shared_ptr<const Plan>> plans_;
  // The shape of last_plan_, if there is one. Most calls are like the one before.
  Shape last_shape_{};
  std::shared_ptr<const Plan> last_plan_;
  // The key is kind, order, uneven and the bytes' logarithm.
  absl::flat_hash_map<std::tuple<CallKind, Order, bool, int>, const Algorithm*> cheapest_;
  struct Built {
    const Algorithm* algorithm;
    std::shared_ptr<const Schedule> schedule;
  };
  std::vector<Built> schedules_;
};

}  // namespace entrain
