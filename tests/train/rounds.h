// Shared by the tests of exchanges: a model of four layers, its rounds, and training steps that
// simple loops can repeat.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"

#include "lib/train/edit/layer_sync.h"
#include "tests/train/replicas.h"

namespace entrain {

inline const std::vector<int64_t> kFourLayers = {37, 8, 50, 1};
ShardConfig FourLayers(int prefetch = 1);
// Makes the next forward pass of that model. Returns the first error.
absl::Status ForwardFourLayers(LayerSync& edit);

// Numbers of each rank, written while the ranks run and read afterwards.
class Collected {
 public:
  explicit Collected(const Grid& grid) : grid_(grid), slabs_(static_cast<size_t>(grid.ranks())) {}
  void Put(const Replica& r, std::vector<float> slab) {
    slabs_[static_cast<size_t>(r.replica() * grid_.shards + r.slot())] = std::move(slab);
  }
  const std::vector<float>& at(int replica, int slot) const {
    return slabs_[static_cast<size_t>(replica * grid_.shards + slot)];
  }
  // Returns the numbers of one replica, all slots joined.
  std::vector<float> Whole(int replica) const;
  // Expects equal bits on all replicas.
  void ExpectAlike() const;

 private:
  const Grid grid_;
  std::vector<std::vector<float>> slabs_;
};

// Runs rounds. In each, every replica drifts from the anchor by Noise(seed of replica, round,
// layer, element), and then the replicas exchange. Returns the final anchors of all ranks.
struct Rounds {
  Grid grid;
  EditOptions options;
  int rounds = 4;
  int shard_prefetch = 1;
  // Changes a drift. By default drifts do not change.
  std::function<float(int replica, int round, float drift)> change = {};
  // Returns the seed of a replica's drift. By default this is the replica's number.
  std::function<int(int replica)> seed = {};

  float Drift(int replica, int round, int layer, int64_t i) const;
  // Makes one round on one rank.
  void Step(Replica& r, int round) const;
  Collected Run(const std::function<void(Replica&, int round)>& after = {}) const;
};

// Returns a gradient that depends on the parameter, the step and a stream of data.
float Gradient(float theta, int stream, int step, int layer, int64_t i);

// A step of SGD with the mean gradient of the replica's streams. The slots of the replica divide
// the streams among themselves.
struct SgdStep {
  float lr;
  int streams = 0;                         // per replica; 0: one per slot
  std::vector<float>* velocity = nullptr;  // momentum 0.9
  void Run(Replica& r, int step) const;
};

}  // namespace entrain
