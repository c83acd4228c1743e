// Parameters and gradients bound by layer: the run has the same bits in f32 as with slabs. Also the
// values that bf16 keeps, and EDiT beside the caller's own sharding.
#include "lib/train/shard/layer_arrays.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/dtype.h"
#include "tests/support/ranks.h"
#include "tests/train/arrays.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using testing::HasSubstr;

const std::vector<int64_t> kLayers = {37, 8, 0, 50, 1};
constexpr int kSteps = 9;

// How a rank's parameters and gradients are bound, and whether the library or the caller reduces.
enum class Way { kSlab, kByLayer, kCallerReduces };

// A rank's model in separate arrays, one per layer. No two arrays are adjacent.
template <typename T>
class Arranged {
 public:
  Arranged(const std::shared_ptr<Mesh>& mesh, Way way, ShardConfig config) {
    config.layer_counts = kLayers;
    shards_ = *LayerShards::Create(mesh, config);
    const Slab& slab = shards_->slab();
    for (auto* const arrays : {&params_, &grads_}) {
      if (way == Way::kSlab) {
        arrays->emplace_back(static_cast<size_t>(slab.count()));
      }
      for (int l = 0; way != Way::kSlab && l < slab.layers(); ++l) {
        arrays->emplace_back(static_cast<size_t>(slab.layer(l).shard));
      }
    }
    LayerArrays live;
    live.dtype = sizeof(T) == 2 ? DType::kBF16 : DType::kF32;
    for (int l = 0; l < slab.layers(); ++l) {
      live.params.push_back(At(params_, l));
      if (way != Way::kCallerReduces) {
        live.grads.push_back(At(grads_, l));
      }
    }
    EXPECT_EQ(shards_->Bind(live), absl::OkStatus());
    for (int l = 0; l < slab.layers(); ++l) {
      std::vector<float> full;
      for (int64_t i = 0; i < slab.layer(l).full; ++i) {
        full.push_back(Replica::Initial(l, i));
      }
      EXPECT_EQ(shards_->Load(l, full.data()), absl::OkStatus());
    }
    MeetAll();
  }
  ~Arranged() {
    MeetAll();
    edit_.reset();
    shards_.reset();
  }
  LayerShards& shards() { return *shards_; }
  LayerSync& edit() { return *edit_; }
  int64_t shard(int l) const { return shards_->slab().layer(l).shard; }
  const SlabLayer& layer(int l) const { return shards_->slab().layer(l); }
  std::vector<T> Params(int l) { return ReadArray<T>(At(params_, l), shard(l)); }
  std::vector<T> Grads(int l) { return ReadArray<T>(At(grads_, l), shard(l)); }
  void SetParams(int l, const std::vector<T>& values) { WriteArray(At(params_, l), values); }
  void SetGrads(int l, const std::vector<T>& values) { WriteArray(At(grads_, l), values); }
  void Edit(const EditOptions& options) {
    edit_ = *LayerSync::Create(shards_->mesh(), shards_, options);
    MeetAll();
  }
  void Forward() {
    ASSERT_EQ(edit_->BeginForward(true, true).status(), absl::OkStatus());
    for (int l = 0; l < shards_->slab().layers(); ++l) {
      ASSERT_EQ(edit_->WaitLayer(l), absl::OkStatus());
    }
  }
  std::vector<float> Anchor() const {
    std::vector<float> anchor(static_cast<size_t>(shards_->slab().count()));
    EXPECT_EQ(edit_->CopyAnchor(anchor.data()), absl::OkStatus());
    return anchor;
  }
  uint64_t Checksum() const { return edit_->info().anchor_checksum; }

 private:
  void MeetAll() const {
    for (const Axis axis : {Axis::kModel, Axis::kSync, Axis::kModel}) {
      EXPECT_EQ(shards_->mesh()->comm(axis)->Barrier(), absl::OkStatus());
    }
  }
  using Held = std::vector<std::vector<T>>;
  std::byte* At(Held& held, int l) {
    T* const at = held.size() == 1 ? held[0].data() + shards_->slab().layer(l).offset
                                   : held[static_cast<size_t>(l)].data();
    return reinterpret_cast<std::byte*>(at);
  }
  std::shared_ptr<LayerShards> shards_;
  Held params_, grads_;
  std::shared_ptr<LayerSync> edit_;
};

// Returns the gradient of one rank's loss at an element.
float Gradient(float theta, int rank, int step, int layer, int64_t i) {
  return 0.125f * theta + Noise(rank, step, layer, i);
}

// The library gathers, takes gradients of whole layers, and reduces.
template <typename T>
void ReduceByLibrary(Arranged<T>& r, int rank, int step) {
  ASSERT_EQ(r.shards().BeginPass(Pass::kBackward), absl::OkStatus());
  for (int l = r.shards().slab().layers() - 1; l >= 0; --l) {
    const int64_t padded = r.layer(l).padded;
    const auto params = r.shards().Wait(l);
    const auto grads = r.shards().Gradients(l);
    ASSERT_TRUE(params.ok() && grads.ok()) << params.status() << grads.status();
    const auto theta = ReadArray<float>(*params, padded);
    auto sums = ReadArray<float>(*grads, padded);
    for (int64_t i = 0; i < r.layer(l).full; ++i) {
      const auto at = static_cast<size_t>(i);
      sums[at] += Gradient(theta[at], rank, step, l, i);
    }
    WriteArray(*grads, sums);
    ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
    ASSERT_EQ(r.shards().ReduceGradients(l), absl::OkStatus());
  }
  ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
}

// Reduces as another sharding library would: the only call of this library sets the scope. Sums
// have two terms, so no order changes them.
template <typename T>
void ReduceByCaller(Arranged<T>& r, int replica, int step) {
  const bool global = r.shards().gradient_scope() == GradientScope::kGlobal;
  for (int l = 0; l < r.shards().slab().layers(); ++l) {
    const auto theta = r.Params(l);
    auto grads = r.Grads(l);
    for (int64_t i = 0; i < r.layer(l).valid; ++i) {
      const auto at = static_cast<size_t>(i);
      float sum = 0;
      for (int n = 0; n < 2; ++n) {
        const auto part = [&](int m) {
          return Gradient(theta[at], 2 * n + m, step, l, r.layer(l).first + i);
        };
        sum += global || n == replica ? part(0) + part(1) : 0;
      }
      grads[at] += (global ? 0.25f : 0.5f) * sum;
    }
    r.SetGrads(l, grads);
  }
}

struct Outcome {
  std::vector<uint64_t> checksums;
  std::vector<float> params, anchor;
};

// Makes the same run in each way: nine steps with warm-up, and an exchange every two steps.
Outcome RunOf(const std::shared_ptr<Mesh>& mesh, Way way, const EditOptions& options) {
  Arranged<float> r(mesh, way, {});
  r.Edit(options);
  const int replica = mesh->coordinate(Axis::kSync), slot = mesh->coordinate(Axis::kShard);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    r.Forward();
    if (way == Way::kCallerReduces) {
      ReduceByCaller(r, replica, step);
    } else {
      ReduceByLibrary(r, 2 * replica + slot, step);
    }
    for (int l = 0; l < r.shards().slab().layers(); ++l) {
      auto params = r.Params(l);
      const auto grads = r.Grads(l);
      for (size_t i = 0; i < params.size(); ++i) {
        params[i] -= 0.1f * grads[i];
      }
      r.SetParams(l, params);
      r.SetGrads(l, std::vector<float>(grads.size()));
    }
    EXPECT_EQ(r.edit().EndStep(), absl::OkStatus());
    if (r.edit().info().syncs > 0) {
      outcome.anchor = r.Anchor();
      outcome.checksums.push_back(r.Checksum());
    }
  }
  for (int l = 0; l < r.shards().slab().layers(); ++l) {
    const auto params = r.Params(l);
    outcome.params.insert(outcome.params.end(), params.begin(), params.end());
  }
  return outcome;
}

EditOptions Warmed() {
  EditOptions options = Weighed();
  options.local_sgd_warmup_steps = 2;
  options.local_sgd_sync_interval = 2;
  return options;
}

TEST(LayerArrays, LayersSlabAndTheCallersOwnReductionGiveTheSameBits) {
  RunMesh({2, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    const Outcome slab = RunOf(mesh, Way::kSlab, Warmed());
    ASSERT_FALSE(slab.checksums.empty());
    EXPECT_NE(slab.checksums.front(), slab.checksums.back());
    for (const Way way : {Way::kByLayer, Way::kCallerReduces}) {
      SCOPED_TRACE(static_cast<int>(way));
      const Outcome other = RunOf(mesh, way, Warmed());
      EXPECT_EQ(other.checksums, slab.checksums);
      EXPECT_EQ(other.params, slab.params);
      EXPECT_EQ(other.anchor, slab.anchor);
    }
  });
}

TEST(LayerArrays, WhatIsBoundByLayerIsBroadcastAndGathered) {
  RunMesh({2, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Arranged<float> r(mesh, Way::kByLayer, {});
    for (int l = 0; l < r.shards().slab().layers(); ++l) {
      if (mesh->coordinate(Axis::kSync) == 1) {
        r.SetParams(l, std::vector<float>(static_cast<size_t>(r.shard(l)), 7));
      }
    }
    ASSERT_EQ(r.shards().Broadcast(), absl::OkStatus());
    for (int l = 0; l < r.shards().slab().layers(); ++l) {
      const auto whole = r.shards().Wait(l);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const auto seen = ReadArray<float>(*whole, r.layer(l).padded);
      for (int64_t i = 0; i < r.layer(l).full; ++i) {
        ASSERT_EQ(seen[static_cast<size_t>(i)], Replica::Initial(l, i)) << l << " " << i;
      }
    }
  });
}

TEST(LayerArrays, WithoutGradientsNobodyReduces) {
  RunMesh({1, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Arranged<float> r(mesh, Way::kCallerReduces, {});
    for (const absl::Status& status :
         {r.shards().Gradients(0).status(), r.shards().ReduceGradients(0)}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("no gradients are bound"));
    }
    EXPECT_EQ(r.shards().FinishGradients(), absl::OkStatus());
  });
}

// ---- bf16 --------------------------------------------------------------------------------------

uint16_t Rounded(float x) {
  return FloatToBF16(x);
}

TEST(LayerArrays, Bf16GradientsAreSummedInF32AndRounded) {
  RunMesh({2, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Arranged<uint16_t> r(mesh, Way::kByLayer, {});
    const int rank = 2 * mesh->coordinate(Axis::kSync) + mesh->coordinate(Axis::kShard);
    ReduceByLibrary(r, rank, 0);
    for (int l = 0; l < r.shards().slab().layers(); ++l) {
      const auto grads = r.Grads(l), params = r.Params(l);
      for (int64_t i = 0; i < r.layer(l).valid; ++i) {
        double sum = 0;
        for (int one = 0; one < 4; ++one) {
          sum += Gradient(BF16ToFloat(params[static_cast<size_t>(i)]), one, 0, l,
                          r.layer(l).first + i);
        }
        const double got = BF16ToFloat(grads[static_cast<size_t>(i)]);
        ASSERT_NEAR(got, sum / 4, std::abs(sum / 4) / 256 + 1e-6);
      }
    }
  });
}

// A rounding error is no pseudo-gradient: the anchor keeps bits that the parameters do not have.
TEST(LayerArrays, AnAnchorStaysWhereNobodyTrainsInBf16) {
  RunMesh({2, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    for (const int overlap : {0, 1}) {
      Arranged<uint16_t> r(mesh, Way::kByLayer, {});
      EditOptions options = Averaging();
      options.overlap_steps = overlap;
      r.Edit(options);
      const auto exchange = [&] {
        ASSERT_EQ(r.edit().EndStep(), absl::OkStatus());
        ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
        r.Forward();
      };
      r.Forward();
      for (int l = 0; l < r.shards().slab().layers(); ++l) {
        auto params = r.Params(l);
        for (size_t i = 0; i < params.size(); ++i) {
          const float by = 0.3f * Noise(mesh->coordinate(Axis::kSync), l, static_cast<int64_t>(i));
          params[i] = Rounded(BF16ToFloat(params[i]) + by);
        }
        r.SetParams(l, params);
      }
      exchange();
      const std::vector<float> anchor = r.Anchor();
      for (int step = 0; step < 5; ++step) {
        ASSERT_EQ(r.edit().EndStep(), absl::OkStatus());
        r.Forward();
      }
      exchange();
      EXPECT_EQ(r.Anchor(), anchor);
      int between = 0;
      for (int l = 0; l < r.shards().slab().layers(); ++l) {
        const auto params = r.Params(l);
        for (int64_t i = 0; i < r.layer(l).valid; ++i) {
          const float a = anchor[static_cast<size_t>(r.layer(l).offset + i)];
          EXPECT_EQ(params[static_cast<size_t>(i)], Rounded(a));
          between += BF16ToFloat(Rounded(a)) != a ? 1 : 0;
        }
      }
      EXPECT_GT(between, 0);
    }
  });
}

// a' = a - mean(rounded a - theta), theta' = rounded a', in the plainest form.
TEST(LayerArrays, Bf16ParametersAreExchangedThroughF32Anchors) {
  for (const int overlap : {0, 1}) {
    RunMesh({2, 2}, [overlap](const std::shared_ptr<Mesh>& mesh) {
      Arranged<uint16_t> r(mesh, Way::kCallerReduces, {});
      EditOptions options = Averaging();
      options.overlap_steps = overlap;
      r.Edit(options);
      r.Forward();
      std::vector<float> a = r.Anchor();
      const auto drift = [](int step, int n, int l, int64_t i) {
        return 0.05f * Noise(step, n, l, i);
      };
      for (int step = 0; step < 5; ++step) {
        for (int l = 0; l < r.shards().slab().layers(); ++l) {
          auto params = r.Params(l);
          for (int64_t i = 0; i < r.layer(l).valid; ++i) {
            uint16_t& theta = params[static_cast<size_t>(i)];
            float& anchor = a[static_cast<size_t>(r.layer(l).offset + i)];
            const float at = BF16ToFloat(theta);
            if (overlap == 0) {
              ASSERT_EQ(theta, Rounded(anchor)) << "step " << step;
              float mean = 0;
              for (int n = 0; n < 2; ++n) {
                mean +=
                    (at - BF16ToFloat(Rounded(at + drift(step, n, l, r.layer(l).first + i)))) / 2;
              }
              anchor -= mean;
            }
            theta =
                Rounded(at + drift(step, mesh->coordinate(Axis::kSync), l, r.layer(l).first + i));
          }
          r.SetParams(l, params);
        }
        ASSERT_EQ(r.edit().EndStep(), absl::OkStatus());
        r.Forward();
        if (overlap == 0) {
          const std::vector<float> now = r.Anchor();
          for (size_t i = 0; i < now.size(); ++i) {
            ASSERT_NEAR(now[i], a[i], 1e-6);
          }
          a = now;
        }
      }
      // An exchange that ran behind is merged in f32 and rounded once. After RequestSync, theta is
      // the rounded anchor.
      ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
      ASSERT_EQ(r.edit().EndStep(), absl::OkStatus());
      r.Forward();
      a = r.Anchor();
      for (int l = 0; l < r.shards().slab().layers(); ++l) {
        const auto params = r.Params(l);
        for (int64_t i = 0; i < r.layer(l).valid; ++i) {
          ASSERT_EQ(params[static_cast<size_t>(i)],
                    Rounded(a[static_cast<size_t>(r.layer(l).offset + i)]));
        }
      }
    });
  }
}

TEST(LayerArrays, Bf16ParametersOfOneRankAreLentAsTheyAre) {
  RunMesh({1, 1}, [](const std::shared_ptr<Mesh>& mesh) {
    ShardConfig config;
    config.param_dtype = DType::kBF16;
    Arranged<uint16_t> r(mesh, Way::kByLayer, config);
    EXPECT_EQ(*r.shards().Wait(0), r.shards().live().param(0));
  });
}

TEST(LayerArrays, RanksThatBindOtherTypesAreToldSo) {
  RunMesh({1, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    ShardConfig config;
    config.layer_counts = {4};
    std::vector<float> params(4);
    const std::shared_ptr<LayerShards> shards = *LayerShards::Create(mesh, config);
    LayerArrays live;
    live.dtype = mesh->coordinate(Axis::kSync) == 0 ? DType::kF32 : DType::kBF16;
    live.params.push_back(reinterpret_cast<std::byte*>(params.data()));
    ASSERT_EQ(shards->Bind(live), absl::OkStatus());
    const auto edit = LayerSync::Create(mesh, shards, Averaging());
    EXPECT_THAT(std::string(edit.status().message()), HasSubstr("bound parameters' type"));
  });
}

// ---- Checkpoints -------------------------------------------------------------------------------

TEST(LayerArrays, ARunGoesOnExactlyFromWhatWasBoundByLayer) {
  char directory[] = "/tmp/entrain_layer_arrays_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  RunMesh({2, 2}, [&](const std::shared_ptr<Mesh>& mesh) {
    const auto train = [&](auto& r, int from, int to) {
      for (int step = from; step < to; ++step) {
        if (step > from || from == 0) {
          r.Forward();
        }
        for (int l = 0; l < r.shards().slab().layers(); ++l) {
          auto params = r.Params(l);
          for (size_t i = 0; i < params.size(); ++i) {
            params[i] = Rounded(BF16ToFloat(params[i]) + 0.1f * Noise(step, l,
                                                                      mesh->coordinate(Axis::kSync),
                                                                      static_cast<int64_t>(i)));
          }
          r.SetParams(l, params);
        }
        ASSERT_EQ(r.edit().EndStep(), absl::OkStatus());
      }
      r.Forward();
    };
    CheckpointOptions options;
    options.directory = directory;
    options.name = "exact";
    options.kind = CheckpointKind::kExact;
    Arranged<uint16_t> r(mesh, Way::kByLayer, {});
    r.Edit(Weighed());
    train(r, 0, 4);
    ASSERT_EQ(r.edit().state().Save(options), absl::OkStatus());
    train(r, 4, 8);
    Arranged<uint16_t> other(mesh, Way::kSlab, {});
    other.Edit(Weighed());
    ASSERT_EQ(other.edit().state().Load(options), absl::OkStatus());
    other.Forward();
    train(other, 4, 8);
    EXPECT_EQ(other.Anchor(), r.Anchor());
    EXPECT_EQ(other.Checksum(), r.Checksum());
    for (int l = 0; l < r.shards().slab().layers(); ++l) {
      EXPECT_EQ(other.Params(l), r.Params(l));
    }
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace entrain
