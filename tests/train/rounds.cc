#include "tests/train/rounds.h"

#include <cstring>

#include "gtest/gtest.h"

#include "tests/train/arrays.h"

namespace entrain {

absl::Status ForwardFourLayers(LayerSync& edit) {
  absl::Status status = edit.BeginForward(true, true).status();
  for (int layer = 0; layer < std::ssize(kFourLayers) && status.ok(); ++layer) {
    status = edit.WaitLayer(layer);
  }
  return status;
}

ShardConfig FourLayers(int prefetch) {
  ShardConfig config;
  config.layer_counts = kFourLayers;
  config.prefetch = prefetch;
  return config;
}

std::vector<float> Collected::Whole(int replica) const {
  std::vector<std::vector<float>> slabs;
  for (int slot = 0; slot < grid_.shards; ++slot) {
    slabs.push_back(at(replica, slot));
  }
  return Assemble(slabs, kFourLayers);
}

void Collected::ExpectAlike() const {
  for (int replica = 1; replica < grid_.replicas; ++replica) {
    for (int slot = 0; slot < grid_.shards; ++slot) {
      const std::vector<float>&mine = at(replica, slot), &first = at(0, slot);
      ASSERT_EQ(mine.size(), first.size());
      EXPECT_EQ(std::memcmp(mine.data(), first.data(), mine.size() * sizeof(float)), 0)
          << "replica " << replica << " slot " << slot;
    }
  }
}

float Rounds::Drift(int replica, int round, int layer, int64_t i) const {
  const int from = seed ? seed(replica) : replica;
  const float drift = Noise(from, round, layer, i) / 4;
  return change ? change(replica, round, drift) : drift;
}

void Rounds::Step(Replica& r, int round) const {
  r.DriftFromAnchor([&](int l, int64_t i) { return Drift(r.replica(), round, l, i); });
  r.EndStep();
  EXPECT_TRUE(r.Forward());
  EXPECT_EQ(r.params(), r.Anchor());
}

Collected Rounds::Run(const std::function<void(Replica&, int round)>& after) const {
  Collected anchors(grid);
  RunReplicas(grid, FourLayers(shard_prefetch), [&](Replica& r) {
    r.Edit(options);
    EXPECT_FALSE(r.Forward());  // creates the anchors
    for (int round = 0; round < rounds; ++round) {
      Step(r, round);
      if (after) {
        after(r, round);
      }
    }
    anchors.Put(r, r.Anchor());
  });
  return anchors;
}

float Gradient(float theta, int stream, int step, int layer, int64_t i) {
  return 0.3f * theta + Noise(stream, step, layer, i);
}

void SgdStep::Run(Replica& r, int step) const {
  const int slots = r.shards().slab().slots();
  const int share = streams == 0 ? 1 : streams / slots;
  const int first = (r.replica() * slots + r.slot()) * share;
  std::vector<std::vector<float>> layers;
  ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
  for (int l = 0; l < r.shards().slab().layers(); ++l) {
    ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
    const auto params = r.shards().Wait(l);
    ASSERT_TRUE(params.ok()) << params.status();
    const int64_t full = r.shards().slab().layer(l).full;
    layers.emplace_back(static_cast<size_t>(full));
    const auto values = ReadArray<std::byte>(*params, full * static_cast<int64_t>(sizeof(float)));
    std::memcpy(layers.back().data(), values.data(), values.size());
    ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
  }
  for (int l = r.shards().slab().layers() - 1; l >= 0; --l) {
    const auto grads = r.shards().Gradients(l);
    ASSERT_TRUE(grads.ok()) << grads.status();
    const std::vector<float>& theta = layers[static_cast<size_t>(l)];
    auto bytes = ReadArray<std::byte>(*grads, static_cast<int64_t>(theta.size() * sizeof(float)));
    auto* const sums = reinterpret_cast<float*>(bytes.data());
    for (size_t i = 0; i < theta.size(); ++i) {
      for (int stream = first; stream < first + share; ++stream) {
        sums[i] += Gradient(theta[i], stream, step, l, static_cast<int64_t>(i)) /
                   static_cast<float>(share);
      }
    }
    WriteArray(*grads, bytes);
    ASSERT_EQ(r.shards().ReduceGradients(l), absl::OkStatus());
  }
  ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
  std::vector<float>&params = r.params(), &grads = r.grads();
  for (size_t i = 0; i < params.size(); ++i) {
    float step_by = grads[i];
    if (velocity != nullptr) {
      velocity->resize(params.size());
      step_by += 0.9f * (*velocity)[i];
      (*velocity)[i] = step_by;
    }
    params[i] -= lr * step_by;
    grads[i] = 0;
  }
  r.EndStep();
}

}  // namespace entrain
