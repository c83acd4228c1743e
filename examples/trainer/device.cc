#include "examples/trainer/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "examples/trainer/kernels.h"

namespace trainer {
namespace {

class Cpu final : public Device {
 public:
  bool is_gpu() const override { return false; }
  void* stream() const override { return nullptr; }

  void* Allocate(int64_t bytes) override {
    void* const memory = std::calloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 1);
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
    return memory;
  }
  void Free(void* memory) override { std::free(memory); }
  void Clear(void* to, int64_t bytes) override { std::memset(to, 0, static_cast<size_t>(bytes)); }
  void Copy(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void Upload(void* to, const void* host, int64_t bytes) override { Copy(to, host, bytes); }
  void Download(void* host, const void* from, int64_t bytes) override { Copy(host, from, bytes); }

  void Add(float* dst, const float* src, int64_t n) override { trainer::Add(dst, src, n); }
  void Scale(float* dst, float factor, int64_t n) override { trainer::Scale(dst, factor, n); }
  double SumOfSquares(const float* x, int64_t n) override { return trainer::SumOfSquares(x, n); }
  void WidenBf16(const uint16_t* src, float* dst, int64_t n) override {
    trainer::WidenBf16(src, dst, n);
  }
  void NarrowBf16(const float* src, uint16_t* dst, int64_t n) override {
    trainer::NarrowBf16(src, dst, n);
  }

  std::unique_ptr<Pass> NewPass(const ModelConfig& config, int rows) override {
    return std::make_unique<LanguagePass>(config, rows);
  }
  std::unique_ptr<Pass> NewPass(const MlpConfig& config, int rows) override {
    return std::make_unique<MlpPass>(config, rows);
  }
};

}  // namespace

std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank) {
  if (name == "cpu") {
    return std::make_unique<Cpu>();
  }
  const size_t colon = name.find(':');
  return OpenGpu(colon == std::string::npos ? -1 : std::atoi(name.c_str() + colon + 1), local_rank);
}

}  // namespace trainer
