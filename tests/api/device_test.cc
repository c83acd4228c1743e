// Device memory through the C ABI: collectives on streams, optimizers and WSAM, compared with the
// same calls on host memory. Uses the fake driver, or the machine's first device if TEST_GPU=1 is
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
  }
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

// ---- ACCO

// SGD by kernels of the device, on the channel's stream.
int32_t StepOnDevice(void* stream, int32_t preview, int64_t, double lr, size_t, size_t count,
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
  return 0;
}
int32_t StepOnHost(void*, int32_t preview, int64_t, double lr, size_t, size_t count,
                   const void* grads, void* master, void* out) {
  for (size_t i = 0; i < count; ++i) {
    auto* const theta = static_cast<float*>(master);
    const float moved = static_cast<float>(-lr) * static_cast<const float*>(grads)[i];
    (preview != 0 ? static_cast<float*>(out)[i] : theta[i]) = theta[i] + moved;
  }
  return 0;
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
  // Alternates micro-batches between this stream and the stream of creation.
  void AlternateWith(TestStream* other) { other_ = other; }
  void Run() {
    ASSERT_OK(entrain_acco_create(self_.comm, &config_, &acco_));
    void* gradients = nullptr;
    ASSERT_OK(entrain_acco_gradients(acco_, &gradients));
    ASSERT_OK(entrain_acco_stream(acco_, &own_));
    EXPECT_EQ(own_ != nullptr, on_device_);
    for (int32_t finished = 0, round = 0; finished == 0; ++round) {
      TestStream& now = other_ != nullptr && round % 2 == 1 ? *other_ : stream_;
      if (other_ != nullptr) {
        ASSERT_OK(entrain_acco_set_stream(acco_, now.get()));
      }
      const Twin add(Wave(self_.rank + 2 * round), now.get());
      if (on_device_) {
        const entrain::KernelStream bound(TestDevice(), now.get());
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
      if (other_ != nullptr) {
        EXPECT_OK(entrain_acco_set_stream(acco_, stream_.get()));
      }
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
  TestStream* other_ = nullptr;
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
           {.transports = "inproc"});
}

TEST(OnDevice, AChannelGoesFromStreamToStream) {
  TestDevice();
  RunWorld(2,
           [](const Rank& self) {
             TestStream stream(TestDevice()), other(TestDevice());
             entrain_optim_t* const adamw = OptimOf(Rules()[1], nullptr);
             AccoLoop here(self, stream, false, adamw), there(self, stream, true, adamw);
             there.AlternateWith(&other);
             here.Run();
             there.Run();
             EXPECT_EQ(there.Params(), here.Params());
             EXPECT_FAILS(entrain_acco_set_stream(here.acco(), stream.get()),
                          ENTRAIN_FAILED_PRECONDITION,
                          "the channel was made for host memory, which has no stream");
             other.Finish();  // the stream is destroyed before the channel
             entrain_optim_destroy(adamw);
             ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
           },
           {.transports = "inproc"});
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

// ---- EDiT

// a <- a - grad / 2, on the stream of exchanges or at once.
int32_t OuterOnDevice(void* stream, int32_t, int64_t, float* anchor, const float* grad,
                      size_t count) {
  const entrain::KernelStream bound(TestDevice(), *static_cast<void**>(stream));
  TestDevice().kernels().axpy(anchor, -0.5f, grad, static_cast<int64_t>(count));
  EXPECT_TRUE(bound.status().ok());
  return 0;
}
int32_t OuterOnHost(void*, int32_t, int64_t, float* anchor, const float* grad, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    anchor[i] += -0.5f * grad[i];
  }
  return 0;
}

// A model of two layers with an inner optimizer and an exchange every other step.
class EditLoop {
 public:
  EditLoop(const Rank& self, TestStream& stream, bool on_device)
      : self_(self),
        stream_(stream),
        on_device_(on_device),
        params_(std::vector<float>(kCount), stream.get()),
        grads_(std::vector<float>(kCount), stream.get()),
        optim_(OptimOf(Rules()[1], on_device ? stream.get() : nullptr)) {
    entrain_mesh_config_t mesh;
    entrain_mesh_config_init(&mesh);
    EXPECT_OK(entrain_mesh_create(self.comm, &mesh, &mesh_));
    entrain_shard_config_init(&shard_config_);
    shard_config_.layers = 2;
    shard_config_.layer_counts = kLayerCounts;
    shard_config_.memory = on_device ? ENTRAIN_MEMORY_DEVICE : ENTRAIN_MEMORY_HOST;
    shard_config_.stream = on_device ? stream.get() : nullptr;
    EXPECT_OK(entrain_shard_create(mesh_, &shard_config_, &shard_));
    EXPECT_OK(entrain_shard_bind(shard_, Place(params_), Place(grads_), ENTRAIN_F32));
    const std::vector<float> start = Wave(0);
    for (int32_t layer = 0; layer < 2; ++layer) {
      EXPECT_OK(entrain_shard_load(shard_, layer, start.data(), ENTRAIN_F32));
    }
    entrain_edit_config_init(&config_);
    config_.shard = shard_;
    config_.local_sgd_sync_interval = 2;
    config_.outer_optimizer = ENTRAIN_OUTER_CALLBACK;
    config_.outer_step = on_device ? OuterOnDevice : OuterOnHost;
    config_.outer_user = &own_;
  }
  ~EditLoop() {
    entrain_edit_destroy(edit_);
    entrain_shard_destroy(shard_);
    entrain_mesh_destroy(mesh_);
    entrain_optim_destroy(optim_);
  }
  entrain_edit_config_t* config() { return &config_; }
  entrain_edit_t* edit() { return edit_; }
  entrain_shard_t* shard() { return shard_; }
  // Passes over the layers use another stream than the optimizer's steps.
  void ForwardOn(TestStream* stream) { forwards_on_ = stream; }
  void Run(int steps) {
    ASSERT_OK(entrain_edit_create(mesh_, &config_, &edit_));
    ASSERT_OK(entrain_edit_stream(edit_, &own_));
    EXPECT_EQ(own_ != nullptr, on_device_);
    Twin m(std::vector<float>(kCount), stream_.get()), v(std::vector<float>(kCount), stream_.get());
    void* const state[] = {Place(m), Place(v)};
    for (int step = 1; step <= steps; ++step) {
      int32_t syncing = 0;
      if (forwards_on_ != nullptr) {
        ASSERT_OK(entrain_shard_set_stream(shard_, forwards_on_->get()));
      }
      ASSERT_OK(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr));
      EXPECT_EQ(syncing != 0, step > 1 && step % 2 == 1);
      for (int32_t layer = 0; layer < 2; ++layer) {
        void* whole = nullptr;
        ASSERT_OK(entrain_edit_wait_layer(edit_, layer));
        ASSERT_OK(entrain_shard_wait(shard_, layer, &whole));
        ASSERT_OK(entrain_shard_release(shard_, layer));
      }
      if (forwards_on_ != nullptr) {
        ASSERT_OK(entrain_shard_set_stream(shard_, stream_.get()));
      }
      // Kept, because freeing device memory would wait for the streams of both ranks.
      gradients_.push_back(std::make_unique<Twin>(Wave(step + 10 * self_.rank), stream_.get()));
      ASSERT_OK(entrain_optim_step(optim_, Place(params_), Place(*gradients_.back()), state, kCount,
                                   ENTRAIN_F32, step, 0.01));
      ASSERT_OK(entrain_edit_end_step(edit_));
    }
    ASSERT_OK(entrain_edit_leave(edit_, nullptr));
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
  static constexpr size_t kLayerCounts[] = {3000, 2003};
  void* Place(Twin& twin) const {
    return on_device_ ? twin.device() : static_cast<void*>(twin.host.data());
  }

  const Rank& self_;
  TestStream& stream_;
  TestStream* forwards_on_ = nullptr;
  const bool on_device_;
  Twin params_, grads_;
  std::vector<std::unique_ptr<Twin>> gradients_;
  entrain_optim_t* const optim_;
  entrain_mesh_t* mesh_ = nullptr;
  entrain_shard_config_t shard_config_;
  entrain_shard_t* shard_ = nullptr;
  entrain_edit_config_t config_;
  entrain_edit_t* edit_ = nullptr;
  void* own_ = nullptr;
};

TEST(OnDevice, EditHasTheBitsOfTheHost) {
  TestDevice();
  RunWorld(2,
           [](const Rank& self) {
             TestStream stream(TestDevice());
             EditLoop here(self, stream, false), there(self, stream, true);
             here.Run(6);
             there.Run(6);
             EXPECT_EQ(there.Params(), here.Params());
             entrain_edit_info_t info;
             entrain_edit_info_init(&info);
             ASSERT_OK(entrain_edit_info(there.edit(), &info));
             EXPECT_EQ(info.syncs, 3);
             EXPECT_NE(info.anchor_checksum, 0u);
             std::vector<float> host(kCount);
             EXPECT_FAILS(entrain_edit_anchor(there.edit(), host.data(), ENTRAIN_F32),
                          ENTRAIN_INVALID_ARGUMENT, "is not memory of device 0, as memory 1 says");
             ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
           },
           {.transports = "inproc"});
}

TEST(OnDevice, AShardGoesFromStreamToStream) {
  RunWorld(2,
           [](const Rank& self) {
             TestStream stream(TestDevice()), other(TestDevice());
             EditLoop here(self, stream, false), there(self, stream, true);
             there.ForwardOn(&other);
             here.Run(6);
             there.Run(6);
             EXPECT_EQ(there.Params(), here.Params());
             EXPECT_FAILS(entrain_shard_set_stream(here.shard(), stream.get()),
                          ENTRAIN_FAILED_PRECONDITION,
                          "the shard was made for host memory, which has no stream");
             EXPECT_FAILS(entrain_shard_set_stream(nullptr, stream.get()), ENTRAIN_INVALID_ARGUMENT,
                          "shard");
             other.Finish();  // the stream is destroyed before the shard
             ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
           },
           {.transports = "inproc"});
}

TEST(OnDevice, ShardsRefuseMemoryThatIsNotThere) {
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
    config.memory = ENTRAIN_MEMORY_HOST_PINNED;
    entrain_shard_t* shard = nullptr;
    const entrain_status_t bad = ENTRAIN_INVALID_ARGUMENT;
    EXPECT_FAILS(entrain_shard_create(mesh, &config, &shard), bad, "memory 2");
    config.memory = ENTRAIN_MEMORY_HOST;
    config.stream = &config;
    EXPECT_FAILS(entrain_shard_create(mesh, &config, &shard), bad, "stream is not NULL");
    config.memory = ENTRAIN_MEMORY_DEVICE;
    config.stream = nullptr;
    ASSERT_OK(entrain_shard_create(mesh, &config, &shard));
    std::vector<float> host(kCount);
    const TestMemory there(TestDevice(), kBytes);
    EXPECT_FAILS(entrain_shard_bind(shard, host.data(), there.get(), ENTRAIN_F32), bad,
                 "params of layer 0, 0x");
    EXPECT_FAILS(entrain_shard_bind(shard, there.get(), host.data(), ENTRAIN_F32), bad,
                 "grads of layer 0, 0x");
    entrain_shard_destroy(shard);
    entrain_mesh_destroy(mesh);
  });
}

}  // namespace
}  // namespace entrain_test
