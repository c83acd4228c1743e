#include "tests/device/cuda/staged_kernels.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "tests/device/cuda/on_device.h"

namespace entrain {
namespace {

constexpr int64_t kMargin = 256;
constexpr char kMarginByte = 0x33;
constexpr int64_t kRoom = int64_t{64} << 20;

// One call's arrays. Equal host addresses have equal device addresses.
class Stage {
 public:
  Stage() : stream_(Stream().get()) {}
  ~Stage() {
    Stream().Finish();
    for (const auto& [host, array] : arrays_) {
      CopyBack(host, array);
    }
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  template <typename T>
  T* At(T* host, int64_t bytes) {
    if (host == nullptr) {
      return nullptr;
    }
    const void* const key = host;
    const auto known = arrays_.find(key);
    if (known != arrays_.end()) {
      return static_cast<T*>(static_cast<void*>(Room() + known->second.begin));
    }
    const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(host) % 256);
    const int64_t begin = (used_ + kMargin + 255) / 256 * 256 + misplaced;
    used_ = begin + bytes + kMargin;
    EXPECT_LE(used_, kRoom);
    const Array array = {begin, bytes, !std::is_const_v<T>};
    Check(TestDevice().Fill(Room() + begin - kMargin, static_cast<uint8_t>(kMarginByte),
                            bytes + 2 * kMargin, stream_));
    Check(TestDevice().Copy(Room() + begin, host, bytes, stream_));
    arrays_.emplace(key, array);
    return static_cast<T*>(static_cast<void*>(Room() + begin));
  }
  // Runs f with the stream bound, and returns its result.
  template <typename F>
  auto Run(F f) {
    KernelStream bound(TestDevice(), stream_);
    const Finisher finisher{bound};
    return f(TestDevice().kernels());
  }

 private:
  struct Array {
    int64_t begin, bytes;
    bool written;
  };
  struct Finisher {
    KernelStream& bound;
    ~Finisher() { Check(bound.status()); }
  };
  static void Check(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }
  static TestStream& Stream() {
    static auto* const stream = new TestStream(TestDevice());
    return *stream;
  }
  static char* Room() {
    static auto* const memory = new TestMemory(TestDevice(), kRoom);
    return memory->get();
  }
  void CopyBack(const void* host, const Array& array) {
    std::vector<char> bytes(static_cast<size_t>(array.bytes + 2 * kMargin));
    Check(TestDevice().Copy(bytes.data(), Room() + array.begin - kMargin,
                            static_cast<int64_t>(bytes.size()), stream_));
    Stream().Finish();
    const auto intact = [](char byte) { return byte == kMarginByte; };
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + kMargin, intact) &&
                std::all_of(bytes.end() - kMargin, bytes.end(), intact))
        << "a kernel wrote around its array";
    if (array.written) {
      std::memcpy(const_cast<void*>(host), bytes.data() + kMargin,
                  static_cast<size_t>(array.bytes));
    } else {
      EXPECT_EQ(std::memcmp(host, bytes.data() + kMargin, static_cast<size_t>(array.bytes)), 0)
          << "a kernel wrote to its input";
    }
  }

  const StreamHandle stream_;
  int64_t used_ = 0;
  std::map<const void*, Array> arrays_;
};

double SumOfSquares(const float* x, int64_t count) {
  Stage stage;
  const float* const there = stage.At(x, count * 4);
  return stage.Run([&](const Kernels& k) { return k.sum_of_squares(there, count); });
}

double SumOfSquaredProducts(const float* x, const float* y, int64_t count) {
  Stage stage;
  const float *const a = stage.At(x, count * 4), *const b = stage.At(y, count * 4);
  return stage.Run([&](const Kernels& k) { return k.sum_of_squared_products(a, b, count); });
}

void ScaleAny(DType dtype, void* dst, const void* src, int64_t count, double factor) {
  Stage stage;
  void* const out = stage.At(dst, count * 4);
  const void* const in = stage.At(src, count * 4);
  stage.Run([&](const Kernels& k) { k.scale_any(dtype, out, in, count, factor); });
}

void Sgd(const SgdArgs& args, float* out, float* p, const float* g, float* b, int64_t count) {
  Stage stage;
  float *const o = stage.At(out, count * 4), *const x = stage.At(p, count * 4);
  const float* const grad = stage.At(g, count * 4);
  float* const momentum = stage.At(b, count * 4);
  stage.Run([&](const Kernels& k) { k.sgd(args, o, x, grad, momentum, count); });
}

void Adamw(const AdamwArgs& args, float* out, float* p, const float* g, float* m, float* v,
           int64_t count) {
  Stage stage;
  float *const o = stage.At(out, count * 4), *const x = stage.At(p, count * 4);
  const float* const grad = stage.At(g, count * 4);
  float *const mean = stage.At(m, count * 4), *const square = stage.At(v, count * 4);
  stage.Run([&](const Kernels& k) { k.adamw(args, o, x, grad, mean, square, count); });
}

int64_t Agd(const AgdArgs& args, const AgdArrays& arrays, int64_t count) {
  Stage stage;
  AgdArrays there;
  there.out = stage.At(arrays.out, count * 4);
  there.p = stage.At(arrays.p, count * 4);
  there.g = stage.At(arrays.g, count * 4);
  there.m = stage.At(arrays.m, count * 4);
  there.b = stage.At(arrays.b, count * 4);
  there.largest = stage.At(arrays.largest, count * 4);
  there.z = stage.At(arrays.z, count * 4);
  return stage.Run([&](const Kernels& k) { return k.agd(args, there, count); });
}

void Ascend(bool adaptive, float scale, float* p, float* saved, const float* g, int64_t count) {
  Stage stage;
  float *const x = stage.At(p, count * 4), *const s = stage.At(saved, count * 4);
  const float* const grad = stage.At(g, count * 4);
  stage.Run([&](const Kernels& k) { k.ascend(adaptive, scale, x, s, grad, count); });
}

void AddSharpness(const SharpnessArgs& args, float* out, const float* base, const float* g,
                  const float* g2, int64_t count) {
  Stage stage;
  float* const o = stage.At(out, count * 4);
  const float* const b = stage.At(base, count * 4);
  const float *const first = stage.At(g, count * 4), *const second = stage.At(g2, count * 4);
  stage.Run([&](const Kernels& k) { k.add_sharpness(args, o, b, first, second, count); });
}

constexpr Kernels kStaged = {
    .name = "cuda",
    .combine = nullptr,
    .cast = nullptr,
    .square_of_delta = nullptr,
    .weighted_delta = nullptr,
    .sum_of_squares = SumOfSquares,
    .hash = nullptr,
    .sum_of_squared_products = SumOfSquaredProducts,
    .axpy = nullptr,
    .scale_any = ScaleAny,
    .combine_weighted = nullptr,
    .combine_agreeing = nullptr,
    .accumulate = nullptr,
    .all_finite = nullptr,
    .sgd = Sgd,
    .adamw = Adamw,
    .lion = nullptr,
    .agd = Agd,
    .ascend = Ascend,
    .add_sharpness = AddSharpness,
    .outer_step = nullptr,
};

}  // namespace

const Kernels& StagedKernels() {
  return kStaged;
}

}  // namespace entrain
