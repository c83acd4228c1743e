// Device memory through the C ABI: collectives on streams, optimizers and WSAM, against the same calls on host memory. On
// the fake driver, or, where TEST_GPU=1 is set, on the machine's first device.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "tests/api/world.h"
#include "tests/cuda/on_device.h"

namespace entrain_test {
namespace {

using entrain::Device;
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

// One array on the host, and the same on the device.
class Twin {
 public:
  Twin(std::vector<float> values, void* stream)
      : host(std::move(values)), device_(TestDevice(), kBytes), stream_(stream) {
    EXPECT_TRUE(TestDevice().Copy(device_.get(), host.data(), kBytes, stream_).ok());
  }
  void* device() const { return device_.get(); }
  // Once the stream is through.
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
    // Host memory where the device's is said.
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
    entrain_wsam_config_t config;
    entrain_wsam_config_init(&config);
    config.decouple = decouple;
    config.max_norm = 1;
    entrain_wsam_t *here = nullptr, *there = nullptr;
    config.base = base_here;
    ASSERT_OK(entrain_wsam_create(&config, &here));
    config.base = base_there;
    ASSERT_OK(entrain_wsam_create(&config, &there));

    Twin params(Wave(0), stream.get()), saved(Wave(1), stream.get()), g(Wave(2), stream.get()),
        g2(Wave(3), stream.get());
    Twin m(std::vector<float>(kCount), stream.get()), v(std::vector<float>(kCount), stream.get());
    void* const host_state[2] = {m.host.data(), v.host.data()};
    void* const device_state[2] = {m.device(), v.device()};
    double sum_here = 0, sum_there = 0;
    ASSERT_OK(entrain_wsam_ascent_sum(here, params.host.data(), g.host.data(), kCount, ENTRAIN_F32,
                                      &sum_here));
    ASSERT_OK(entrain_wsam_ascent_sum(there, params.device(), g.device(), kCount, ENTRAIN_F32,
                                      &sum_there));
    // Added up in another order.
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
    entrain_wsam_destroy(here);
    entrain_wsam_destroy(there);
    entrain_optim_destroy(base_here);
    entrain_optim_destroy(base_there);
  }
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

             // Page-locked memory is the host's, but its calls may follow a stream.
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
           {.transports = "inproc,cuda"});
}

// ---- ACCO

// SGD by kernels of the device, on the channel's stream.
void StepOnDevice(void* stream, int32_t preview, int64_t, double lr, size_t, size_t count,
                  const void* grads, void* master, void* out) {
  const auto elements = static_cast<int64_t>(count);
  const entrain::KernelStream bound(TestDevice(), *static_cast<void**>(stream));
  if (preview != 0) {
    entrain::CopyArray(out, master, elements * 4);
  }
  entrain::CurrentKernels().axpy(static_cast<float*>(preview != 0 ? out : master),
                                 static_cast<float>(-lr), static_cast<const float*>(grads),
                                 elements);
  EXPECT_TRUE(bound.status().ok());
}
void StepOnHost(void*, int32_t preview, int64_t, double lr, size_t, size_t count, const void* grads,
                void* master, void* out) {
  for (size_t i = 0; i < count; ++i) {
    auto* const theta = static_cast<float*>(master);
    const float moved = static_cast<float>(-lr) * static_cast<const float*>(grads)[i];
    (preview != 0 ? static_cast<float*>(out)[i] : theta[i]) = theta[i] + moved;
  }
}

class AccoLoop {
 public:
  AccoLoop(const Rank& self, TestStream& stream, bool on_device, entrain_optim_t* optim)
      : self_(self),
        stream_(stream),
        on_device_(on_device),
        params_(std::vector<float>(kCount, 1), stream.get()) {
    entrain_acco_config_init(&config_);
    config_.params = on_device ? params_.device() : static_cast<void*>(params_.host.data());
    config_.count = kCount;
    config_.memory = on_device ? ENTRAIN_MEMORY_DEVICE : ENTRAIN_MEMORY_HOST;
    config_.stream = on_device ? stream.get() : nullptr;
    config_.limit = 3;
    config_.optim = optim;
    if (optim == nullptr) {
      config_.step = on_device ? StepOnDevice : StepOnHost;
      config_.user = &own_;
    }
  }
  ~AccoLoop() { entrain_acco_destroy(acco_); }
  entrain_acco_config_t* config() { return &config_; }
  entrain_acco_t* acco() { return acco_; }
  void Run() {
    ASSERT_OK(entrain_acco_create(self_.comm, &config_, &acco_));
    void* gradients = nullptr;
    ASSERT_OK(entrain_acco_gradients(acco_, &gradients));
    ASSERT_OK(entrain_acco_stream(acco_, &own_));
    EXPECT_EQ(own_ != nullptr, on_device_);
    for (int32_t finished = 0, round = 0; finished == 0; ++round) {
      const Twin add(Wave(self_.rank + 2 * round), stream_.get());
      if (on_device_) {
        const entrain::KernelStream bound(TestDevice(), stream_.get());
        TestDevice().kernels().axpy(static_cast<float*>(gradients), 1,
                                    static_cast<const float*>(add.device()), kCount);
        ASSERT_TRUE(bound.status().ok());
      } else {
        for (size_t i = 0; i < add.host.size(); ++i) {
          static_cast<float*>(gradients)[i] += add.host[i];
        }
      }
      ASSERT_OK(entrain_acco_add(acco_, 1, 1));
      ASSERT_OK(entrain_acco_install(acco_, &finished));
    }
  }
  std::vector<float> Params() {
    if (on_device_) {
      const auto copied =
          TestDevice().Copy(params_.host.data(), params_.device(), kBytes, stream_.get());
      EXPECT_TRUE(copied.ok()) << copied;
      stream_.Finish();
    }
    return params_.host;
  }

 private:
  const Rank& self_;
  TestStream& stream_;
  const bool on_device_;
  Twin params_;
  entrain_acco_config_t config_;
  entrain_acco_t* acco_ = nullptr;
  void* own_ = nullptr;
};

TEST(OnDevice, AccoHasTheBitsOfTheHost) {
  TestDevice();
  RunWorld(2,
           [](const Rank& self) {
             TestStream stream(TestDevice());
             entrain_optim_t* const adamw = OptimOf(Rules()[1], nullptr);
             for (entrain_optim_t* const optim : {adamw, static_cast<entrain_optim_t*>(nullptr)}) {
               AccoLoop here(self, stream, false, optim), there(self, stream, true, optim);
               here.Run();
               there.Run();
               EXPECT_EQ(there.Params(), here.Params());
               entrain_acco_info_t info;
               entrain_acco_info_init(&info);
               ASSERT_OK(entrain_acco_info(there.acco(), &info));
               EXPECT_EQ(info.commits, 3);
               EXPECT_EQ(info.finished, 1);
             }
             entrain_optim_destroy(adamw);
             ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
           },
           {.transports = "inproc,cuda"});
}

TEST(OnDevice, AccoRefusesMemoryThatIsNotThere) {
  TestDevice();
  RunWorld(1, [](const Rank& self) {
    TestStream stream(TestDevice());
    const auto with = [&](auto change) {
      AccoLoop loop(self, stream, true, nullptr);
      change(loop.config());
      entrain_acco_t* acco = nullptr;
      return entrain_acco_create(self.comm, loop.config(), &acco);
    };
    const entrain_status_t bad = ENTRAIN_INVALID_ARGUMENT;
    std::vector<float> host(kCount);
    EXPECT_FAILS(with([&](auto* c) { c->params = host.data(); }), bad,
                 "is not memory of a device, as memory 1 says");
    EXPECT_FAILS(with([&](auto* c) { c->memory = ENTRAIN_MEMORY_HOST_PINNED; }), bad, "memory 2");
    EXPECT_FAILS(with([&](auto* c) {
                   c->memory = ENTRAIN_MEMORY_HOST;
                   c->params = host.data();
                 }),
                 bad, "stream is not NULL");
    EXPECT_FAILS(with([&](auto* c) { c->reserved = 1; }), bad, "reserved");
  });
}

}  // namespace
}  // namespace entrain_test
