// EDiT on device memory: the results of the host, with a host that does not wait, and errors. Uses
// the fake driver (tests/support/fake_cuda), or the machine's first device if TEST_GPU=1 is set.

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/clock.h"
#include "lib/kernels/kernels.h"
#include "tests/device/cuda/on_device.h"
#include "tests/support/ranks.h"
#include "tests/train/rounds.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// ---- Same results as on the host ---------------------------------------------------------------

struct Case {
  const char* name;
  EditOptions options;
  // The result depends on no norm: a device adds squares in another order.
  bool exact;
};

int32_t HalfAStep(void* /*user*/, int32_t /*layer*/, int64_t /*step*/, float* anchor,
                  const float* grad, size_t count) {
  CurrentKernels().axpy(anchor, -0.5f, grad, static_cast<int64_t>(count));
  return 0;
}

std::vector<Case> Cases() {
  EditOptions nesterov = Averaging(), adamw, lion, callback, gta, packed, sum;
  nesterov.outer_lr = 0.7;
  nesterov.outer_momentum = 0.8;
  nesterov.outer_nesterov = true;
  nesterov.outer_weight_decay = 0.1;
  adamw.outer_optimizer = OuterKind::kAdamw;
  adamw.outer_lr = 0.05;
  lion.outer_optimizer = OuterKind::kLion;
  lion.outer_lr = 0.05;
  callback.outer_optimizer = OuterKind::kCallback;
  callback.outer_step = HalfAStep;
  gta.reducer = ReducerKind::kGta;
  gta.consensus_method = Consensus::kCount;
  packed = gta;
  packed.wire_format = WireFormat::kInt8;
  packed.wire_rounding = WireRounding::kStochastic;
  packed.sparsification_method = Sparsification::kRandom;
  packed.density = 0.5;
  packed.error_feedback = true;
  sum.reducer = ReducerKind::kLinear;
  sum.normalize = false;
  EditOptions offload = nesterov, in_turn = Weighed(), compat = Judged();
  offload.cpu_offload = true;
  in_turn.prefetch = 0;
  compat.compat = true;
  return {{"plain", EditOptions(), true},
          {"mean", Averaging(), true},
          {"nesterov", nesterov, true},
          {"adamw", adamw, true},
          {"lion", lion, true},
          {"callback", callback, true},
          {"gta", gta, true},
          {"packed", packed, true},
          {"sum", sum, true},
          {"offload", offload, true},
          {"weighed", Weighed(), false},
          {"judged", Judged(), false},
          {"in turn", in_turn, false},
          {"compat", compat, false}};
}

void ExpectSame(const std::vector<float>& got, const std::vector<float>& want, bool exact) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (exact) {
      ASSERT_EQ(got[i], want[i]) << "element " << i;
    } else {
      ASSERT_NEAR(got[i], want[i], 2e-6) << "element " << i;
    }
  }
}

// Makes steps that differ on every rank, with the exchanges of the options, until all have left.
Collected Train(const Grid& grid, const EditOptions& options, int steps) {
  Collected params(grid);
  RunReplicas(grid, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    for (int step = 1; step <= steps; ++step) {
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        value += Noise(r.replica(), step, l, i) / 8;
      });
      r.EndStep();
      r.Forward();
    }
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
    params.Put(r, r.params());
  });
  return params;
}

TEST(EditOnDevice, ExchangesGiveWhatTheyGiveOnTheHost) {
  for (const Case& c : Cases()) {
    for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}}) {
      SCOPED_TRACE(absl::StrCat(c.name, ", M ", grid.shards));
      SetOnDevice(false);
      const Collected want = Train(grid, c.options, 4);
      SetOnDevice(true);
      const Collected got = Train(grid, c.options, 4);
      got.ExpectAlike();
      ExpectSame(got.Whole(1), want.Whole(0), c.exact);
    }
  }
}

// Each layer owes what it did not send, although layers are equal.
TEST(EditOnDevice, WhatIsNotSentIsOwedByTheLayer) {
  EditOptions options = Averaging();
  options.wire_format = WireFormat::kInt4;
  options.error_feedback = true;
  std::map<std::pair<bool, int>, std::vector<float>> params;
  std::mutex mutex;
  for (const bool on_device : {false, true}) {
    SetOnDevice(on_device);
    ShardConfig config;
    config.layer_counts = {20, 20, 20};
    RunReplicas({1, 2}, config, [&](Replica& r) {
      r.Edit(options);
      r.Forward();
      for (int step = 1; step <= 4; ++step) {
        r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
          value += Noise(r.replica(), step, l, i) / 8;
        });
        r.EndStep();
        r.Forward();
      }
      const std::lock_guard<std::mutex> lock(mutex);
      params[{on_device, r.replica()}] = r.params();
    });
  }
  for (const int replica : {0, 1}) {
    EXPECT_EQ((params[{true, replica}]), (params[{false, replica}]));
  }
}

TEST(EditOnDevice, ExchangesBehindStepsGiveWhatTheyGiveOnTheHost) {
  EditOptions add = Averaging(), co2 = Averaging(), streaming = Averaging();
  add.local_sgd_sync_interval = 3;
  add.overlap_steps = 2;
  co2.local_sgd_sync_interval = co2.overlap_steps = 3;
  co2.overlap_merge = OverlapMerge::kRestart;
  co2.outer_momentum = 0.5;
  co2.staleness_penalty = true;
  co2.outer_momentum_clip = 0.4;
  streaming.local_sgd_sync_interval = 4;
  streaming.overlap_steps = 3;
  streaming.overlap_merge = OverlapMerge::kMix;
  streaming.fragments = 2;
  streaming.wire_format = WireFormat::kInt4;
  for (const Case& c :
       {Case{"add", add, true}, Case{"co2", co2, false}, Case{"streaming", streaming, true}}) {
    for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}}) {
      SCOPED_TRACE(absl::StrCat(c.name, ", M ", grid.shards));
      SetOnDevice(false);
      const Collected want = Train(grid, c.options, 13);
      want.ExpectAlike();
      SetOnDevice(true);
      const Collected got = Train(grid, c.options, 13);
      got.ExpectAlike();
      ExpectSame(got.Whole(1), want.Whole(0), c.exact);
    }
  }
}

TEST(EditOnDevice, WhatIsOffloadedIsInPageLockedMemory) {
  const Slab slab = *Slab::Make({5, 3}, 1, 0);
  TestStream stream(TestDevice());
  const auto room = DeviceRoom::Open(TestDevice(), stream.get(), kSecond);
  ASSERT_TRUE(room.ok()) << room.status();
  const TestMemory params(TestDevice(), slab.count() * static_cast<int64_t>(sizeof(float)));
  for (const bool offload : {false, true}) {
    Anchors anchors(slab, room->get(), offload);
    const KernelStream on(TestDevice(), stream.get());
    ASSERT_EQ(anchors.Create(LayerArrays::OfSlab(slab, params.get(), params.get(), DType::kF32), 1),
              absl::OkStatus());
    anchors.SealAll();
    EXPECT_EQ(on.status(), absl::OkStatus());
    for (const void* const array : {anchors.anchor(1), anchors.outer(0, 1)}) {
      const auto place = TestDevices().PlaceOf(array);
      ASSERT_TRUE(place.ok()) << place.status();
      EXPECT_EQ(place->kind, offload ? MemoryKind::kHostPinned : MemoryKind::kDevice);
    }
  }
}

// ---- A host that does not wait -----------------------------------------------------------------

// Stops a rank's stream.
class Hold {
 public:
  explicit Hold(Replica& r) : device_(TestDevice()), stream_(r.stream()) {
    word_ = static_cast<uint32_t*>(device_.AllocatePinned(sizeof(uint32_t)).value());
    *word_ = 0;
    EXPECT_TRUE(device_.AwaitWord(stream_, word_, 1).ok());
    EXPECT_TRUE(mark_.Record(stream_).ok());
  }
  bool holds() const { return !mark_.Reached().value(); }
  void LetGo() { __atomic_store_n(word_, 1, __ATOMIC_RELEASE); }
  // The memory of the word stays allocated: freeing it would wait for the streams of all ranks.

 private:
  Device& device_;
  const StreamHandle stream_;
  uint32_t* word_ = nullptr;
  DeviceMark mark_{device_};
};

void EnqueueStep(Replica& r) {
  const auto syncing = r.edit().BeginForward(true, true);
  ASSERT_TRUE(syncing.ok()) << syncing.status();
  EXPECT_TRUE(*syncing);
  ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
  for (int l = 0; l < 4; ++l) {
    ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
    ASSERT_TRUE(r.shards().Wait(l).ok());
    ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
  }
  for (int l = 3; l >= 0; --l) {
    ASSERT_TRUE(r.shards().Gradients(l).ok());
    ASSERT_EQ(r.shards().ReduceGradients(l), absl::OkStatus());
  }
  ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
  r.EndStep();
}

TEST(EditOnDevice, TheHostWaitsForNothingWhileItsStreamIsHeld) {
  for (const int32_t overlap : {0, 1}) {
    RunReplicas({2, 2}, FourLayers(2), [&](Replica& r) {
      EditOptions options = Weighed();
      options.overlap_steps = overlap;
      r.Edit(options);
      EXPECT_FALSE(r.Forward());
      r.EndStep();
      EnqueueStep(r);  // allocates memory
      r.FinishStream();
      r.MeetAll();
      Hold hold(r);
      const int64_t begun = Clock::Real().Now();
      for (int step = 0; step < 3; ++step) {
        EnqueueStep(r);
      }
      EXPECT_TRUE(hold.holds());
      EXPECT_LT(Clock::Real().Now() - begun, 5 * kSecond);
      EXPECT_LE(r.edit().info().syncs, 1);
      EXPECT_EQ(r.edit().info().steps, 5);
      // All hosts have come here, but none of their streams has.
      r.MeetAll();
      hold.LetGo();
      r.FinishStream();
      EXPECT_GE(r.edit().info().syncs, overlap == 0 ? 4 : 3);
      EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
      EXPECT_EQ(r.params(), r.Anchor());
      r.MeetAll();
    });
  }
}

TEST(EditOnDevice, TheAnchorsHaveNoChecksumBeforeTheyAreThere) {
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    r.Edit(Averaging());
    Hold hold(r);
    ASSERT_FALSE(r.edit().BeginForward(true, true).value());
    EXPECT_EQ(r.edit().info().anchor_checksum, 0u);
    hold.LetGo();
    r.FinishStream();
    const int64_t begun = Clock::Real().Now();
    while (r.edit().info().anchor_checksum == 0 && Clock::Real().Now() - begun < 10 * kSecond) {
      std::this_thread::yield();
    }
    const uint64_t first = r.edit().info().anchor_checksum;
    EXPECT_NE(first, 0u);
    r.EndStep();
    EXPECT_TRUE(r.Forward());  // exchanges the same parameters
    EXPECT_EQ(r.edit().info().anchor_checksum, first);
    r.MeetAll();
  });
}

TEST(EditOnDevice, WhatTheStreamDidBeforeIsExchangedAndWhatItDoesAfterIsNot) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    r.Edit(Averaging());
    r.Forward();
    r.EndStep();
    Device& device = TestDevice();
    const SlabLayer& last = r.shards().slab().layer(2);
    float* const theta = r.shards().live().f32(2);
    const TestMemory ones(device, last.valid * static_cast<int64_t>(sizeof(float)));
    const std::vector<float> values(static_cast<size_t>(last.valid), 1.0f);
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    ASSERT_TRUE(device.Copy(ones.get(), values.data(), bytes, r.stream()).ok());
    const auto add = [&](float factor) {
      const KernelStream on(device, r.stream());
      CurrentKernels().axpy(theta, factor, reinterpret_cast<const float*>(ones.get()), last.valid);
      EXPECT_TRUE(on.status().ok());
    };
    Hold hold(r);
    add(r.replica() == 0 ? 1.0f : 3.0f);
    ASSERT_TRUE(*r.edit().BeginForward(true, true));
    for (int l = 0; l < 4; ++l) {
      ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
    }
    add(10);
    hold.LetGo();
    r.FinishStream();
    r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
      EXPECT_NEAR(value, Replica::Initial(l, i) + (l == 2 ? 12 : 0), 1e-5) << l << " " << i;
    });
    r.MeetAll();
  });
}

// ---- Checkpoints -------------------------------------------------------------------------------

// Makes steps up to step `until`. Calls `at_four` at the exchange of step 4.
void GoOn(Replica& r, Trainee& trainee, int64_t until, const std::function<void()>& at_four) {
  while (r.edit().info().steps < until) {
    trainee.Step([&] {
      if (at_four && r.edit().info().steps == 4) {
        at_four();
      }
    });
  }
}

TEST(EditOnDevice, ARunGoesOnFromACheckpointWithTheSameBitsHereAndThere) {
  for (const bool offload : {false, true}) {
    const Directory directory;
    const CheckpointOptions exact = To(directory, CheckpointKind::kExact);
    EditOptions options = Averaging();
    options.local_sgd_sync_interval = 2;
    options.outer_momentum = 0.8;
    options.cpu_offload = offload;
    const Grid grid{2, 2};
    All whole, there, here;
    const auto run = [&](All& all, bool on_device, bool load) {
      SetOnDevice(on_device);
      RunReplicas(grid, Layers(), [&](Replica& r) {
        Trainee trainee(r, options);
        if (load) {
          ASSERT_EQ(r.edit().state().Load(exact), absl::OkStatus());
          EXPECT_EQ(r.edit().info().steps, 4);
        }
        GoOn(
            r, trainee, 9, load ? std::function<void()>() : [&] {
              EXPECT_EQ(r.edit().state().Save(exact), absl::OkStatus());
            });
        Seen seen = Look(r, trainee);
        seen.checksum = 0;  // bits differ on a device
        all.Put(r, std::move(seen));
        r.MeetAll();
      });
    };
    run(whole, true, false);
    run(there, true, true);
    EXPECT_EQ(there.seen(), whole.seen());
    run(here, false, true);
    EXPECT_EQ(here.seen(), whole.seen());
    SetOnDevice(true);
  }
}

TEST(EditOnDevice, NoCheckpointIsMadeOfWhatNeverCame) {
  const Directory directory;
  ShardConfig config = FourLayers();
  config.timeout_ns = 300 * kMillisecond;
  RunReplicas({1, 2}, config, [&](Replica& r) {
    EditOptions options = Averaging();
    options.local_sgd_warmup_steps = 1;
    r.Edit(options);
    EXPECT_FALSE(r.Forward());
    if (r.replica() == 0) {  // the other replica has none
      for (const int l : r.shards().slab().training()) {
        ASSERT_TRUE(r.shards().Gradients(l).ok());
        ASSERT_EQ(r.shards().ReduceGradients(l), absl::OkStatus());
      }
      ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
      r.FinishStream();  // continues without them
    }
    r.EndStep();
    r.MeetAll();
    EXPECT_FALSE(*r.edit().BeginForward(true, true));  // makes anchors of the present parameters
    const absl::Status status = r.edit().state().Save(To(directory, CheckpointKind::kExact));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer 0 gradients"));
    EXPECT_THAT(directory.Files(), testing::IsEmpty());
    r.MeetAll();
  });
}

// ---- Errors ------------------------------------------------------------------------------------

TEST(EditOnDevice, WhoCouldNotBindIsNotBound) {
  ENTRAIN_NEEDS_FAKE();
  for (const char* const function :
       {"cuStreamCreateWithPriority", "cuMemHostAlloc", "cuMemAlloc_v2"}) {
    for (int nth = 1; nth <= 6; ++nth) {
      RunMesh({1, 1}, [&](const std::shared_ptr<Mesh>& mesh) {
        const TestMemory params(TestDevice(), 4096), grads(TestDevice(), 4096);
        const TestStream stream(TestDevice());
        ShardConfig config = FourLayers();
        config.device = true;
        config.stream = stream.get();
        config.param_dtype = config.grad_dtype = DType::kBF16;
        auto shards = LayerShards::Create(mesh, config);
        ASSERT_TRUE(shards.ok()) << shards.status();
        const auto bind = [&] {
          return (*shards)->Bind(reinterpret_cast<float*>(params.get()),
                                 reinterpret_cast<float*>(grads.get()));
        };
        FailCall(function, nth, 2);
        const absl::Status status = bind();
        FailCall(function, 0, 0);
        if (!status.ok()) {
          EXPECT_THAT(std::string(status.message()), HasSubstr(function));
          EXPECT_TRUE(absl::IsFailedPrecondition((*shards)->Wait(0).status()));
          EXPECT_EQ((*shards)->broken(), absl::OkStatus());
          ASSERT_EQ(bind(), absl::OkStatus());
        }
        EXPECT_TRUE((*shards)->Wait(0).ok());
        EXPECT_EQ((*shards)->Release(0), absl::OkStatus());
      });
    }
  }
}

TEST(EditOnDevice, MemoryThatIsNotThereIsNamed) {
  RunMesh({1, 1}, [](const std::shared_ptr<Mesh>& mesh) {
    const TestMemory there(TestDevice(), 4096);
    std::vector<float> here(1024);
    ShardConfig config = FourLayers();
    config.device = true;
    auto shards = LayerShards::Create(mesh, config);
    ASSERT_TRUE(shards.ok()) << shards.status();
    auto* const on_device = reinterpret_cast<float*>(there.get());
    absl::Status status = (*shards)->Bind(here.data(), on_device);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("shard: params of layer 0, 0x"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not memory of a device"));
    status = (*shards)->Bind(on_device, here.data());
    EXPECT_THAT(std::string(status.message()), HasSubstr("shard: grads of layer 0, 0x"));
    Replica r(mesh, FourLayers());
    r.Edit(Averaging());
    r.Forward();
    status = r.edit().CopyAnchor(here.data());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("edit: anchor 0x"));
  });
}

// Waits for all layers, then returns the result of the exchange.
absl::Status Exchanged(Replica& r) {
  absl::Status status = r.edit().BeginForward(true, true).status();
  for (int l = 0; l < 4; ++l) {
    status.Update(r.edit().WaitLayer(l));
  }
  r.FinishStream();  // nothing stops the stream forever
  status.Update(r.edit().RequestSync());
  return status;
}

TEST(EditOnDevice, AnErrorOfTheDriverEndsTheExchangeOnAllRanks) {
  ENTRAIN_NEEDS_FAKE();
  for (const char* const function : {"cuLaunchKernel", "cuMemcpyAsync", "cuEventRecord"}) {
    for (const int nth : {1, 3}) {
      RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
        r.Edit(Weighed());
        r.Forward();
        r.DriftFromAnchor([&](int l, int64_t i) { return Noise(r.replica(), l, i); });
        r.EndStep();
        r.MeetAll();
        if (r.replica() == 0) {
          FailCall(function, nth, 2);
        }
        r.MeetAll();
        const absl::Status status = Exchanged(r);
        EXPECT_FALSE(status.ok()) << function << " " << nth;
        EXPECT_THAT(std::string(status.message()), HasSubstr("edit: "));
        r.MeetAll();
      });
    }
  }
}

TEST(EditOnDevice, AReplicaThatNeverComesIsATimeoutAndTheStreamGoesOn) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.timeout_ns = 300 * kMillisecond;
    r.Edit(options);
    r.Forward();
    r.EndStep();
    if (r.replica() == 0) {
      const int64_t begun = Clock::Real().Now();
      const absl::Status status = Exchanged(r);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
      EXPECT_LT(Clock::Real().Now() - begun, 10 * kSecond);
    }
    r.MeetAll();
  });
}

// Holds also for a rank that gathers from no other rank.
TEST(EditOnDevice, TheLimitOfAStreamIsTheCommunicators) {
  RunRanks(2, {.timeout_ns = 2 * kSecond}, [](const std::shared_ptr<Communicator>& comm) {
    const auto mesh = Mesh::Create(comm, {});
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig config = FourLayers();
    config.param_dtype = DType::kBF16;  // otherwise the slab itself is lent
    Replica r(*mesh, config);
    Hold hold(r);
    ASSERT_EQ(r.shards().Gather(0), absl::OkStatus());
    const int64_t begun = Clock::Real().Now();
    absl::Status status;
    while (status.ok() && Clock::Real().Now() - begun < 20 * kSecond) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      status = r.shards().BeginPass(Pass::kForward);
    }
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    hold.LetGo();
    r.FinishStream();
    r.MeetAll();
  });
}

TEST(EditOnDevice, AStreamThatNeverComesIsATimeout) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Averaging();
    options.timeout_ns = 300 * kMillisecond;
    r.Edit(options);
    r.Forward();
    r.EndStep();
    r.MeetAll();
    Hold hold(r);
    ASSERT_TRUE(r.edit().BeginForward(true, true).ok());
    absl::Status status;
    for (int tries = 0; status.ok() && tries < 1000; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      status = r.edit().RequestSync();
    }
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    hold.LetGo();
    r.FinishStream();
    r.MeetAll();
  });
}

}  // namespace
}  // namespace entrain
