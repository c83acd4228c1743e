// Device memory through the C ABI: collectives on streams, optimizers and WSAM, compared with the
// same calls on host memory; objects that refuse it. Uses the fake driver, or the machine's first device if TEST_GPU=1 is
// set.
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "tests/api/world.h"
#include "tests/device/cuda/on_device.h"

namespace entrain_test {
namespace {

using entrain::Device;
using entrain::FailCall;
using entrain::LiveOnFake;
using entrain::OnRealDevice;
using entrain::TestDevice;
using entrain::TestMemory;
using entrain::TestStream;

constexpr int64_t kCount = 5003;
constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(float));

std::vector<float> Wave(double phase) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(static_cast<double>(i) + phase));
  }
  return values;
}

// An array on the host, and a copy on the device.
class Twin {
 public:
  Twin(std::vector<float> values, void* stream)
      : host(std::move(values)), device_(TestDevice(), kBytes), stream_(stream) {
    EXPECT_TRUE(TestDevice().Copy(device_.get(), host.data(), kBytes, stream_).ok());
  }
  void* device() const { return device_.get(); }
  // Compares the two when the stream has finished.
  void ExpectEqual(const std::string& what) {
    TestStream back(TestDevice());
    std::vector<float> there(kCount);
    ASSERT_TRUE(TestDevice().Copy(there.data(), device_.get(), kBytes, back.get()).ok());
    back.Finish();
    EXPECT_EQ(std::memcmp(there.data(), host.data(), static_cast<size_t>(kBytes)), 0) << what;
  }
  std::vector<float> host;

 private:
  TestMemory device_;
  void* const stream_;
};

entrain_optim_t* OptimOf(entrain_optim_config_t config, void* stream) {
  config.memory = stream == nullptr ? ENTRAIN_MEMORY_HOST : ENTRAIN_MEMORY_DEVICE;
  config.stream = stream;
  entrain_optim_t* optim = nullptr;
  EXPECT_OK(entrain_optim_create(&config, &optim));
  return optim;
}

std::vector<entrain_optim_config_t> Rules() {
  entrain_optim_config_t sgd, adamw, agd;
  entrain_optim_config_init(&sgd);
  sgd.momentum = 0.9;
  sgd.nesterov = 1;
  entrain_optim_config_init(&adamw);
  adamw.kind = ENTRAIN_OPTIM_ADAMW;
  adamw.weight_decay = 0.1;
  entrain_optim_config_init(&agd);
  agd.kind = ENTRAIN_OPTIM_AGD;
  agd.amsgrad = agd.win = 1;
  agd.clip = 0.5;
  return {sgd, adamw, agd};
}

TEST(OnDevice, OptimizersStepAndPreviewToTheSameBits) {
  for (const entrain_optim_config_t& rule : Rules()) {
    TestStream stream(TestDevice());
    entrain_optim_t* const here = OptimOf(rule, nullptr);
    entrain_optim_t* const there = OptimOf(rule, stream.get());
    int32_t arrays = 0;
    ASSERT_OK(entrain_optim_state_arrays(here, &arrays));
    Twin params(Wave(0), stream.get()), grads(Wave(1), stream.get()), out(Wave(2), stream.get());
    std::vector<std::unique_ptr<Twin>> twins;
    std::vector<void*> host_state, device_state;
    for (int32_t i = 0; i < arrays; ++i) {
      twins.push_back(std::make_unique<Twin>(std::vector<float>(kCount), stream.get()));
      host_state.push_back(twins.back()->host.data());
      device_state.push_back(twins.back()->device());
    }
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_OK(entrain_optim_preview(here, params.host.data(), grads.host.data(),
                                      host_state.data(), out.host.data(), kCount, ENTRAIN_F32, step,
                                      0.01));
      ASSERT_OK(entrain_optim_preview(there, params.device(), grads.device(), device_state.data(),
                                      out.device(), kCount, ENTRAIN_F32, step, 0.01));
      ASSERT_OK(entrain_optim_step(here, params.host.data(), grads.host.data(), host_state.data(),
                                   kCount, ENTRAIN_F32, step, 0.01));
      ASSERT_OK(entrain_optim_step(there, params.device(), grads.device(), device_state.data(),
                                   kCount, ENTRAIN_F32, step, 0.01));
    }
    stream.Finish();
    const std::string what = "rule " + std::to_string(rule.kind);
    params.ExpectEqual(what);
    out.ExpectEqual(what + ", preview");
    for (const auto& twin : twins) {
      twin->ExpectEqual(what + ", state");
    }
    entrain_optim_info_t info_here, info_there;
    entrain_optim_info_init(&info_here);
    entrain_optim_info_init(&info_there);
    ASSERT_OK(entrain_optim_info(here, &info_here));
    ASSERT_OK(entrain_optim_info(there, &info_there));
    EXPECT_EQ(info_here.adaptive, info_there.adaptive);
    // Host memory is refused where device memory is required.
    EXPECT_FAILS(entrain_optim_step(there, params.host.data(), grads.device(), device_state.data(),
                                    kCount, ENTRAIN_F32, 1, 0.01),
                 ENTRAIN_INVALID_ARGUMENT, "params");
    entrain_optim_destroy(here);
    entrain_optim_destroy(there);
  }
}

TEST(OnDevice, WsamStepsToTheSameBits) {
  for (const int32_t decouple : {0, 1}) {
    TestStream stream(TestDevice());
    entrain_optim_t* const base_here = OptimOf(Rules()[1], nullptr);
    entrain_optim_t* const base_there = OptimOf(Rules()[1], stream.get());
    entrain_optim_config_t config;
    entrain_optim_config_init(&config);
    config.kind = ENTRAIN_OPTIM_WSAM;
    config.decouple = decouple;
    config.max_norm = 1;
    entrain_optim_t *here = nullptr, *there = nullptr;
    config.base = base_here;
    ASSERT_OK(entrain_optim_create(&config, &here));
    config.base = base_there;
    ASSERT_OK(entrain_optim_create(&config, &there));

    Twin params(Wave(0), stream.get()), saved(Wave(1), stream.get()), g(Wave(2), stream.get()),
        g2(Wave(3), stream.get());
    Twin m(std::vector<float>(kCount), stream.get()), v(std::vector<float>(kCount), stream.get());
    void* const host_state[2] = {m.host.data(), v.host.data()};
    void* const device_state[2] = {m.device(), v.device()};
    const std::vector<int> live = OnRealDevice() ? std::vector<int>() : LiveOnFake();
    double sum_here = 0, sum_there = 0;
    ASSERT_OK(entrain_wsam_ascent_sum(here, params.host.data(), g.host.data(), kCount, ENTRAIN_F32,
                                      &sum_here));
    ASSERT_OK(entrain_wsam_ascent_sum(there, params.device(), g.device(), kCount, ENTRAIN_F32,
                                      &sum_there));
    // The device adds in another order.
    EXPECT_NEAR(sum_there, sum_here, 1e-12 * sum_here);
    const double sums[2] = {sum_here, 2 * sum_here};
    ASSERT_OK(entrain_wsam_ascend(here, params.host.data(), saved.host.data(), g.host.data(),
                                  kCount, ENTRAIN_F32, sum_here));
    ASSERT_OK(entrain_wsam_ascend(there, params.device(), saved.device(), g.device(), kCount,
                                  ENTRAIN_F32, sum_here));
    stream.Finish();
    params.ExpectEqual("w + e");
    ASSERT_OK(
        entrain_wsam_return(here, params.host.data(), saved.host.data(), kCount, ENTRAIN_F32));
    ASSERT_OK(entrain_wsam_return(there, params.device(), saved.device(), kCount, ENTRAIN_F32));
    ASSERT_OK(entrain_wsam_step(here, params.host.data(), g.host.data(), g2.host.data(), sums,
                                host_state, kCount, ENTRAIN_F32, 1, 0.01));
    ASSERT_OK(entrain_wsam_step(there, params.device(), g.device(), g2.device(), sums, device_state,
                                kCount, ENTRAIN_F32, 1, 0.01));
    stream.Finish();
    params.ExpectEqual("w");
    m.ExpectEqual("m");
    v.ExpectEqual("v");
    entrain_optim_destroy(here);
    entrain_optim_destroy(there);
    entrain_optim_destroy(base_here);
    entrain_optim_destroy(base_there);
    EXPECT_TRUE(OnRealDevice() || LiveOnFake() == live);
  }
}

TEST(OnDevice, TheFirstErrorOfTheDeviceComesBack) {
  ENTRAIN_NEEDS_FAKE();
  TestStream stream(TestDevice());
  entrain_optim_t* const sgd = OptimOf(Rules()[0], stream.get());
  Twin params(Wave(0), stream.get()), grads(Wave(1), stream.get()), b(Wave(2), stream.get());
  void* const state[1] = {b.device()};
  FailCall("cuLaunchKernel", 1, 2);
  EXPECT_FAILS(
      entrain_optim_step(sgd, params.device(), grads.device(), state, kCount, ENTRAIN_F32, 1, 0.01),
      ENTRAIN_RESOURCE_EXHAUSTED, "entrain_sgd_step: cuLaunchKernel");
  entrain_optim_destroy(sgd);
}

// A stream that stops until the test lets it continue.
class HeldStream {
 public:
  HeldStream() : stream_(TestDevice()), word_(TestDevice().AllocatePinned(64)) {
    EXPECT_TRUE(word_.ok());
    word() = 0;
    EXPECT_TRUE(TestDevice().AwaitWord(stream_.get(), &word(), 1).ok());
  }
  ~HeldStream() {
    Release();
    stream_.Finish();
    TestDevice().FreePinned(*word_);
  }
  void* get() const { return stream_.get(); }
  void Release() { std::atomic_ref(word()).store(1); }

 private:
  uint32_t& word() { return *static_cast<uint32_t*>(*word_); }
  TestStream stream_;
  absl::StatusOr<void*> word_;
};

// WSAM's sum waits for its stream.
TEST(OnDevice, OptimizersGoFromStreamToStreamAndWaitAsLongAsTheyAreTold) {
  TestStream stream(TestDevice());
  Twin params(Wave(0), stream.get()), grads(Wave(1), stream.get());
  stream.Finish();
  entrain_optim_config_t rule = Rules()[0];
  rule.timeout_ns = 50'000'000;
  HeldStream held;
  entrain_optim_t* const base = OptimOf(rule, held.get());
  entrain_optim_config_t config;
  entrain_optim_config_init(&config);
  config.kind = ENTRAIN_OPTIM_WSAM;
  config.base = base;
  entrain_optim_t *wsam = nullptr, *later = nullptr;
  ASSERT_OK(entrain_optim_create(&config, &wsam));
  double sum = -1;
  EXPECT_FAILS(
      entrain_wsam_ascent_sum(wsam, params.device(), grads.device(), kCount, ENTRAIN_F32, &sum),
      ENTRAIN_TIMED_OUT, "");
  ASSERT_OK(entrain_optim_set_stream(wsam, stream.get()));
  EXPECT_OK(
      entrain_wsam_ascent_sum(wsam, params.device(), grads.device(), kCount, ENTRAIN_F32, &sum));
  EXPECT_GT(sum, 0);
  ASSERT_OK(entrain_optim_set_stream(base, stream.get()));
  ASSERT_OK(entrain_optim_create(&config, &later));
  EXPECT_OK(
      entrain_wsam_ascent_sum(later, params.device(), grads.device(), kCount, ENTRAIN_F32, &sum));
  entrain_optim_t* const here = OptimOf(rule, nullptr);
  EXPECT_FAILS(entrain_optim_set_stream(here, stream.get()), ENTRAIN_FAILED_PRECONDITION,
               "made for host memory");
  EXPECT_FAILS(entrain_optim_set_stream(nullptr, stream.get()), ENTRAIN_INVALID_ARGUMENT, "optim");
  entrain_optim_destroy(here);
  entrain_optim_destroy(wsam);
  entrain_optim_destroy(later);
  entrain_optim_destroy(base);
}

TEST(OnDevice, CollectivesFollowTheCallersStream) {
  TestDevice();
  RunWorld(2,
           [](const Rank& self) {
             TestStream stream(TestDevice());
             Twin values(Wave(self.rank), stream.get());
             entrain_call_options_t options;
             entrain_call_options_init(&options);
             options.memory = ENTRAIN_MEMORY_DEVICE;
             options.stream = stream.get();
             entrain_work_t* work = nullptr;
             ASSERT_OK(entrain_all_reduce(self.comm, values.device(), values.device(), kCount,
                                          ENTRAIN_F32, ENTRAIN_SUM, &options, &work));
             stream.Finish();  // the host has not waited for the work
             ASSERT_OK(entrain_work_wait(work, 10'000'000'000));
             entrain_work_free(work);
             ASSERT_OK(entrain_all_reduce(self.comm, values.host.data(), values.host.data(), kCount,
                                          ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr));
             values.ExpectEqual("sum");

             // Page-locked memory is host memory, but calls on it may follow a stream.
             const auto pinned = TestDevice().AllocatePinned(kBytes);
             ASSERT_TRUE(pinned.ok());
             ASSERT_TRUE(TestDevice().Copy(*pinned, values.device(), kBytes, stream.get()).ok());
             options.memory = ENTRAIN_MEMORY_HOST_PINNED;
             ASSERT_OK(entrain_all_reduce(self.comm, *pinned, *pinned, kCount, ENTRAIN_F32,
                                          ENTRAIN_MAX, &options, nullptr));
             EXPECT_EQ(std::memcmp(*pinned, values.host.data(), static_cast<size_t>(kBytes)), 0);

             options.memory = ENTRAIN_MEMORY_DEVICE;
             EXPECT_FAILS(entrain_barrier(self.comm, &options, nullptr), ENTRAIN_INVALID_ARGUMENT,
                          "a barrier has no buffers");
             ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
             TestDevice().FreePinned(*pinned);
           },
           {.transports = "inproc"});
}

// ---- Training objects

// Their arrays are in host memory. Each call that is given device memory names the argument.
TEST(OnDevice, TrainingObjectsRefuseDeviceMemory) {
  TestDevice();
  RunWorld(1, [](const Rank& self) {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    entrain_mesh_t* mesh = nullptr;
    ASSERT_OK(entrain_mesh_create(self.comm, &mesh_config, &mesh));
    const size_t counts[] = {kCount};
    entrain_shard_config_t config;
    entrain_shard_config_init(&config);
    config.layers = 1;
    config.layer_counts = counts;
    entrain_shard_t* shard = nullptr;
    ASSERT_OK(entrain_shard_create(mesh, &config, &shard));
    std::vector<float> params(kCount), grads(kCount);
    const TestMemory there(TestDevice(), kBytes);
    const entrain_status_t bad = ENTRAIN_INVALID_ARGUMENT;
    void* const layer[] = {there.get()};
    EXPECT_FAILS(entrain_shard_bind(shard, params.data(), there.get(), ENTRAIN_F32), bad,
                 "grads 0x");
    EXPECT_FAILS(entrain_shard_bind(shard, there.get(), grads.data(), ENTRAIN_F32), bad,
                 "is memory of device 0; give an array in host memory, and copy");
    EXPECT_FAILS(entrain_shard_bind_layers(shard, layer, nullptr, ENTRAIN_F32), bad,
                 "params[0] 0x");
    ASSERT_OK(entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32));
    EXPECT_FAILS(entrain_shard_load(shard, 0, there.get(), ENTRAIN_F32), bad, "full 0x");
    EXPECT_FAILS(entrain_shard_set_buffers(shard, 0, there.get(), nullptr), bad, "gathered 0x");

    entrain_edit_config_t edit_config;
    entrain_edit_config_init(&edit_config);
    edit_config.shard = shard;
    edit_config.outer_optimizer = ENTRAIN_OUTER_SGD;
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(mesh, &edit_config, &edit));
    EXPECT_FAILS(entrain_edit_anchor(edit, there.get(), ENTRAIN_F32), bad, "anchor 0x");
    EXPECT_FAILS(
        entrain_edit_add_state(edit, "m", there.get(), kCount, ENTRAIN_F32, ENTRAIN_STATE_RANK),
        bad, "data 0x");
    entrain_edit_destroy(edit);
    entrain_shard_destroy(shard);
    entrain_mesh_destroy(mesh);

    entrain_optim_config_t rule = Rules()[1];
    TestStream stream(TestDevice());
    entrain_optim_t* const on_host = OptimOf(rule, nullptr);
    entrain_optim_t* const on_device = OptimOf(rule, stream.get());
    entrain_acco_config_t acco_config;
    entrain_acco_config_init(&acco_config);
    acco_config.count = kCount;
    acco_config.optim = on_host;
    acco_config.params = there.get();
    entrain_acco_t* acco = nullptr;
    EXPECT_FAILS(entrain_acco_create(self.comm, &acco_config, &acco), bad, "params 0x");
    acco_config.params = params.data();
    acco_config.optim = on_device;
    EXPECT_FAILS(entrain_acco_create(self.comm, &acco_config, &acco), bad,
                 "config.optim: its memory is 1");
    entrain_optim_destroy(on_device);
    entrain_optim_destroy(on_host);
  });
}

}  // namespace
}  // namespace entrain_test
