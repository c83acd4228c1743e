// One GPU: its primary context, one stream, the kernels of gpu_args.h, and cuBLAS. The library uses
// the same context. All work runs in order on the stream. Only the thread that opens the GPU may
// use this object, because opening binds the context to this thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "examples/trainer/device.h"
#include "examples/trainer/gpu_args.h"
#include "examples/trainer/gpu_driver.h"

namespace trainer {

// A factor of a product: a matrix whose rows are `width` elements apart, plain or transposed. The
// matrices of a batch are `stride` elements apart.
struct GpuMatrix {
  const float* at;
  int width;
  bool transposed = false;
  int64_t stride = 0;
};

// out[rows, columns] = scale * a[rows, inner] * b[inner, columns] + keep * out, in row-major order.
// A batch has `batch` such products, whose results are out_stride apart.
struct GpuProduct {
  int rows, columns, inner;
  GpuMatrix a, b;
  float* out;
  int out_width;
  float scale = 1.0f, keep = 0.0f;
  int batch = 1;
  int64_t out_stride = 0;
};

class Gpu final : public Device {
 public:
  // Opens GPU `ordinal`, or if `ordinal` is below 0, GPU local_rank modulo the number of GPUs.
  // Throws Error naming the missing part.
  Gpu(int ordinal, int local_rank);
  // Waits for the stream.
  ~Gpu() override;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  bool is_gpu() const override { return true; }
  void* stream() const override { return stream_; }
  void* Allocate(int64_t bytes) override;
  void Free(void* memory) override;
  void Clear(void* to, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  void Upload(void* to, const void* host, int64_t bytes) override;
  void Download(void* host, const void* from, int64_t bytes) override;
  void Add(float* dst, const float* src, int64_t n) override;
  void Scale(float* dst, float factor, int64_t n) override;
  double SumOfSquares(const float* x, int64_t n) override;
  void WidenBf16(const uint16_t* src, float* dst, int64_t n) override;
  void NarrowBf16(const float* src, uint16_t* dst, int64_t n) override;
  std::unique_ptr<Pass> NewPass(const ModelConfig& config, int rows) override;
  std::unique_ptr<Pass> NewPass(const MlpConfig& config, int rows) override;

  void Multiply(const GpuProduct& product);
  // Runs the kernel on a grid of `blocks` blocks. The kernels' loops cover all elements with any
  // grid.
  template <typename Args>
  void Launch(GpuKernel kernel, const Args& args, int64_t blocks) {
    Start(kernel, const_cast<Args*>(&args), blocks);
  }
  // Runs the kernel with one thread per element, up to a limit of blocks (kMostBlocks).
  template <typename Args>
  void LaunchOver(int64_t elements, GpuKernel kernel, const Args& args) {
    Launch(kernel, args, (elements + kGpuThreads - 1) / kGpuThreads);
  }

  // Returns page-locked memory. Copies to and from it need not wait.
  void* AllocatePinned(int64_t bytes);
  void FreePinned(void* memory);
  CUevent NewEvent();
  void DropEvent(CUevent event);
  void Record(CUevent event);
  // Blocks until the stream has reached the event. Throws Error after ten minutes.
  void Await(CUevent event);

 private:
  void Start(GpuKernel kernel, void* args, int64_t blocks);
  void LoadKernels();

  const CudaFunctions cuda_;
  const CublasFunctions cublas_;
  CUstream stream_ = nullptr;
  std::array<CUfunction, static_cast<size_t>(GpuKernel::kCount)> kernels_{};
  void* blas_ = nullptr;
  Array<uint8_t> workspace_;  // for cuBLAS
  Array<double> partial_;
  std::unique_ptr<class GpuNumbers> sum_;
};

// A few numbers that kernels write and the host reads.
class GpuNumbers {
 public:
  GpuNumbers(Gpu* gpu, int count);
  ~GpuNumbers();
  GpuNumbers(const GpuNumbers&) = delete;
  GpuNumbers& operator=(const GpuNumbers&) = delete;

  double* on_gpu() { return on_gpu_.data(); }
  // Enqueues a copy of the numbers to the host.
  void Fetch();
  // Returns the numbers of the last Fetch. Waits for that copy.
  const double* Read() const;

 private:
  Gpu* const gpu_;
  Array<double> on_gpu_;
  double* const host_;
  const CUevent fetched_;
};

// Batches that the host passes to the GPU without waiting for the GPU.
class GpuBatch {
 public:
  GpuBatch(Gpu* gpu, int64_t most_inputs, int64_t most_targets);
  ~GpuBatch();
  GpuBatch(const GpuBatch&) = delete;
  GpuBatch& operator=(const GpuBatch&) = delete;

  void Set(const Batch& batch);
  const uint8_t* inputs() const { return bytes_.data(); }
  const uint8_t* targets() const { return bytes_.data() + most_inputs_; }

 private:
  // There are two staging buffers, so that the host writes one while the GPU still reads the other.
  struct Staging {
    uint8_t* bytes;
    CUevent read;
  };
  Gpu* const gpu_;
  const int64_t most_inputs_;
  Array<uint8_t> bytes_;
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
};

}  // namespace trainer
