#include "lib/train/shard/layer_shards.h"

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/dtype.h"
#include "lib/base/status.h"
#include "tests/support/ranks.h"
#include "tests/train/arrays.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// Uneven on purpose: the last layer has fewer elements than most groups have ranks.
const std::vector<int64_t> kLayers = {37, 8, 50, 1};

ShardConfig ConfigOf(DType dtype, int prefetch = 1) {
  ShardConfig config;
  config.layer_counts = kLayers;
  config.param_dtype = config.grad_dtype = dtype;
  config.prefetch = prefetch;
  return config;
}

float At(const void* values, DType dtype, int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(values)[i]
                              : BF16ToFloat(static_cast<const uint16_t*>(values)[i]);
}

void AddTo(void* values, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(values)[i] += value;
  } else {
    uint16_t& bits = static_cast<uint16_t*>(values)[i];
    bits = FloatToBF16(BF16ToFloat(bits) + value);
  }
}

void ExpectWholeLayer(Replica& r, DType dtype, int layer) {
  const auto params = r.shards().Wait(layer);
  ASSERT_TRUE(params.ok()) << params.status();
  const SlabLayer& shape = r.shards().slab().layer(layer);
  const auto seen = ReadArray<std::byte>(*params, shape.padded * SizeOf(dtype));
  for (int64_t i = 0; i < shape.padded; ++i) {
    float want = i < shape.full ? Replica::Initial(layer, i) : 0;
    want = dtype == DType::kF32 ? want : BF16ToFloat(FloatToBF16(want));
    ASSERT_EQ(At(seen.data(), dtype, i), want) << "layer " << layer << " element " << i;
  }
}

// M, N, ranks along the context axis; whether each replica is on a host of its own.
class Shards : public testing::TestWithParam<std::tuple<int, int, int, DType, bool>> {
 protected:
  Grid grid() const {
    return {std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()),
            std::get<4>(GetParam())};
  }
  DType dtype() const { return std::get<3>(GetParam()); }
};

TEST_P(Shards, GatherDeliversWholeLayersUpAndDown) {
  for (const int prefetch : {0, 1, 3}) {
    RunReplicas(grid(), ConfigOf(dtype(), prefetch), [&](Replica& r) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kForward}) {
        ASSERT_EQ(r.shards().BeginPass(pass), absl::OkStatus());
        for (int k = 0; k < 4; ++k) {
          const int layer = pass == Pass::kForward ? k : 3 - k;
          ExpectWholeLayer(r, dtype(), layer);
          ASSERT_EQ(r.shards().Release(layer), absl::OkStatus());
        }
      }
    });
  }
}

TEST_P(Shards, GathersMayStartInAnyOrderOnEachRank) {
  RunReplicas(grid(), ConfigOf(dtype(), 0), [&](Replica& r) {
    for (int k = 0; k < 4; ++k) {
      ASSERT_EQ(r.shards().Gather((k + r.slot()) % 4), absl::OkStatus());
    }
    for (int layer = 0; layer < 4; ++layer) {
      ExpectWholeLayer(r, dtype(), layer);
    }
    for (int layer = 0; layer < 4; ++layer) {
      ASSERT_EQ(r.shards().Release(layer), absl::OkStatus());
    }
  });
}

// Small multiples of 1/8, so that bf16 sums are exact as well.
float Gradient(int64_t rank, int64_t layer, int64_t element, int64_t microbatch) {
  return static_cast<float>((rank * 3 + layer + element + microbatch) % 5) / 8;
}

void ReduceLayer(Replica& r, DType dtype, int layer, int64_t rank, int microbatch) {
  const auto grads = r.shards().Gradients(layer);
  ASSERT_TRUE(grads.ok()) << grads.status();
  const SlabLayer& shape = r.shards().slab().layer(layer);
  auto sums = ReadArray<std::byte>(*grads, shape.padded * SizeOf(dtype));
  for (int64_t i = 0; i < shape.padded; ++i) {
    ASSERT_EQ(At(sums.data(), dtype, i), 0) << "element " << i;
  }
  for (int64_t i = 0; i < shape.full; ++i) {
    AddTo(sums.data(), dtype, i, Gradient(rank, layer, i, microbatch));
  }
  WriteArray(*grads, sums);
  ASSERT_EQ(r.shards().ReduceGradients(layer), absl::OkStatus());
}

void Reduce(Replica& r, DType dtype, int64_t rank, int microbatch) {
  for (int layer = 3; layer >= 0; --layer) {
    ReduceLayer(r, dtype, layer, rank, microbatch);
  }
}

TEST_P(Shards, GradientsAreAveragedOverTheirScopeAndAccumulate) {
  const int parts = grid().shards * grid().copies, replicas = grid().replicas;
  for (const GradientScope scope : {GradientScope::kLocal, GradientScope::kGlobal}) {
    RunReplicas(grid(), ConfigOf(dtype()), [&](Replica& r) {
      const int64_t rank = r.replica() * parts + r.slot() * grid().copies + r.copy();
      ASSERT_EQ(r.shards().SetGradients(scope), absl::OkStatus());
      // The second micro-batch is under way before the first has arrived.
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        Reduce(r, dtype(), rank, microbatch);
      }
      ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
      const bool global = scope == GradientScope::kGlobal;
      r.ForEach(r.grads(), [&](int layer, int64_t i, float& got) {
        double sum = 0;
        for (int64_t n = 0; n < replicas; ++n) {
          for (int64_t m = 0; (global || n == r.replica()) && m < parts; ++m) {
            sum += Gradient(n * parts + m, layer, i, 0) + Gradient(n * parts + m, layer, i, 1);
          }
        }
        const double want = sum / (parts * (global ? replicas : 1));
        ASSERT_NEAR(got, want, 1e-6) << "layer " << layer << " element " << i;
      });
    });
  }
}

// The reference, in its plainest form, adds each element of the mean gradient once.
TEST_P(Shards, TheNormOfGradientsCountsEachElementOnce) {
  const int parts = grid().shards * grid().copies, replicas = grid().replicas;
  RunReplicas(grid(), ConfigOf(dtype()), [&](Replica& r) {
    const int64_t rank = r.replica() * parts + r.slot() * grid().copies + r.copy();
    Reduce(r, dtype(), rank, 0);
    EXPECT_THAT(std::string(r.shards().GradientNorm().status().message()),
                HasSubstr("shard: gradient_norm: nobody has waited for the gradients of layers"));
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    double square = 0;
    for (int layer = 0; layer < 4; ++layer) {
      for (int64_t i = 0; i < kLayers[static_cast<size_t>(layer)]; ++i) {
        double sum = 0;
        for (int64_t one = 0; one < parts * replicas; ++one) {
          sum += Gradient(one, layer, i, 0);
        }
        square += sum * sum / (parts * replicas) / (parts * replicas);
      }
    }
    const auto norm = r.shards().GradientNorm();
    ASSERT_TRUE(norm.ok()) << norm.status();
    EXPECT_NEAR(*norm, std::sqrt(square), 1e-5 * std::sqrt(square));
    EXPECT_EQ(*r.shards().GradientNorm(), *norm);
  });
}

// Memory of the test, for one layer, in every pass.
TEST_P(Shards, LayersAndGradientsAreWhereTheCallerWantsThem) {
  const int parts = grid().shards * grid().copies, replicas = grid().replicas;
  RunReplicas(grid(), ConfigOf(dtype()), [&](Replica& r) {
    const auto bytes = static_cast<size_t>(r.shards().slab().layer(2).padded * SizeOf(dtype()));
    std::vector<std::byte> whole(bytes), sums(bytes, std::byte{0x7f});
    ASSERT_EQ(r.shards().SetBuffers(2, whole.data(), sums.data()), absl::OkStatus());
    const int64_t rank = r.replica() * parts + r.slot() * grid().copies + r.copy();
    for (int pass = 0; pass < 2; ++pass) {
      for (int layer = 0; layer < 4; ++layer) {
        ExpectWholeLayer(r, dtype(), layer);
        EXPECT_EQ(*r.shards().Wait(layer) == whole.data(), layer == 2);
      }
      EXPECT_THAT(std::string(r.shards().SetBuffers(2, nullptr, nullptr).message()),
                  HasSubstr("layer 2 is gathered"));
      for (int layer = 0; layer < 4; ++layer) {
        ASSERT_EQ(r.shards().Release(layer), absl::OkStatus());
      }
      EXPECT_EQ(*r.shards().Gradients(2), sums.data());
      EXPECT_THAT(std::string(r.shards().SetBuffers(2, nullptr, nullptr).message()),
                  HasSubstr("gradients of layer 2 are handed out"));
      Reduce(r, dtype(), rank, pass);  // the first may be under way: zeros again
    }
    ASSERT_EQ(r.shards().SetBuffers(2, nullptr, nullptr), absl::OkStatus());
    sums.assign(bytes, std::byte{0x7f});  // it is not read any more
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    r.ForEach(r.grads(), [&](int layer, int64_t i, float& got) {
      double sum = 0;
      for (int64_t one = 0; one < parts * replicas; ++one) {
        sum += Gradient(one, layer, i, 0) + Gradient(one, layer, i, 1);
      }
      ASSERT_NEAR(got, sum / (parts * replicas), 1e-6) << "layer " << layer << " element " << i;
    });
    EXPECT_NE(*r.shards().Gradients(2), sums.data());
  });
}

// Two opposite orders within a replica, equal in all replicas.
TEST_P(Shards, LayersMayBeReducedInAnyOrderWithinAReplica) {
  const int64_t parts = grid().shards * grid().copies, ranks = parts * grid().replicas;
  RunReplicas(grid(), ConfigOf(dtype()), [&](Replica& r) {
    const int64_t rank = r.replica() * parts + r.slot() * grid().copies + r.copy();
    for (int k = 0; k < 4; ++k) {
      ReduceLayer(r, dtype(), (r.slot() + r.copy()) % 2 == 0 ? k : 3 - k, rank, 0);
    }
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    r.ForEach(r.grads(), [&](int layer, int64_t i, float& got) {
      double sum = 0;
      for (int64_t one = 0; one < ranks; ++one) {
        sum += Gradient(one, layer, i, 0);
      }
      ASSERT_NEAR(got, sum / static_cast<double>(ranks), 1e-6)
          << "layer " << layer << " element " << i;
    });
  });
}

TEST_P(Shards, BroadcastGivesReplicaZerosParametersToAll) {
  RunReplicas(grid(), ConfigOf(dtype()), [&](Replica& r) {
    r.ForEach(r.params(), [&](int, int64_t, float& value) {
      value += static_cast<float>(r.replica() + 2 * r.copy());
    });
    ASSERT_EQ(r.shards().Broadcast(), absl::OkStatus());
    r.ForEach(r.params(), [&](int layer, int64_t i, float& value) {
      ASSERT_EQ(value, Replica::Initial(layer, i));
    });
  });
}

// Both the gradients and the broadcast cross replicas.
TEST(LayerShards, ABroadcastComesAfterTheGradientsThatAreUnderWay) {
  RunReplicas({2, 2}, ConfigOf(DType::kF32), [&](Replica& r) {
    for (int round = 1; round <= 4; ++round) {
      r.ForEach(r.params(),
                [&](int, int64_t, float& value) { value += static_cast<float>(r.replica()); });
      Reduce(r, DType::kF32, 2 * r.replica() + r.slot(), 0);
      ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
      ASSERT_EQ(r.shards().Broadcast(), absl::OkStatus());
      r.ForEach(r.params(), [&](int layer, int64_t i, float& value) {
        ASSERT_EQ(value, Replica::Initial(layer, i));
      });
      r.ForEach(r.grads(), [&](int layer, int64_t i, float& got) {
        float sum = 0;
        for (int64_t rank = 0; rank < 4; ++rank) {
          sum += Gradient(rank, layer, i, 0);
        }
        ASSERT_NEAR(got, static_cast<float>(round) * sum / 4, 1e-6);
      });
    }
  });
}

std::string NameOfGrid(const testing::TestParamInfo<Shards::ParamType>& info) {
  const auto& [shards, replicas, copies, dtype, hosts] = info.param;
  return absl::StrCat("m", shards, "_n", replicas, "_c", copies, "_", std::string(NameOf(dtype)),
                      hosts ? "_hosts" : "");
}
INSTANTIATE_TEST_SUITE_P(All, Shards,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 2),
                                          testing::Values(1),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(false)),
                         NameOfGrid);
INSTANTIATE_TEST_SUITE_P(Context, Shards,
                         testing::Combine(testing::Values(1, 2), testing::Values(1, 2),
                                          testing::Values(2),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(false)),
                         NameOfGrid);

INSTANTIATE_TEST_SUITE_P(Hosts, Shards,
                         testing::Combine(testing::Values(1, 2), testing::Values(2, 3),
                                          testing::Values(1, 2), testing::Values(DType::kF32),
                                          testing::Values(true)),
                         NameOfGrid);

TEST(LayerShards, LendsTheSlabItselfWhenNothingHasToBeGathered) {
  RunReplicas({1, 2}, ConfigOf(DType::kF32), [](Replica& r) {
    const auto params = r.shards().Wait(2);
    ASSERT_TRUE(params.ok()) << params.status();
    EXPECT_EQ(*params, r.shards().live().param(2));
  });
}

TEST(LayerShards, FrozenAndEmptyLayersPassThrough) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Grid grid : {Grid{1, 1}, Grid{2, 2}}) {
      ShardConfig config = ConfigOf(dtype);
      config.layer_counts = {0, 37, 8, 0};  // a root without parameters, and one at the end
      config.layer_frozen = {0, 1, 0, 1};
      RunReplicas(grid, config, [&](Replica& r) {
        ASSERT_EQ(r.shards().Broadcast(), absl::OkStatus());
        for (int layer = 0; layer < 4; ++layer) {
          ExpectWholeLayer(r, dtype, layer);
          ASSERT_EQ(r.shards().Release(layer), absl::OkStatus());
        }
        for (const int layer : {2, 0}) {
          const auto grads = r.shards().Gradients(layer);
          ASSERT_TRUE(grads.ok()) << grads.status();
          EXPECT_NE(*grads, nullptr);
          if (layer == 2) {
            auto sums = ReadArray<std::byte>(*grads, 8 * SizeOf(dtype));
            AddTo(sums.data(), dtype, 7, 1.0f);
            WriteArray(*grads, sums);
          }
          ASSERT_EQ(r.shards().ReduceGradients(layer), absl::OkStatus());
        }
        ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
        r.ForEach(r.grads(), [](int layer, int64_t i, float& got) {
          EXPECT_EQ(got, layer == 2 && i == 7 ? 1.0f : 0.0f) << layer << " " << i;
        });
        for (const absl::Status& status :
             {r.shards().Gradients(1).status(), r.shards().ReduceGradients(3)}) {
          EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
          EXPECT_THAT(std::string(status.message()), HasSubstr("is frozen, it has no gradients"));
        }
      });
    }
  }
}

TEST(LayerShards, LayersFrozenOnOneRankOnlyAreRefusedOnAll) {
  RunMesh({2, 2}, [&](const std::shared_ptr<Mesh>& mesh) {
    ShardConfig config = ConfigOf(DType::kF32);
    if (mesh->coordinate(Axis::kSync) == 1) {
      config.layer_frozen = {0, 0, 1, 0};
    }
    const absl::Status status = LayerShards::Create(mesh, config).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("shard: layer_frozen[2]: 0 on rank 0, 1 on rank 1 of the sync group"));
  });
}

TEST(LayerShards, CountsPayloadWithinAndAcrossReplicas) {
  RunReplicas({2, 2}, ConfigOf(DType::kBF16, 0), [](Replica& r) {
    EXPECT_EQ(r.shards().stats().bytes_sent_shard, 0u);
    EXPECT_EQ(r.shards().stats().bytes_sent_sync, 0u);
    uint64_t shard_elements = 0;
    for (int layer = 0; layer < 4; ++layer) {
      ASSERT_TRUE(r.shards().Wait(layer).ok());
      ASSERT_EQ(r.shards().Release(layer), absl::OkStatus());
      shard_elements += static_cast<uint64_t>(r.shards().slab().layer(layer).shard);
    }
    // Bytes to the one other rank: this rank's shard, in bf16.
    EXPECT_EQ(r.shards().stats().bytes_sent_shard, 2 * shard_elements);
    ASSERT_EQ(r.shards().SetGradients(GradientScope::kLocal), absl::OkStatus());
    Reduce(r, DType::kBF16, r.slot(), 0);
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    EXPECT_EQ(r.shards().stats().bytes_sent_shard, 4 * shard_elements);
    EXPECT_EQ(r.shards().stats().bytes_sent_sync, 0u);
    ASSERT_EQ(r.shards().SetGradients(GradientScope::kGlobal), absl::OkStatus());
    Reduce(r, DType::kBF16, r.slot(), 0);
    ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    EXPECT_GT(r.shards().stats().bytes_sent_sync, 0u);
    // At most the whole shard to every other rank.
    EXPECT_LE(r.shards().stats().bytes_sent_sync, 2 * shard_elements);
  });
}

TEST(LayerShards, DifferentLayersOnOneRankAreRefusedOnAll) {
  for (const bool more : {false, true}) {
    RunMesh({2, 2}, [&](const std::shared_ptr<Mesh>& mesh) {
      ShardConfig config = ConfigOf(DType::kF32);
      if (mesh->coordinate(Axis::kShard) == 1 && more) {
        config.layer_counts.push_back(3);
      } else if (mesh->coordinate(Axis::kShard) == 1) {
        config.layer_counts[2] = 51;
      }
      const absl::Status status = LayerShards::Create(mesh, config).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(more ? "shard: layers: 4 on rank 0, 5 on rank 1 of the shard group"
                                 : "shard: layer_counts[2]: 50 on rank 0, 51 on rank 1"));
    });
  }
}

TEST(LayerShards, MisuseIsNamed) {
  RunMesh({1, 1}, [](const std::shared_ptr<Mesh>& mesh) {
    ShardConfig config = ConfigOf(DType::kF16);
    EXPECT_THAT(std::string(LayerShards::Create(mesh, config).status().message()),
                HasSubstr("param_dtype: f16 is neither f32 nor bf16"));
    auto unbound = LayerShards::Create(mesh, ConfigOf(DType::kF32));
    ASSERT_TRUE(unbound.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition((*unbound)->Gather(0)));
    Replica r(mesh, ConfigOf(DType::kF32));
    EXPECT_THAT(std::string(r.shards().Gather(4).message()),
                HasSubstr("shard: layer: 4 is not in [0, 4)"));
    EXPECT_TRUE(absl::IsInvalidArgument(r.shards().Wait(-1).status()));
    EXPECT_THAT(std::string(r.shards().Release(1).message()), HasSubstr("layer 1 is not gathered"));
    EXPECT_THAT(std::string(r.shards().ReduceGradients(2).message()),
                HasSubstr("layer 2 has no gradient buffer"));
    EXPECT_TRUE(absl::IsFailedPrecondition(r.shards().Bind(r.shards().live())));
  });
}

TEST(LayerShards, CallsUnderWayEndWithTheObject) {
  for (const Grid grid : {Grid{2, 1}, Grid{1, 1, 2}}) {
    absl::Notification made;  // the other rank is there, but takes no part
    RunReplicas(grid, ConfigOf(DType::kF32), [&](Replica& r) {
      if (r.slot() + r.copy() == 1) {
        made.Notify();
      } else {
        made.WaitForNotification();
        ASSERT_EQ(r.shards().Gather(0), absl::OkStatus());
        for (const int layer : {1, 2}) {
          ASSERT_TRUE(r.shards().Gradients(layer).ok());
          ASSERT_EQ(r.shards().ReduceGradients(layer), absl::OkStatus());
        }
      }
      r.DestroyShards();
    });
  }
}

TEST(LayerShards, LossOfARankSurfacesWithTheLayer) {
  absl::Notification made;
  RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    MeshConfig config;
    config.lengths[static_cast<size_t>(Axis::kShard)] = 2;
    auto mesh = Mesh::Create(comm, config);
    ASSERT_TRUE(mesh.ok());
    Replica r(*mesh, ConfigOf(DType::kF32));
    if (comm->rank() == 1) {
      made.WaitForNotification();
      return;  // ends this rank's runtime
    }
    made.Notify();
    const absl::Status gather = r.shards().Wait(3).status();
    EXPECT_FALSE(gather.ok());
    EXPECT_THAT(std::string(gather.message()), HasSubstr("shard: layer 3 gather: "));
    EXPECT_FALSE(r.shards().BeginPass(Pass::kForward).ok());
  });
}

TEST(LayerShards, AFailedReductionSurfacesFromTheNextCall) {
  absl::Notification made;
  RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    MeshConfig config;
    config.lengths[static_cast<size_t>(Axis::kShard)] = 2;
    auto mesh = Mesh::Create(comm, config);
    ASSERT_TRUE(mesh.ok());
    Replica r(*mesh, ConfigOf(DType::kF32));
    if (comm->rank() == 1) {
      made.WaitForNotification();
      return;
    }
    made.Notify();
    ASSERT_TRUE(r.shards().Gradients(2).ok());
    absl::Status status = r.shards().ReduceGradients(2);
    status.Update(r.shards().FinishGradients());
    EXPECT_THAT(std::string(status.message()), HasSubstr("shard: layer 2 gradients: "));
    EXPECT_EQ(r.shards().BeginPass(Pass::kForward).code(), status.code());
  });
}

}  // namespace
}  // namespace entrain
