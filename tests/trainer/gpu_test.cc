// Passes and loops on a GPU, compared with those on the CPU.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/trainer/device.h"
#include "examples/trainer/digits.h"
#include "examples/trainer/error.h"
#include "examples/trainer/gpu_driver.h"
#include "examples/trainer/random.h"
#include "tests/trainer/on_gpu.h"
#include "tests/trainer/passes.h"
#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#endif

namespace trainer {
namespace {

#if __has_include(<cublas_v2.h>)
// Compares a declaration of gpu_driver.h with NVIDIA's header: the same number of arguments, of the
// same sizes.
template <typename... A, typename... B>
constexpr bool Alike(int (*)(A...), cublasStatus_t (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B)) {
    return ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);
  }
  return false;
}
using Declared = CublasFunctions;
static_assert(Alike(decltype(Declared::cublasCreate_v2){}, &::cublasCreate_v2));
static_assert(Alike(decltype(Declared::cublasDestroy_v2){}, &::cublasDestroy_v2));
static_assert(Alike(decltype(Declared::cublasSetStream_v2){}, &::cublasSetStream_v2));
static_assert(Alike(decltype(Declared::cublasSetWorkspace_v2){}, &::cublasSetWorkspace_v2));
static_assert(Alike(decltype(Declared::cublasSgemm_v2){}, &::cublasSgemm_v2));
static_assert(Alike(decltype(Declared::cublasSgemmStridedBatched){}, &::cublasSgemmStridedBatched));
static_assert(int{CUBLAS_OP_N} == kCublasAsIs && int{CUBLAS_OP_T} == kCublasTransposed);
static_assert(CUBLAS_STATUS_SUCCESS == 0);
#endif

using testing::HasSubstr;

std::unique_ptr<Device> TestGpu() {
  trainer_test::UseFakesUnlessReal();
  return OpenDevice("cuda:0", 0);
}

std::vector<float> Normals(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(random.Normal());
  }
  return values;
}

Batch RandomBatch(size_t inputs, size_t targets, uint64_t most_input, uint64_t most_target) {
  Random random(17);
  Batch batch;
  for (size_t i = 0; i < inputs; ++i) {
    batch.inputs.push_back(static_cast<uint8_t>(random.Below(most_input)));
  }
  for (size_t i = 0; i < targets; ++i) {
    batch.targets.push_back(static_cast<uint8_t>(random.Below(most_target)));
  }
  return batch;
}

// The results of a pass over a batch.
struct Made {
  double loss = 0.0;
  int64_t hits = 0;
  Parameters grads;
};

// Runs the pass on a device: computes loss and hits, and adds the gradient with scale 1 and again
// with scale 0.5.
Made RunPass(Device* device, Pass* pass, const Parameters& params, const Batch& batch) {
  std::vector<Array<float>> at, grads;
  for (const auto& layer : params) {
    at.emplace_back(device, static_cast<int64_t>(layer.size()));
    at.back().Upload(layer.data());
    grads.emplace_back(device, at.back().size());
  }
  Made made;
  for (const float scale : {1.0f, 0.5f}) {
    pass->SetBatch(batch);
    for (size_t l = 0; l < at.size(); ++l) {
      pass->Forward(static_cast<int>(l), at[l].data());
    }
    made.hits = pass->hits();
    for (size_t l = at.size(); l-- > 0;) {
      pass->Backward(static_cast<int>(l), at[l].data(), scale, grads[l].data());
    }
    made.loss = pass->loss();
  }
  for (const auto& layer : grads) {
    made.grads.emplace_back(static_cast<size_t>(layer.size()));
    layer.Download(made.grads.back().data());
  }
  return made;
}

double Largest(const std::vector<float>& values) {
  float largest = 0.0f;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return static_cast<double>(largest);
}

void ExpectAlike(const Made& gpu, const Made& cpu) {
  EXPECT_NEAR(gpu.loss, cpu.loss, 1e-5 * cpu.loss);
  EXPECT_EQ(gpu.hits, cpu.hits);
  ASSERT_EQ(gpu.grads.size(), cpu.grads.size());
  for (size_t l = 0; l < cpu.grads.size(); ++l) {
    const double bound = 2e-5 * Largest(cpu.grads[l]);
    ASSERT_GT(bound, 0.0) << "layer " << l;
    for (size_t i = 0; i < cpu.grads[l].size(); ++i) {
      ASSERT_NEAR(static_cast<double>(gpu.grads[l][i]), static_cast<double>(cpu.grads[l][i]), bound)
          << "layer " << l << ", coordinate " << i;
    }
  }
}

// Runs both devices, the GPU twice.
template <typename Config>
void ExpectTheCpusNumbers(const Config& config, int rows, const Parameters& params,
                          const Batch& batch) {
  const auto gpu = TestGpu(), cpu = OpenDevice("cpu", 0);
  const Made expected = RunPass(cpu.get(), cpu->NewPass(config, rows).get(), params, batch);
  const Made made = RunPass(gpu.get(), gpu->NewPass(config, rows).get(), params, batch);
  ExpectAlike(made, expected);
  const Made again = RunPass(gpu.get(), gpu->NewPass(config, rows).get(), params, batch);
  EXPECT_EQ(again.loss, made.loss);
  EXPECT_EQ(again.grads, made.grads);
}

struct Shape {
  const char* name;
  ModelConfig config;
  int rows;
};

class GpuLanguageTest : public testing::TestWithParam<Shape> {};

TEST_P(GpuLanguageTest, LossHitsAndGradientsAreTheCpusAndTheSameBitsTwice) {
  const auto [name, config, rows] = GetParam();
  Parameters params;
  for (int l = 0; l < LayerCount(config); ++l) {
    params.emplace_back(static_cast<size_t>(LayerSize(config, l)));
    InitialiseLayer(config, l, 7, params.back().data());
  }
  for (float& w : params.back()) {
    w *= 4.0f;  // so that all gradients are far from zero
  }
  const auto tokens = static_cast<size_t>(rows * config.length);
  ExpectTheCpusNumbers(config, rows, params, RandomBatch(tokens, tokens, 256, 256));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuLanguageTest,
    testing::Values(Shape{"short", {.hidden = 16, .layers = 2, .heads = 2, .length = 12}, 3},
                    // Rows longer than a block of threads, and widths that are no multiple of 32.
                    Shape{"long", {.hidden = 36, .layers = 1, .heads = 3, .length = 300}, 1},
                    Shape{"one_token", {.hidden = 8, .layers = 1, .heads = 1, .length = 1}, 4}),
    [](const testing::TestParamInfo<Shape>& shape) { return std::string(shape.param.name); });

class GpuMlpTest : public testing::TestWithParam<MlpConfig> {};

// The batch is smaller than the largest possible one.
TEST_P(GpuMlpTest, LossHitsAndGradientsAreTheCpusAndTheSameBitsTwice) {
  Parameters params;
  for (int l = 0; l <= GetParam().layers; ++l) {
    params.push_back(Normals(GetParam().layer_size(l), static_cast<uint64_t>(l)));
    for (float& w : params.back()) {
      w *= 0.3f;
    }
  }
  ExpectTheCpusNumbers(GetParam(), 9, params, RandomBatch(5 * kPixels, 5, kDarkest + 1, kDigits));
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuMlpTest,
                         testing::Values(MlpConfig{.hidden = 6, .layers = 1},
                                         MlpConfig{.hidden = 300, .layers = 3}),
                         [](const testing::TestParamInfo<MlpConfig>& config) {
                           return "layers" + std::to_string(config.param.layers);
                         });

TEST(GpuPass, TheMostProbableOfEqualsIsTheFirst) {
  const MlpConfig config{.hidden = 4, .layers = 1};
  Parameters params(2);
  for (int l = 0; l <= 1; ++l) {
    params[static_cast<size_t>(l)].resize(static_cast<size_t>(config.layer_size(l)));
  }
  Batch batch = RandomBatch(10 * kPixels, 10, kDarkest + 1, 1);
  for (uint8_t digit = 0; digit < 10; ++digit) {
    batch.targets[digit] = digit;  // all logits are equal
  }
  const auto gpu = TestGpu();
  const Made made = RunPass(gpu.get(), gpu->NewPass(config, 10).get(), params, batch);
  EXPECT_EQ(made.hits, 1);
  EXPECT_NEAR(made.loss, std::log(10.0), 1e-6);
}

// A loss of NaN must be visible.
TEST(GpuPass, NanComesThrough) {
  const MlpConfig config{.hidden = 4, .layers = 1};
  Parameters params = {Normals(config.layer_size(0), 1), Normals(config.layer_size(1), 2)};
  params[1][5] = std::numeric_limits<float>::quiet_NaN();
  const auto gpu = TestGpu();
  const Made made = RunPass(gpu.get(), gpu->NewPass(config, 3).get(), params,
                            RandomBatch(3 * kPixels, 3, kDarkest + 1, kDigits));
  EXPECT_TRUE(std::isnan(made.loss));
}

// Forward and backward passes only enqueue. The host does not wait in them.
TEST(GpuPass, TheHostWaitsForNumbersOnly) {
  if (trainer_test::OnRealGpu()) {
    GTEST_SKIP() << "asks the fake driver for what no other gives";
  }
  const auto gpu = TestGpu();
  auto* const calls = trainer_test::OfFake<decltype(FakeCudaCalls)>("FakeCudaCalls");
  const ModelConfig config{.hidden = 16, .layers = 2, .heads = 2, .length = 12};
  const auto pass = gpu->NewPass(config, 2);
  pass->SetBatch(RandomBatch(24, 24, 256, 256));
  std::vector<Array<float>> at, grads;
  for (int l = 0; l < LayerCount(config); ++l) {
    at.emplace_back(gpu.get(), LayerSize(config, l));
    grads.emplace_back(gpu.get(), LayerSize(config, l));
  }
  const auto waits = [&] {
    return calls("cuStreamSynchronize") + calls("cuEventQuery") + calls("cuMemAlloc_v2") +
           calls("cuMemHostAlloc") + calls("cuMemFree_v2");
  };
  const int before = waits();
  for (int l = 0; l < LayerCount(config); ++l) {
    pass->Forward(l, at[static_cast<size_t>(l)].data());
  }
  for (int l = LayerCount(config) - 1; l >= 0; --l) {
    pass->Backward(l, at[static_cast<size_t>(l)].data(), 1.0f,
                   grads[static_cast<size_t>(l)].data());
  }
  EXPECT_EQ(waits(), before);
  EXPECT_NEAR(pass->loss(), std::log(256.0), 1e-6);  // all parameters are zero
  EXPECT_GT(waits(), before);
}

TEST(GpuLoops, AreTheCpus) {
  const auto gpu = TestGpu(), cpu = OpenDevice("cpu", 0);
  for (const int64_t count : {1, 255, 257, 300001}) {
    const std::vector<float> x = Normals(count, 1), y = Normals(count, 2);
    std::vector<std::vector<float>> results;
    std::vector<double> sums;
    for (Device* const device : {cpu.get(), gpu.get()}) {
      Array<float> a(device, count), b(device, count);
      Array<uint16_t> narrow(device, count);
      a.Upload(x.data());
      b.Upload(y.data());
      device->Add(a.data(), b.data(), count);
      device->Scale(a.data(), 0.3f, count);
      sums.push_back(device->SumOfSquares(a.data(), count));
      sums.push_back(device->SumOfSquares(a.data(), count));
      device->NarrowBf16(a.data(), narrow.data(), count);
      device->WidenBf16(narrow.data(), b.data(), count);
      for (const Array<float>* array : {&a, &b}) {
        results.emplace_back(static_cast<size_t>(count));
        array->Download(results.back().data());
      }
    }
    EXPECT_EQ(results[2], results[0]);
    EXPECT_EQ(results[3], results[1]);
    EXPECT_NE(results[2], results[3]);
    EXPECT_NEAR(sums[2], sums[0], 1e-12 * sums[0]);
    EXPECT_EQ(sums[2], sums[3]);
  }
}

TEST(Gpus, AreTakenInTurnAndWhatIsMissingIsSaid) {
  if (trainer_test::OnRealGpu()) {
    GTEST_SKIP() << "asks the fake driver for what no other gives";
  }
  trainer_test::UseFakesUnlessReal();
  EXPECT_NE(OpenDevice("cuda", 5), nullptr);  // 5 modulo one GPU
  const auto refused = [](const std::string& name) {
    try {
      OpenDevice(name, 0);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused("cuda:1"), HasSubstr("--device cuda:1 is none of the 1 GPU"));
  setenv("TRAINER_CUBLAS_LIBRARY", "/nowhere/libcublas.so", 1);
  EXPECT_THAT(refused("cuda"), HasSubstr("no cuBLAS here"));
  EXPECT_THAT(refused("cuda"), HasSubstr("/nowhere/libcublas.so"));
  setenv("TRAINER_CUBLAS_LIBRARY", FAKE_CUDA_LIBRARY, 1);
  EXPECT_THAT(refused("cuda"), HasSubstr("it has no cublasCreate_v2"));
  setenv("ENTRAIN_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
  EXPECT_THAT(refused("cuda"), HasSubstr("no CUDA driver here"));
  trainer_test::UseFakesUnlessReal();
}

}  // namespace
}  // namespace trainer
