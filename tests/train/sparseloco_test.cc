// SparseLoCo (arXiv 2508.15706) as a set of EDiT's options, compared with a plain simulation in
// double. The largest elements of each chunk travel in two bits each. The part that is not sent
// decays, and is added to the next exchange.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/train/edit/layer_sync.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using Values = std::vector<double>;

// Every slice of a shard begins a chunk. Some chunks are shorter.
const std::vector<int64_t> kCounts = {360, 120, 12};
constexpr int64_t kChunk = 64, kBlock = 16;
constexpr double kDensity = 0.3, kDecay = 0.9;

EditOptions SparseLoCo() {
  EditOptions options;
  options.local_sgd_sync_interval = 2;
  options.reducer = ReducerKind::kGta;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_lr = 1;
  options.outer_momentum = 0;
  options.sparsification_method = Sparsification::kMagnitude;
  options.sparsify_chunk = kChunk;
  options.density = kDensity;
  options.wire_format = WireFormat::kInt2;
  options.wire_block = kBlock;
  options.error_feedback = true;
  options.error_decay = kDecay;
  return options;
}

double ToBF16(double x) {
  if (x == 0) {
    return 0;
  }
  const double unit = std::ldexp(1, std::ilogb(x) - 7);
  return std::nearbyint(x / unit) * unit;
}

// Returns the positions of the chunk's largest elements, ascending.
std::vector<int64_t> LargestOf(const Values& x, int64_t first, int64_t count) {
  std::vector<int64_t> order;
  for (int64_t i = first; i < first + count; ++i) {
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::abs(x[static_cast<size_t>(a)]) > std::abs(x[static_cast<size_t>(b)]);
  });
  order.resize(static_cast<size_t>(
      std::max<int64_t>(1, static_cast<int64_t>(kDensity * static_cast<double>(count)))));
  std::sort(order.begin(), order.end());
  return order;
}

// Writes the elements that are sent of one slice, [first, first + count) of x, with zeros between.
void Send(const Values& x, int64_t first, int64_t count, Values* sent) {
  std::vector<int64_t> kept;
  for (int64_t chunk = 0; chunk < count; chunk += kChunk) {
    const auto largest = LargestOf(x, first + chunk, std::min(kChunk, count - chunk));
    kept.insert(kept.end(), largest.begin(), largest.end());
  }
  for (size_t begin = 0; begin < kept.size(); begin += kBlock) {
    const size_t end = std::min(kept.size(), begin + kBlock);
    double scale = 0;
    for (size_t i = begin; i < end; ++i) {
      scale = std::max(scale, std::abs(x[static_cast<size_t>(kept[i])]));
    }
    for (size_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(kept[i]);
      const double third = std::abs(x[at]) < scale * 2 / 3 ? 1 : 3;
      (*sent)[at] = (x[at] < 0 ? -third : third) * scale / 3;
    }
  }
}

// One layer of all replicas, for one slot's shard.
struct Simulated {
  Values anchor;
  std::vector<Values> live, owed;  // by replica
};

void Exchange(Simulated* shard) {
  const size_t replicas = shard->live.size();
  const auto count = static_cast<int64_t>(shard->anchor.size());
  const int64_t slice = count / static_cast<int64_t>(replicas);
  Values mean(shard->anchor.size());
  for (size_t n = 0; n < replicas; ++n) {
    Values& owed = shard->owed[n];
    for (size_t i = 0; i < owed.size(); ++i) {
      owed[i] = kDecay * owed[i] + shard->anchor[i] - shard->live[n][i];
    }
    Values sent(owed.size());
    for (int64_t first = 0; first < count; first += slice) {
      Send(owed, first, slice, &sent);
    }
    for (size_t i = 0; i < owed.size(); ++i) {
      owed[i] -= sent[i];
      mean[i] += sent[i] / static_cast<double>(replicas);
    }
  }
  for (size_t i = 0; i < mean.size(); ++i) {
    shard->anchor[i] -= ToBF16(mean[i]);
  }
  shard->live.assign(replicas, shard->anchor);
}

double InnerStep(double theta, int replica, int64_t step, int layer, int64_t element) {
  return theta + 0.2 * (Noise(replica, layer, element) - theta) +
         0.05 * Noise(step, replica, layer, element);
}

class SparseLoCoTest : public ::testing::TestWithParam<Grid> {};

TEST_P(SparseLoCoTest, FollowsTheSimulation) {
  const Grid grid = GetParam();
  ShardConfig config;
  config.layer_counts = kCounts;
  RunReplicas(grid, config, [&](Replica& r) {
    r.Edit(SparseLoCo());
    ASSERT_FALSE(r.Forward());
    const auto replicas = static_cast<size_t>(grid.replicas);
    std::vector<Simulated> model(kCounts.size());
    const auto part = [&](int l) { return kCounts[static_cast<size_t>(l)] / grid.shards; };
    for (int l = 0; l < 3; ++l) {
      Simulated& shard = model[static_cast<size_t>(l)];
      for (int64_t i = 0; i < part(l); ++i) {
        shard.anchor.push_back(Replica::Initial(l, r.slot() * part(l) + i));
      }
      shard.live.assign(replicas, shard.anchor);
      shard.owed.assign(replicas, Values(shard.anchor.size()));
    }
    for (int64_t step = 1; step <= 12; ++step) {
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        value = static_cast<float>(InnerStep(value, r.replica(), step, l, i));
      });
      for (int l = 0; l < 3; ++l) {
        Simulated& shard = model[static_cast<size_t>(l)];
        for (size_t n = 0; n < replicas; ++n) {
          for (int64_t i = 0; i < part(l); ++i) {
            double& live = shard.live[n][static_cast<size_t>(i)];
            live = InnerStep(live, static_cast<int>(n), step, l, r.slot() * part(l) + i);
          }
        }
        if (step % 2 == 0) {
          Exchange(&shard);
        }
      }
      r.EndStep();
      EXPECT_EQ(r.Forward(), step % 2 == 0);
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        const Simulated& shard = model[static_cast<size_t>(l)];
        const auto at = static_cast<size_t>(i - r.slot() * part(l));
        ASSERT_NEAR(value, shard.live[static_cast<size_t>(r.replica())][at], 1e-5)
            << "step " << step << ", layer " << l << ", element " << i;
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, SparseLoCoTest,
                         ::testing::Values(Grid{1, 2}, Grid{2, 2}, Grid{1, 3}),
                         [](const auto& test) {
                           return absl::StrCat("m", test.param.shards, "_n", test.param.replicas);
                         });

}  // namespace
}  // namespace entrain
