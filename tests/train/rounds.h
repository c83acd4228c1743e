// What tests of exchanges share: a model of four layers, rounds of it, and training steps that
// plain loops can repeat.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/train/replicas.h"

namespace entrain {

inline const std::vector<int64_t> kFourLayers = {37, 8, 50, 1};
ShardConfig FourLayers(int prefetch = 1);

// Some numbers of each rank, written while the ranks run and read afterwards.
class Collected {
 public:
  explicit Collected(const Grid& grid) : grid_(grid), slabs_(static_cast<size_t>(grid.ranks())) {}
  void Put(const Replica& r, std::vector<float> slab) {
    slabs_[static_cast<size_t>(r.replica() * grid_.shards + r.slot())] = std::move(slab);
  }
  const std::vector<float>& at(int replica, int slot) const {
    return slabs_[static_cast<size_t>(replica * grid_.shards + slot)];
  }
  // Of one replica, all slots together.
  std::vector<float> Whole(int replica) const;
  // That all replicas have the same bits.
  void ExpectAlike() const;

 private:
  const Grid grid_;
  std::vector<std::vector<float>> slabs_;
};

// Runs rounds in which every replica drifts by Noise(seed of replica, round, layer, element) from
// the anchor, then exchanges; gives the anchors of all ranks at the end.
struct Rounds {
  Grid grid;
  EditOptions options;
  int rounds = 4;
  int shard_prefetch = 1;
  // Changes a drift; by default none.
  std::function<float(int replica, int round, float drift)> change = {};
  // The seed of a replica's drift; by default its number.
  std::function<int(int replica)> seed = {};

  float Drift(int replica, int round, int layer, int64_t i) const;
  // One round of one rank.
  void Step(Replica& r, int round) const;
  Collected Run(const std::function<void(Replica&, int round)>& after = {}) const;
};

// A gradient that depends on the parameter, the step and a stream of data.
float Gradient(float theta, int stream, int step, int layer, int64_t i);

// A step of SGD: the mean gradient of the replica's streams, which its slots share between them.
struct SgdStep {
  float lr;
  int streams = 0;                         // of a replica; 0: one a slot
  std::vector<float>* velocity = nullptr;  // momentum 0.9
  void Run(Replica& r, int step) const;
};

}  // namespace entrain
