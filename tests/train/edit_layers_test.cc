// EDiT with models whose layers differ: frozen, replicated, or split among ranks.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"
#include "tests/train/arrays.h"
#include "tests/train/rounds.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// ---- Layers that do not train ------------------------------------------------------------------

TEST(LayerSync, AFrozenLayerIsNeitherExchangedNorCounted) {
  const Rounds all{{2, 2}, Weighed()};
  const std::vector<float> whole = all.Run().Whole(0);
  for (const int frozen : {0, 2, 3}) {
    for (const int prefetch : {0, 1, 9}) {
      ShardConfig config = FourLayers(2);
      config.layer_frozen.assign(kFourLayers.size(), 0);
      config.layer_frozen[static_cast<size_t>(frozen)] = 1;
      EditOptions options = Weighed();
      options.prefetch = prefetch;
      Collected anchors(all.grid);
      RunReplicas(all.grid, config, [&](Replica& r) {
        // The frozen values of each replica stay its own.
        r.ForEach(r.params(), [&](int l, int64_t, float& value) {
          value += l == frozen ? static_cast<float>(r.replica()) : 0.0f;
        });
        r.Edit(options);
        r.Forward();
        for (int round = 0; round < all.rounds; ++round) {
          r.DriftFromAnchor([&](int l, int64_t i) {
            return l == frozen ? 0.0f : all.Drift(r.replica(), round, l, i);
          });
          r.EndStep();
          const uint64_t sync = r.edit().info().bytes_sent_sync;
          const uint64_t shard = r.edit().info().bytes_sent_shard;
          ASSERT_TRUE(*r.edit().BeginForward(true, true));
          ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
          for (int l = 0; l < 4; ++l) {
            ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
            ASSERT_TRUE(r.shards().Wait(l).ok());
          }
          for (int l = 0; l < 4; ++l) {
            ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
          }
          EXPECT_EQ(r.edit().info().syncs, round + 1);
          uint64_t deltas = 0;
          for (int l = 0; l < 4; ++l) {
            deltas += l == frozen ? 0 : 4 * static_cast<uint64_t>(r.shards().slab().layer(l).valid);
          }
          // Across replicas: a standing, three norms, and the deltas. Within a replica: four words
          // of the standing, three norms and the anchors' checksum, then one word per layer.
          EXPECT_GE(r.edit().info().bytes_sent_sync - sync, 64 + 8 * 3 + deltas);
          EXPECT_LE(r.edit().info().bytes_sent_sync - sync, 64 + 8 * 3 + deltas + 64);
          EXPECT_EQ(r.edit().info().bytes_sent_shard - shard, 8u * 11);
        }
        r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
          if (l == frozen) {
            ASSERT_EQ(value, Replica::Initial(l, i) + static_cast<float>(r.replica()));
          }
        });
        EXPECT_TRUE(absl::IsInvalidArgument(r.edit().Report(frozen).status()));
        EXPECT_EQ(r.edit().Report(1)->norms.size(), 2u);
        EXPECT_EQ(r.params(), r.Anchor());
        anchors.Put(r, r.Anchor());
      });
      // The layers that train get the same results as if the frozen layer trained too.
      const std::vector<float> got = anchors.Whole(1);
      size_t at = 0;
      for (int l = 0; l < 4; ++l) {
        for (int64_t i = 0; i < kFourLayers[static_cast<size_t>(l)]; ++i, ++at) {
          if (l != frozen) {
            ASSERT_EQ(got[at], whole[at]) << "frozen " << frozen << ", layer " << l;
          }
        }
      }
    }
  }
}

TEST(LayerSync, AModelFrozenWholeIsRefused) {
  ShardConfig config = FourLayers();
  config.layer_counts = {3, 0};
  config.layer_frozen = {1, 0};
  RunReplicas({1, 1}, config, [](Replica& r) {
    const absl::Status status =
        LayerSync::Create(r.mesh(), r.shared_shards(), Averaging()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("there is nothing to exchange"));
  });
}

// ---- Models in parts ---------------------------------------------------------------------------

TEST(LayerSync, CopiesAlongTheContextAxisCountOnceInNorms) {
  RunReplicas({1, 2, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Weighed());
    r.Forward();
    r.DriftFromAnchor([&](int, int64_t) { return r.replica() == 0 ? 0.25f : 0.5f; });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_NEAR(r.edit().Report(2)->norms[0], 0.25 * std::sqrt(50.0), 1e-6);
    EXPECT_NEAR(r.edit().Report(2)->norms[1], 0.5 * std::sqrt(50.0), 1e-6);
  });
}

// Makes a step of plain gradient descent. Each rank's gradient is that of its own part of the
// context.
void Descend(Replica& r, int step) {
  for (int layer = 3; layer >= 0; --layer) {
    const auto lent = r.shards().Gradients(layer);
    ASSERT_TRUE(lent.ok()) << lent.status();
    const SlabLayer& shape = r.shards().slab().layer(layer);
    auto bytes = ReadArray<std::byte>(*lent, shape.padded * static_cast<int64_t>(sizeof(float)));
    auto* const grads = reinterpret_cast<float*>(bytes.data());
    for (int64_t i = 0; i < shape.full; ++i) {
      grads[i] = Noise(8 * r.replica() + 4 * r.slot() + r.copy(), step, layer, i);
    }
    WriteArray(*lent, bytes);
    ASSERT_EQ(r.shards().ReduceGradients(layer), absl::OkStatus());
  }
  ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
  std::vector<float>& grads = r.grads();
  std::vector<float>& params = r.params();
  for (size_t i = 0; i < grads.size(); ++i) {
    params[i] -= 0.1f * std::exchange(grads[i], 0.0f);
  }
}

// In warm-up, after it, and through exchanges: each rank trains on its own part, and all ranks of a
// replica stay equal.
TEST(LayerSync, CopiesAlongTheContextAxisTrainAlike) {
  constexpr int kCopies = 3, kSteps = 5;
  for (const int shards : {1, 2}) {
    const Grid grid{shards, 3, kCopies};
    // By step and copy.
    std::vector<Collected> params(kSteps * kCopies, Collected({shards, 3}));
    RunReplicas(grid, FourLayers(), [&](Replica& r) {
      EditOptions options = Averaging();
      options.local_sgd_warmup_steps = 1;
      options.local_sgd_sync_interval = 2;
      r.Edit(options);
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_EQ(r.Forward(), step == 3);
        Descend(r, step);
        params[static_cast<size_t>(step * kCopies + r.copy())].Put(r, r.params());
        r.EndStep();
      }
      EXPECT_TRUE(r.Forward());
    });
    for (int step = 0; step < kSteps; ++step) {
      for (int replica = 0; replica < 3; ++replica) {
        const auto at = static_cast<size_t>(step * kCopies);
        for (int slot = 0; slot < shards; ++slot) {
          EXPECT_EQ(params[at + 1].at(replica, slot), params[at].at(replica, slot));
          EXPECT_EQ(params[at + 2].at(replica, slot), params[at].at(replica, slot));
        }
      }
    }
  }
}

// Returns the error that all ranks report for a failed exchange.
std::string NextExchange(Replica& r) {
  absl::Status status = r.edit().EndStep();
  status.Update(r.edit().BeginForward(true, true).status());
  for (int l = 0; l < r.shards().slab().layers(); ++l) {
    status.Update(r.edit().WaitLayer(l));
  }
  status.Update(r.edit().Wish(0));
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(LayerSync, CopiesThatDriftAlongTheContextAxisAreNamed) {
  RunReplicas({2, 2, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Averaging());
    r.Forward();
    r.DriftFromAnchor([](int, int64_t) { return 0.5f; });
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    r.MeetAll();  // no rank may still be in this exchange
    // The element is in layer 2 of replica 1, in one shard of one copy. In the order of the mesh
    // this is rank 3 of the replica.
    r.DriftFromAnchor([&](int l, int64_t i) {
      return r.replica() == 1 && r.slot() == 1 && r.copy() == 1 && l == 2 && i == 49 ? 0.75f : 0.5f;
    });
    const std::string message = NextExchange(r);
    if (r.replica() == 1) {
      EXPECT_THAT(
          message,
          HasSubstr("layer 2: the copies of ranks 2 and 3 of the replica have drifted apart"));
    }
  });
}

// No rank has broadcast: the copies begin with different values, and move alike.
TEST(LayerSync, AnchorsThatDifferAlongTheContextAxisAreNamed) {
  RunReplicas({1, 2, 2}, FourLayers(), [](Replica& r) {
    if (r.copy() == 1) {
      r.params()[3] = std::nextafter(r.params()[3], 9.0f);
    }
    r.Edit(Averaging());
    r.Forward();
    r.MeetAll();  // no rank may still be in Create
    EXPECT_THAT(NextExchange(r),
                testing::ContainsRegex(
                    "the anchors of ranks 0 and 1 of the replica, which hold copies, differ: "
                    "checksums [0-9a-f]{16} and [0-9a-f]{16}"));
  });
}

TEST(LayerSync, ReplicatedLayersThatDriftAlongTheTensorAxisAreNamed) {
  RunRanks(4, [](const std::shared_ptr<Communicator>& comm) {
    MeshConfig mesh_config;
    mesh_config.lengths[static_cast<size_t>(Axis::kTensor)] = 2;
    const auto mesh = Mesh::Create(comm, mesh_config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig config;
    config.layer_counts = {31, 9};
    config.layer_replicated = {0, 1};
    Replica r(*mesh, config);
    r.Edit(Averaging());
    r.Forward();
    const auto part = static_cast<float>((*mesh)->coordinate(Axis::kTensor));
    r.DriftFromAnchor([&](int l, int64_t) { return l == 0 ? part : 0.5f; });
    r.EndStep();
    EXPECT_TRUE(r.Forward()) << "layer 0 is not replicated";
    EXPECT_EQ(comm->Barrier(),
              // No rank may still be in this exchange when the next one fails.
              absl::OkStatus());
    r.DriftFromAnchor([&](int, int64_t) { return 0.5f + part; });
    EXPECT_THAT(
        NextExchange(r),
        HasSubstr("layer 1: the copies of ranks 0 and 1 of the replica have drifted apart"));
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// A model split by tensor and by pipeline stage, and sharded. Norms, weights and clip factors are
// those of whole modules, and replicated modules stay equal.
TEST(LayerSync, ModelsSplitByTensorAndStageAreJudgedWhole) {
  RunRanks(16, [](const std::shared_ptr<Communicator>& comm) {
    MeshConfig mesh_config;
    for (const Axis axis : {Axis::kTensor, Axis::kPipeline, Axis::kShard}) {
      mesh_config.lengths[static_cast<size_t>(axis)] = 2;
    }
    const auto mesh = Mesh::Create(comm, mesh_config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig config;
    // Two modules per stage: a matrix of which each tensor rank has 31 elements, and the 9 weights
    // of a norm on both tensor ranks.
    config.layer_counts = {31, 9};
    config.layer_replicated = {0, 1};
    Replica r(*mesh, config);
    EditOptions options = Weighed();
    options.clip_pseudo_grad = 0.3;
    r.Edit(options);
    r.Forward();
    const int stage = (*mesh)->coordinate(Axis::kPipeline);
    const int part = (*mesh)->coordinate(Axis::kTensor);
    const auto drift = [](int replica, int at_stage, int at_part, int l, int64_t i) {
      return Noise(replica, at_stage, l == 0 ? at_part : 0, 100 * l + i) / 4;
    };
    r.DriftFromAnchor([&](int l, int64_t i) { return drift(r.replica(), stage, part, l, i); });
    const std::vector<float> before = r.Anchor();
    r.EndStep();
    ASSERT_TRUE(r.Forward());
    for (int l = 0; l < 2; ++l) {
      const LayerReport report = *r.edit().Report(l);
      // The whole module, element by element, as one process would compute it.
      double norms[2] = {0, 0}, combined = 0;
      for (int s = 0; s < 2; ++s) {
        for (int t = 0; t < (l == 0 ? 2 : 1); ++t) {
          for (int64_t i = 0; i < config.layer_counts[static_cast<size_t>(l)]; ++i) {
            const double d[2] = {drift(0, s, t, l, i), drift(1, s, t, l, i)};
            norms[0] += d[0] * d[0];
            norms[1] += d[1] * d[1];
            const double mean = report.weights[0] * d[0] + report.weights[1] * d[1];
            combined += mean * mean;
          }
        }
      }
      EXPECT_NEAR(report.norms[0], std::sqrt(norms[0]), 1e-5);
      EXPECT_NEAR(report.norms[1], std::sqrt(norms[1]), 1e-5);
      const double other = std::exp(std::sqrt(norms[0]) - std::sqrt(norms[1]));
      EXPECT_NEAR(report.weights[1], other / (1 + other), 1e-5);
      EXPECT_LT(report.clip_factor, 1);
      EXPECT_NEAR(report.clip_factor, 0.3 / (std::sqrt(combined) + 1e-6), 1e-5);
    }
    // The replicated module has the same bits along the tensor axis.
    const SlabLayer& norm = r.shards().slab().layer(1);
    std::vector<float> mine(r.params().begin() + norm.offset,
                            r.params().begin() + norm.offset + norm.shard);
    std::vector<float> both(2 * mine.size());
    ASSERT_EQ(
        (*mesh)->comm(Axis::kTensor)->AllGather(mine.data(), both.data(), norm.shard, DType::kF32),
        absl::OkStatus());
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), both.begin()));
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), both.begin() + norm.shard));
    EXPECT_NE(mine[0], before[static_cast<size_t>(norm.offset)]);
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(LayerSync, TensorRanksThatDisagreeAboutReplicasAreNamed) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    MeshConfig mesh_config;
    mesh_config.lengths[static_cast<size_t>(Axis::kTensor)] = 2;
    const auto mesh = Mesh::Create(comm, mesh_config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig config = FourLayers();
    config.layer_replicated = {0, 0, comm->rank() == 0 ? uint8_t{1} : uint8_t{0}, 0};
    Replica r(*mesh, config);
    const absl::Status status = LayerSync::Create(*mesh, r.shared_shards(), Averaging()).status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("elements of replicated layer 2: 50 on rank 0, 0 on rank 1"));
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

}  // namespace
}  // namespace entrain
