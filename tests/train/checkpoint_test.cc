// Saving and loading EDiT's state: what loading restores, on which meshes, and when saving is
// allowed.
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/checkpoint/checkpoint_file.h"
#include "tests/support/ranks.h"
#include "tests/train/arrays.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- The exact kind ----------------------------------------------------------------------------

enum class Method { kJudged, kPlain, kPacked };

// Judged() with packed deltas: half of each layer is sent, in int8 with random rounding, and the
// rest is owed.
EditOptions Packed() {
  EditOptions options = Judged();
  options.reducer = ReducerKind::kGta;
  options.sparsification_method = Sparsification::kRandom;
  options.density = 0.5;
  options.seed = 7;
  options.wire_format = WireFormat::kInt8;
  options.wire_rounding = WireRounding::kStochastic;
  options.error_feedback = true;
  return options;
}

class ExactResume : public ::testing::TestWithParam<std::tuple<Grid, Way, Method>> {};

TEST_P(ExactResume, IsBitEqual) {
  const auto& [grid, way, method] = GetParam();
  EditOptions options = method == Method::kPlain    ? Plain()
                        : method == Method::kPacked ? Packed()
                                                    : Judged();
  options.local_sgd_sync_interval = 3;
  constexpr int kSteps = 14;
  const Directory directory;
  const CheckpointOptions checkpoint = To(directory, CheckpointKind::kExact, way);

  All straight, saved, resumed, untouched;
  RunReplicas(grid, Layers(), [&](Replica& r) {  // a run without checkpoints
    Trainee trainee(r, options);
    for (int step = 0; step < kSteps; ++step) {
      trainee.Step();
    }
    untouched.Put(r, Look(r, trainee));
  });
  RunReplicas(grid, Layers(), [&](Replica& r) {
    Trainee trainee(r, options);
    for (int step = 0; step < kSteps; ++step) {
      trainee.Step([&] {
        if (step == 6) {
          EXPECT_EQ(r.edit().state().Save(checkpoint), absl::OkStatus());
          saved.Put(r, Look(r, trainee));
        }
      });
    }
    straight.Put(r, Look(r, trainee));
  });
  ASSERT_FALSE(saved.seen().empty());
  EXPECT_EQ(straight.seen(), untouched.seen());  // saving changes nothing
  RunReplicas(grid, Layers(), [&](Replica& r) {
    Trainee trainee(r, options);
    const absl::Status loaded = r.edit().state().Load(checkpoint);
    ASSERT_EQ(loaded, absl::OkStatus());
    EXPECT_EQ(Look(r, trainee), saved.seen().at({r.replica(), r.slot()}));
    for (int step = 6; step < kSteps; ++step) {
      EXPECT_EQ(trainee.Step(), step > 6 && step % 3 == 0);
    }
    resumed.Put(r, Look(r, trainee));
  });
  EXPECT_EQ(resumed.seen(), straight.seen());
}

std::string NameOfExact(const ::testing::TestParamInfo<std::tuple<Grid, Way, Method>>& test) {
  const auto& [grid, way, method] = test.param;
  const char* const names[] = {"", "_plain", "_packed"};
  return absl::StrCat("m", grid.shards, "_n", grid.replicas, "_", way.name(),
                      names[static_cast<int>(method)]);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ExactResume,
                         ::testing::Combine(::testing::Values(Grid{1, 1}, Grid{2, 1}, Grid{1, 2},
                                                              Grid{2, 2}, Grid{3, 2}),
                                            ::testing::ValuesIn(kWays),
                                            ::testing::Values(Method::kJudged, Method::kPlain,
                                                              Method::kPacked)),
                         NameOfExact);

// Exchanges of two fragments run behind further steps, three steps late. At step 6 one has begun,
// and another has or has not finished. Saving waits for the exchange under way, and inserts no
// other.
class ExactResumeBehind : public ::testing::TestWithParam<std::tuple<OverlapMerge, Way>> {};

TEST_P(ExactResumeBehind, BitEqual) {
  const auto& [merge, way] = GetParam();
  EditOptions options;
  options.outer_optimizer = OuterKind::kSgd;
  options.local_sgd_sync_interval = options.overlap_steps = 3;
  options.fragments = 2;
  options.overlap_merge = merge;
  options.staleness_penalty = true;
  const Directory directory;
  const CheckpointOptions checkpoint = To(directory, CheckpointKind::kExact, way);
  constexpr int kSave = 6, kSteps = 14;
  // The result of a run with a checkpoint, or from one. Untouched: without a checkpoint.
  enum class Kind { kUntouched, kSaved, kResumed };
  const auto run = [&](Kind kind) {
    All all;
    RunReplicas({2, 2}, Layers(), [&](Replica& r) {
      Trainee trainee(r, options);
      if (kind == Kind::kResumed) {
        ASSERT_EQ(r.edit().state().Load(checkpoint), absl::OkStatus());
      }
      for (int step = kind == Kind::kResumed ? kSave : 0; step < kSteps; ++step) {
        trainee.Step([&] {
          if (kind == Kind::kSaved && step == kSave) {
            CheckpointOptions portable = To(directory, CheckpointKind::kPortable, way, "portable");
            const absl::Status early = r.edit().state().Save(portable);
            EXPECT_THAT(std::string(early.message()), HasSubstr("runs behind these steps"));
            EXPECT_EQ(r.edit().state().Save(checkpoint), absl::OkStatus());
          }
        });
      }
      EXPECT_EQ(r.edit().RequestSync(), absl::OkStatus());
      EXPECT_TRUE(r.Forward());
      all.Put(r, Look(r, trainee));
    });
    return all.seen();
  };
  const auto untouched = run(Kind::kUntouched);
  ASSERT_EQ(untouched.size(), 4u);
  EXPECT_EQ(run(Kind::kSaved), untouched);
  EXPECT_EQ(run(Kind::kResumed), untouched);
}

INSTANTIATE_TEST_SUITE_P(Merges, ExactResumeBehind,
                         ::testing::Combine(::testing::Values(OverlapMerge::kAdd,
                                                              OverlapMerge::kMix,
                                                              OverlapMerge::kRestart),
                                            ::testing::Values(kOneFile, kWays[3])));

// A replica that leaves shares what another fragment has left over, or a mixed merge has kept,
// although no step follows.
TEST(ExactResume, WhoLeavesRightAwaySharesWhatIsLeft) {
  for (const int32_t behind : {0, 2}) {
    EditOptions options = Averaging();
    options.outer_momentum = 0.8;
    options.local_sgd_sync_interval = 4;
    options.overlap_steps = behind;
    options.fragments = behind > 0 ? 1 : 2;
    options.overlap_merge = behind > 0 ? OverlapMerge::kMix : OverlapMerge::kAdd;
    const Directory directory;
    const CheckpointOptions checkpoint = To(directory, CheckpointKind::kExact);
    All straight, resumed;
    RunReplicas({2, 2}, Layers(), [&](Replica& r) {
      Trainee trainee(r, options);
      while (r.edit().info().steps < 8) {
        trainee.Step();
      }
      EXPECT_TRUE(r.Forward());
      EXPECT_EQ(r.edit().state().Save(checkpoint), absl::OkStatus());
      EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
      EXPECT_EQ(r.params(), r.Anchor());
      straight.Put(r, Look(r, trainee));
    });
    RunReplicas({2, 2}, Layers(), [&](Replica& r) {
      Trainee trainee(r, options);
      ASSERT_EQ(r.edit().state().Load(checkpoint), absl::OkStatus());
      EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
      resumed.Put(r, Look(r, trainee));
    });
    EXPECT_EQ(resumed.seen(), straight.seen()) << behind;
  }
}

// ---- The portable kind --------------------------------------------------------------------------

// Returns the content of a portable checkpoint in one file: arrays by name, part and layer.
std::map<std::tuple<std::string, int, int>, std::string> Contents(const std::string& path) {
  std::map<std::tuple<std::string, int, int>, std::string> contents;
  const auto reader = CheckpointReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (reader.ok()) {
    for (const SavedArray& array : (*reader)->manifest().arrays) {
      contents[{array.name, array.part, array.layer}] =
          absl::StrCat(array.count, " ", NameOf(array.dtype), " ", ToHex(array.digest));
    }
  }
  return contents;
}

// The method may change from edit to diloco.
TEST(PortableResume, WithoutDetectorsDropsThose) {
  const Directory directory;
  const CheckpointOptions checkpoint = To(directory, CheckpointKind::kPortable);
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    trainee.Step();
    trainee.Step([&] { EXPECT_EQ(r.edit().state().Save(checkpoint), absl::OkStatus()); });
  });
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Weighed());
    EXPECT_EQ(r.edit().state().Load(checkpoint), absl::OkStatus());
    EXPECT_EQ(r.edit().info().steps, 1);
    trainee.Step();
  });
}

// The replicas are equal. What was left over here belongs to another run. To share it again would
// let the momentum take an extra step.
TEST(PortableResume, WhoLeavesRightAwayHasNothingToShare) {
  EditOptions options = Averaging();
  options.outer_momentum = 0.8;
  options.local_sgd_sync_interval = 4;
  options.fragments = 2;
  const Directory directory;
  const CheckpointOptions checkpoint = To(directory, CheckpointKind::kPortable);
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, options);
    while (r.edit().info().steps < 6) {
      trainee.Step([&] {
        if (r.edit().info().steps == 4) {
          EXPECT_EQ(r.edit().state().Save(checkpoint), absl::OkStatus());
        }
      });
    }
    EXPECT_TRUE(r.Forward());
    ASSERT_EQ(r.edit().state().Load(checkpoint), absl::OkStatus());
    const std::vector<float> loaded = r.Anchor();
    EXPECT_EQ(r.params(), loaded);
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
    EXPECT_EQ(r.params(), loaded);
    EXPECT_EQ(r.Anchor(), loaded);
  });
}

class PortableResume : public ::testing::TestWithParam<std::tuple<Grid, Grid, Way>> {};

TEST_P(PortableResume, NToNPrimeAndMToMPrime) {
  const auto& [from, to, way] = GetParam();
  for (const EditOptions& options : {Judged(), Plain()}) {
    const Directory directory;
    RunReplicas(from, Layers(), [&](Replica& r) {
      Trainee trainee(r, options);
      for (int step = 0; step < 4; ++step) {
        trainee.Step([&] {
          if (step == 3) {
            EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable, way)),
                      absl::OkStatus());
            EXPECT_EQ(
                r.edit().state().Save(To(directory, CheckpointKind::kPortable, kOneFile, "before")),
                absl::OkStatus());
          }
        });
      }
    });
    All after;
    RunReplicas(to, Layers(), [&](Replica& r) {
      Trainee trainee(r, options);
      ASSERT_EQ(r.edit().state().Load(To(directory, CheckpointKind::kPortable, way)),
                absl::OkStatus());
      EXPECT_EQ(r.edit().info().steps, 3);
      EXPECT_EQ(r.edit().info().syncs, 3);
      EXPECT_EQ(trainee.tokens(), 15);
      if (r.edit().info().anchor_checksum != 0) {
        EXPECT_EQ(r.params(), r.Anchor());
      }
      EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable, kOneFile, "after")),
                absl::OkStatus());
      for (int step = 3; step < 6; ++step) {
        EXPECT_EQ(trainee.Step(), step > 3);
      }
      r.Forward();
      after.Put(r, Look(r, trainee));
    });
    // It is the same run, so its state has the same bits on any mesh.
    EXPECT_EQ(Contents(directory.File("after.ckpt")), Contents(directory.File("before.ckpt")));
    EXPECT_GE(Contents(directory.File("after.ckpt")).size(), 8u);
    for (const auto& [place, seen] : after.seen()) {
      EXPECT_EQ(seen.params, after.seen().at({0, place.second}).params);
    }
  }
}

std::string NameOfPortable(const ::testing::TestParamInfo<std::tuple<Grid, Grid, Way>>& test) {
  const auto& [from, to, way] = test.param;
  return absl::StrCat("m", from.shards, "_n", from.replicas, "_to_m", to.shards, "_n", to.replicas,
                      "_", way.name());
}

INSTANTIATE_TEST_SUITE_P(Meshes, PortableResume,
                         ::testing::Combine(::testing::Values(Grid{1, 2}, Grid{2, 2}, Grid{3, 1}),
                                            ::testing::Values(Grid{1, 1}, Grid{1, 3}, Grid{2, 1},
                                                              Grid{4, 2}),
                                            ::testing::ValuesIn(kWays)),
                         NameOfPortable);

// The numbers of accepted rounds, by layer, continue from the saved ones. The tensors are 5 x 3, 7
// and 2 x 2, 3, and 4 x 6, so 2, 3 and 4 do not all divide any number of rows.
TEST(PortableResume, OfLayersThatAreMadeOfSegments) {
  for (const Way& way : kWays) {
    const Directory directory;
    const CheckpointOptions to = To(directory, CheckpointKind::kPortable, way);
    ShardConfig config;
    config.layer_counts = {26, 3, 24};
    config.layer_segments = {{{15, 5}, {7, 7}, {4, 2}}, {{3, 3}}, {{24, 4}}};
    absl::Mutex mutex;
    std::map<std::pair<int, int64_t>, float> whole;
    RunReplicas({2, 2}, config, [&](Replica& r) {
      r.Edit(Averaging());
      r.Forward();
      r.DriftFromAnchor([&](int l, int64_t i) { return Noise(l, i, r.replica()); });
      r.EndStep();
      EXPECT_TRUE(r.Forward());
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        const float want = Replica::Initial(l, i) + (Noise(l, i, 0) + Noise(l, i, 1)) / 2;
        EXPECT_NEAR(value, want, 1e-6) << l << " " << i;
        absl::MutexLock lock(&mutex);
        whole[{l, i}] = value;
      });
      EXPECT_EQ(r.edit().state().Save(to), absl::OkStatus());
    });
    EXPECT_EQ(whole.size(), 53u);
    for (const int slots : {1, 2, 3, 4}) {
      size_t seen = 0;
      RunReplicas({slots, 1}, config, [&](Replica& r) {
        r.Edit(Averaging());
        ASSERT_EQ(r.edit().state().Load(to), absl::OkStatus());
        r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
          absl::MutexLock lock(&mutex);
          ASSERT_EQ(value, (whole[{l, i}])) << slots << " ranks, layer " << l << " element " << i;
          ++seen;
        });
        // After the gather, each slot's chunks are where the layout says.
        for (int l = 0; l < 3; ++l) {
          const int64_t padded = r.shards().slab().layer(l).padded;
          const auto given = r.shards().Wait(l);
          ASSERT_TRUE(given.ok()) << given.status();
          const auto bytes = ReadArray<std::byte>(*given, padded * 4);
          const auto* const values = reinterpret_cast<const float*>(bytes.data());
          std::vector<float> want(static_cast<size_t>(padded));
          for (int slot = 0; slot < slots; ++slot) {
            const auto slab =
                Slab::Make(config.layer_counts, slots, slot, {}, {}, config.layer_segments);
            for (const SlabPiece& piece : slab->layer(l).pieces) {
              for (int64_t i = 0; i < piece.count; ++i) {
                absl::MutexLock lock(&mutex);
                want[static_cast<size_t>(slab->layer(l).first + piece.at + i)] =
                    whole[{l, piece.first + i}];
              }
            }
          }
          EXPECT_EQ(std::vector<float>(values, values + padded), want);
          EXPECT_EQ(r.shards().Release(l), absl::OkStatus());
        }
      });
      EXPECT_EQ(seen, whole.size());
    }
  }
}

TEST(PortableResume, KeepsEachLayersShareOfTheAccepted) {
  const Directory directory;
  const CheckpointOptions checkpoint = To(directory, CheckpointKind::kPortable);
  constexpr int kBad = 3;
  const auto exchange = [](Replica& r, bool bad) {
    r.DriftFromAnchor([&](int l, int64_t i) {
      return bad && l == kBad ? NAN : l == kFrozen ? 0 : Noise(r.replica(), l, i) / 8;
    });
    r.EndStep();
    ASSERT_TRUE(r.Forward());
  };
  const auto expect = [](Replica& r, int64_t brought, int64_t rejected) {
    for (const int l : {0, kBad, 4}) {
      const LayerReport report = *r.edit().Report(l);
      EXPECT_EQ(report.brought_ever, brought);
      EXPECT_EQ(report.accepted_ever, brought - (l == kBad ? rejected : 0)) << "layer " << l;
    }
  };
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    r.Edit(Weighed());
    r.Forward();
    for (int round = 0; round < 3; ++round) {
      exchange(r, round > 0 && r.replica() == 1);
    }
    expect(r, 6, 2);
    EXPECT_EQ(r.edit().state().Save(checkpoint), absl::OkStatus());
  });
  EXPECT_THAT(Contents(directory.File("run.ckpt")).at({"layers/accepted", -1, -1}),
              HasSubstr("5 i64"));
  RunReplicas({1, 3}, Layers(), [&](Replica& r) {
    r.Edit(Weighed());
    ASSERT_EQ(r.edit().state().Load(checkpoint), absl::OkStatus());
    r.Forward();
    exchange(r, r.replica() == 2);
    expect(r, 9, 3);
  });
}

TEST(PortableResume, AlsoFromAnExactCheckpoint) {
  const Directory directory;
  RunReplicas({2, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    trainee.Step();
    trainee.Step([&] {
      EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kExact, {false, false})),
                absl::OkStatus());
      EXPECT_EQ(
          r.edit().state().Save(To(directory, CheckpointKind::kPortable, kOneFile, "portable")),
          absl::OkStatus());
    });
  });
  RunReplicas({1, 1}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    ASSERT_EQ(r.edit().state().Load(To(directory, CheckpointKind::kPortable)), absl::OkStatus());
    EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable, kOneFile, "again")),
              absl::OkStatus());
  });
  EXPECT_EQ(Contents(directory.File("again.ckpt")), Contents(directory.File("portable.ckpt")));
}

// Runs a model that is cut by tensor rank into two parts. Each part has its own layers and exists
// twice (context).
void RunParts(int context, int shard, int sync, const std::function<void(Replica&)>& body) {
  RunRanks(2 * context * shard * sync, [&](const std::shared_ptr<Communicator>& comm) {
    MeshConfig config;
    config.lengths = {2, 1, context, shard, sync};
    const auto mesh = Mesh::Create(comm, config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig layers;
    layers.layer_counts = {11, (*mesh)->coordinate(Axis::kTensor) == 0 ? 5 : 23};
    {
      Replica replica(*mesh, layers);
      body(replica);
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(PortableResume, OfAModelInParts) {
  const Directory directory;
  RunParts(2, 1, 2, [&](Replica& r) {
    Trainee trainee(r, Judged());
    trainee.Step();
    trainee.Step([&] {
      EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable)), absl::OkStatus());
    });
  });
  for (const Way way : kWays) {
    RunParts(1, 2, 1, [&](Replica& r) {
      Trainee trainee(r, Judged());
      ASSERT_EQ(r.edit().state().Load(To(directory, CheckpointKind::kPortable)), absl::OkStatus());
      EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kExact, way, "exact")),
                absl::OkStatus());
      ASSERT_EQ(r.edit().state().Load(To(directory, CheckpointKind::kExact, way, "exact")),
                absl::OkStatus());
      EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable, way, "again")),
                absl::OkStatus());
      EXPECT_EQ(r.edit().state().Save(To(directory, CheckpointKind::kPortable, kOneFile, "whole")),
                absl::OkStatus());
    });
    EXPECT_EQ(Contents(directory.File("whole.ckpt")), Contents(directory.File("run.ckpt")));
  }
  const auto contents = Contents(directory.File("run.ckpt"));
  EXPECT_THAT(contents.at({"anchor", 0, 1}), HasSubstr("5 f32"));
  EXPECT_THAT(contents.at({"anchor", 1, 1}), HasSubstr("23 f32"));
}

// ---- Times of saving
// -----------------------------------------------------------------------------

TEST(Saving, IsForRendezvousOnly) {
  const Directory directory;
  RunReplicas({1, 2}, Layers(), [&](Replica& r) {
    const CheckpointOptions to = To(directory, CheckpointKind::kExact);
    Trainee trainee(r, Judged());
    const auto refusal = [&] {
      const absl::Status status = r.edit().state().Save(to);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      return std::string(status.message());
    };
    EXPECT_THAT(refusal(), AllOf(HasSubstr("edit: save: rank 0: step 0 has had no exchange"),
                                 HasSubstr("there was none yet")));
    EXPECT_FALSE(r.Forward());
    EXPECT_EQ(r.edit().state().Save(to), absl::OkStatus());  // all replicas are equal: an anchor
    r.EndStep();
    EXPECT_THAT(refusal(), HasSubstr("step 1 has had no exchange (the last was at step 0)"));

    const auto began = r.edit().BeginForward(true, true);
    EXPECT_TRUE(began.ok() && *began);
    EXPECT_THAT(refusal(), HasSubstr("the exchange of layer"));
    for (int l = 0; l < static_cast<int>(kLayers.size()); ++l) {
      EXPECT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
    }
    EXPECT_EQ(r.edit().state().Save(to), absl::OkStatus());
    for (const int l : r.shards().slab().training()) {
      EXPECT_TRUE(r.shards().Gradients(l).ok());
      EXPECT_EQ(r.shards().ReduceGradients(l), absl::OkStatus());
    }
    EXPECT_EQ(r.shards().FinishGradients(), absl::OkStatus());
    EXPECT_THAT(refusal(), HasSubstr("gradients of step 1 have been reduced already"));
    r.EndStep();
    EXPECT_TRUE(r.Forward());
    EXPECT_EQ(r.edit().state().Save(to), absl::OkStatus());
  });
}

TEST(Saving, EndsInTimeWhenARankDoesNotTakePart) {
  const Directory directory;
  RunReplicas({1, 2}, Layers(), [&](Replica& r) {
    Trainee trainee(r, Judged());
    r.Forward();
    CheckpointOptions to = To(directory, CheckpointKind::kPortable);
    to.timeout_ns = 200 * kMillisecond;
    if (r.replica() == 0) {
      const int64_t start = Clock::Real().Now();
      const absl::Status status = r.edit().state().Save(to);
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_LT(Clock::Real().Now() - start, 5 * kSecond);
      // The group has ended and reports the reason.
      EXPECT_EQ(r.edit().EndStep().code(), absl::StatusCode::kDeadlineExceeded);
    }
    r.MeetAll();
  });
  EXPECT_THAT(directory.Files(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace entrain
