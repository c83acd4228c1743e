// The planner chooses the algorithm of a call and makes the plan of the call.
//
// The choice depends only on values that are equal on all ranks: the shape and size of the call,
// the topology, the paths, the overrides and the tuning. So all ranks choose the same algorithm.
// The planner has three sources: first the overrides, then the tuning's measured choices, then the
// cost model's estimates. It uses the first algorithm from these sources that can serve the call.
//
// Thread safety: none. The mutex of CallFunnel guards each planner.
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
#include "lib/comm/plan/cost_model.h"
#include "lib/comm/plan/overrides.h"
#include "lib/comm/plan/topology.h"
#include "lib/comm/plan/tuning.h"
#include "lib/engine/executor.h"

namespace entrain {

class Planner {
 public:
  Planner(int rank, Topology topology, std::vector<Override> overrides,
          std::shared_ptr<const Tuning> tuning, const Paths& paths,
          Determinism determinism = Determinism::kDefault);

  // Sets the paths, which must be equal on all ranks. Discards all plans.
  void SetPaths(const Paths& paths);
  // Sets a cost model with newly measured links. `model` replaces the tuning's values. From then
  // on, the planner does not use the tuning's choices. Discards all plans.
  void SetProbed(const CostModel& model);
  const CostModel& model() const { return model_; }
  const Paths& paths() const { return paths_; }

  // Returns the plan for a call. Keeps the plan for later calls of the same shape, unless the call
  // has uneven parts. The plan of a send or receive has one transfer.
  absl::StatusOr<std::shared_ptr<const Plan>> PlanFor(const Call& call);
  // Returns two lines. The first line has the chosen algorithm, the reason for the choice, and the
  // estimate of every candidate. The second line is "for RANKS on N cores, from ORIGIN: FIGURES".
  // RANKS has the form of a tuning line ("shm ranks 4"). If no tuning line can apply to this
  // communicator, RANKS is "R ranks on H hosts". FIGURES are the values of the cost model.
  absl::StatusOr<std::string> Explain(const Call& call);

 private:
  // Returns the order in which contributions must be reduced.
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
  // Chooses the algorithm. If `reason` is not null, writes the reason for the choice to it.
  absl::StatusOr<const Algorithm*> Choose(const Shape& shape, const Spec& spec,
                                          std::string* reason);
  // Returns the algorithm of the override `named`. Returns null if the override does not cover the
  // call, or if its algorithm cannot serve the call.
  const Algorithm* Named(const Override& named, int64_t bytes, Order order, const Spec& spec) const;
  absl::StatusOr<const Algorithm*> Cheapest(Spec spec, Order order, int log_bytes);
  std::vector<const Algorithm*> Candidates(const Spec& spec, Order order) const;
  void Forget();
  std::shared_ptr<const Schedule> ScheduleFor(const Algorithm& algorithm, const Spec& spec);
  std::shared_ptr<const Plan> PointToPoint(const Shape& shape, Direction direction) const;
  int64_t DataBytes(const Shape& shape) const;
  int64_t MostInline(const Shape& shape) const;
  // Returns the groups between which data should cross rarely: by rank, the number of its site if
  // there are several sites, else the number of its host.
  absl::Span<const int> groups() const {
    return paths_.sites.empty() ? topology_.host_of : paths_.sites;
  }

  const int rank_;
  const Topology topology_;
  const std::vector<Override> overrides_;
  const std::shared_ptr<const Tuning> tuning_;
  const Determinism determinism_;  // the default for calls
  const Crowd crowd_;
  Paths paths_;
  CostModel model_;
  std::string source_;              // the origin of the model's values, for Explain
  std::vector<Override> measured_;  // the tuning's choices for this communicator
  absl::flat_hash_map<Shape, std::shared_ptr<const Plan>> plans_;
  // The shape of last_plan_. Not valid while last_plan_ is null. Most calls have the shape of the
  // previous call, so PlanFor compares this shape before it searches plans_.
  Shape last_shape_{};
  std::shared_ptr<const Plan> last_plan_;
  // The choices of Cheapest, by kind, order, whether parts are uneven, and logarithm of the bytes.
  absl::flat_hash_map<std::tuple<CallKind, Order, bool, int>, const Algorithm*> cheapest_;
  struct Built {
    const Algorithm* algorithm;
    std::shared_ptr<const Schedule> schedule;
  };
  std::vector<Built> schedules_;
};

}  // namespace entrain
