#include "examples/trainer/gpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "examples/trainer/error.h"
#include "examples/trainer/gpu_passes.h"
#include "examples/trainer/stopwatch.h"

extern "C" const unsigned char trainer_gpu_image[];  // gpu_image.S

namespace trainer {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // the size that cuBLAS itself uses on a
                                                        // Hopper
constexpr int64_t kMostBlocks = 1 << 16;
constexpr double kLongestWait_s = 600.0;

constexpr const char* kKernelNames[] = {
#define TRAINER_GPU_NAME(name, args, loop) "trainer_" #name,
    TRAINER_GPU_KERNELS(TRAINER_GPU_NAME)
#undef TRAINER_GPU_NAME
};

CUdeviceptr Address(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

int Choose(const CudaFunctions& cuda, int ordinal, int local_rank) {
  int count = 0;
  cuda.Check(cuda.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count == 0) {
    throw Error("--device cuda: this machine has no GPU that its driver can use");
  }
  if (ordinal >= count) {
    throw Error("--device cuda:" + std::to_string(ordinal) + " is none of the " +
                std::to_string(count) + (count == 1 ? " GPU" : " GPUs") +
                " of this machine, which count from 0");
  }
  return ordinal >= 0 ? ordinal : local_rank % count;
}

}  // namespace

#define TRAINER_CUDA(function, ...) cuda_.Check(cuda_.function(__VA_ARGS__), #function)
#define TRAINER_CUBLAS(function, ...) cublas_.Check(cublas_.function(__VA_ARGS__), #function)

std::unique_ptr<Device> OpenGpu(int ordinal, int local_rank) {
  return std::make_unique<Gpu>(ordinal, local_rank);
}

Gpu::Gpu(int ordinal, int local_rank)
    : cuda_(CudaFunctions::Load()), cublas_(CublasFunctions::Load()) {
  CUdevice device = 0;
  TRAINER_CUDA(cuDeviceGet, &device, Choose(cuda_, ordinal, local_rank));
  CUcontext context = nullptr;
  TRAINER_CUDA(cuDevicePrimaryCtxRetain, &context, device);  // never released, as in the library
  TRAINER_CUDA(cuCtxPushCurrent_v2, context);
  TRAINER_CUDA(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
  LoadKernels();
  TRAINER_CUBLAS(cublasCreate_v2, &blas_);
  // The stream must be set before the workspace, because setting a stream resets the workspace.
  // With a given workspace cuBLAS need not allocate memory while it works.
  TRAINER_CUBLAS(cublasSetStream_v2, blas_, stream_);
  workspace_ = Array<uint8_t>(this, kWorkspaceBytes);
  TRAINER_CUBLAS(cublasSetWorkspace_v2, blas_, workspace_.data(),
                 static_cast<size_t>(workspace_.bytes()));
  partial_ = Array<double>(this, kGpuMostPartialSums);
  sum_ = std::make_unique<GpuNumbers>(this, 1);
}

Gpu::~Gpu() {
  cuda_.cuStreamSynchronize(stream_);
  cublas_.cublasDestroy_v2(blas_);
  sum_.reset();
  partial_ = {};
  workspace_ = {};
  cuda_.cuStreamDestroy_v2(stream_);
}

// Loads all kernels now. If a kernel were loaded later, while a stream waits for the host, the
// loading could wait for this stream.
void Gpu::LoadKernels() {
  CUmodule module = nullptr;
  TRAINER_CUDA(cuModuleLoadData, &module, trainer_gpu_image);
  for (size_t i = 0; i < kernels_.size(); ++i) {
    TRAINER_CUDA(cuModuleGetFunction, &kernels_[i], module, kKernelNames[i]);
  }
}

// ---- Memory

void* Gpu::Allocate(int64_t bytes) {
  CUdeviceptr memory = 0;
  TRAINER_CUDA(cuMemAlloc_v2, &memory, static_cast<size_t>(std::max<int64_t>(bytes, 16)));
  void* const at = reinterpret_cast<void*>(memory);
  Clear(at, bytes);
  return at;
}

void Gpu::Free(void* memory) {
  cuda_.cuMemFree_v2(Address(memory));  // fails only if an earlier call has failed
}

void Gpu::Clear(void* to, int64_t bytes) {
  if (bytes > 0) {
    TRAINER_CUDA(cuMemsetD8Async, Address(to), 0, static_cast<size_t>(bytes), stream_);
  }
}

void Gpu::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) {
    TRAINER_CUDA(cuMemcpyAsync, Address(to), Address(from), static_cast<size_t>(bytes), stream_);
  }
}

void Gpu::Upload(void* to, const void* host, int64_t bytes) {
  Copy(to, host, bytes);
  TRAINER_CUDA(cuStreamSynchronize, stream_);
}

void Gpu::Download(void* host, const void* from, int64_t bytes) {
  Copy(host, from, bytes);
  TRAINER_CUDA(cuStreamSynchronize, stream_);
}

void* Gpu::AllocatePinned(int64_t bytes) {
  void* memory = nullptr;
  TRAINER_CUDA(cuMemHostAlloc, &memory, static_cast<size_t>(bytes),
               CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  return memory;
}

void Gpu::FreePinned(void* memory) {
  cuda_.cuMemFreeHost(memory);
}

// ---- Events

CUevent Gpu::NewEvent() {
  CUevent event = nullptr;
  TRAINER_CUDA(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
  return event;
}

void Gpu::DropEvent(CUevent event) {
  cuda_.cuEventDestroy_v2(event);
}

void Gpu::Record(CUevent event) {
  TRAINER_CUDA(cuEventRecord, event, stream_);
}

void Gpu::Await(CUevent event) {
  const Stopwatch watch;
  for (int looks = 0;; ++looks) {
    const CUresult now = cuda_.cuEventQuery(event);
    if (now != CUDA_ERROR_NOT_READY) {
      cuda_.Check(now, "cuEventQuery");
      return;
    }
    if (looks < 1000) {
      std::this_thread::yield();  // lets other ranks on this core run
      continue;
    }
    if (watch.seconds() > kLongestWait_s) {
      throw Error("--device cuda: the GPU has not done its work within ten minutes");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// ---- Computing

void Gpu::Start(GpuKernel kernel, void* args, int64_t blocks) {
  const auto i = static_cast<size_t>(kernel);
  void* parameters[] = {args};
  const CUresult result = cuda_.cuLaunchKernel(
      kernels_[i], static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)), 1, 1,
      kGpuThreads, 1, 1, 0, stream_, parameters, nullptr);
  cuda_.Check(result, kKernelNames[i]);
}

// cuBLAS uses column-major order. It sees the matrices here, which are row-major, as transposed. So
// it computes out^T = b^T a^T.
void Gpu::Multiply(const GpuProduct& p) {
  const auto operation = [](const GpuMatrix& m) {
    return m.transposed ? kCublasTransposed : kCublasAsIs;
  };
  if (p.batch == 1) {
    TRAINER_CUBLAS(cublasSgemm_v2, blas_, operation(p.b), operation(p.a), p.columns, p.rows,
                   p.inner, &p.scale, p.b.at, p.b.width, p.a.at, p.a.width, &p.keep, p.out,
                   p.out_width);
  } else {
    TRAINER_CUBLAS(cublasSgemmStridedBatched, blas_, operation(p.b), operation(p.a), p.columns,
                   p.rows, p.inner, &p.scale, p.b.at, p.b.width, p.b.stride, p.a.at, p.a.width,
                   p.a.stride, &p.keep, p.out, p.out_width, p.out_stride, p.batch);
  }
}

void Gpu::Add(float* dst, const float* src, int64_t n) {
  LaunchOver(n, GpuKernel::add, GpuVectorArgs{.out = dst, .a = src, .count = n});
}

void Gpu::Scale(float* dst, float factor, int64_t n) {
  LaunchOver(n, GpuKernel::scale, GpuVectorArgs{.out = dst, .factor = factor, .count = n});
}

double Gpu::SumOfSquares(const float* x, int64_t n) {
  const int64_t blocks =
      std::clamp<int64_t>((n + kGpuThreads - 1) / kGpuThreads, 1, kGpuMostPartialSums);
  Launch(GpuKernel::squares, GpuSquaresArgs{x, partial_.data(), n}, blocks);
  Launch(GpuKernel::total,
         GpuTotalArgs{partial_.data(), sum_->on_gpu(), static_cast<int32_t>(blocks), 1}, 1);
  sum_->Fetch();
  return *sum_->Read();
}

void Gpu::WidenBf16(const uint16_t* src, float* dst, int64_t n) {
  LaunchOver(n, GpuKernel::widen, GpuConvertArgs{.out = dst, .in = src, .count = n});
}

void Gpu::NarrowBf16(const float* src, uint16_t* dst, int64_t n) {
  LaunchOver(n, GpuKernel::narrow, GpuConvertArgs{.out = dst, .in = src, .count = n});
}

std::unique_ptr<Pass> Gpu::NewPass(const ModelConfig& config, int rows) {
  return std::make_unique<GpuLanguagePass>(this, config, rows);
}

std::unique_ptr<Pass> Gpu::NewPass(const MlpConfig& config, int rows) {
  return std::make_unique<GpuMlpPass>(this, config, rows);
}

// ---- Numbers and batches

GpuNumbers::GpuNumbers(Gpu* gpu, int count)
    : gpu_(gpu),
      on_gpu_(gpu, count),
      host_(static_cast<double*>(gpu->AllocatePinned(on_gpu_.bytes()))),
      fetched_(gpu->NewEvent()) {}

GpuNumbers::~GpuNumbers() {
  gpu_->FreePinned(host_);
  gpu_->DropEvent(fetched_);
}

void GpuNumbers::Fetch() {
  gpu_->Copy(host_, on_gpu_.data(), on_gpu_.bytes());
  gpu_->Record(fetched_);
}

const double* GpuNumbers::Read() const {
  gpu_->Await(fetched_);
  return host_;
}

GpuBatch::GpuBatch(Gpu* gpu, int64_t most_inputs, int64_t most_targets)
    : gpu_(gpu), most_inputs_(most_inputs), bytes_(gpu, most_inputs + most_targets) {
  for (Staging& staging : staging_) {
    staging.bytes = static_cast<uint8_t*>(gpu->AllocatePinned(bytes_.size()));
    staging.read = gpu->NewEvent();
    gpu->Record(staging.read);
  }
}

GpuBatch::~GpuBatch() {
  for (const Staging& staging : staging_) {
    gpu_->FreePinned(staging.bytes);
    gpu_->DropEvent(staging.read);
  }
}

void GpuBatch::Set(const Batch& batch) {
  const Staging& staging = staging_[next_];
  next_ = (next_ + 1) % staging_.size();
  gpu_->Await(staging.read);
  std::memcpy(staging.bytes, batch.inputs.data(), batch.inputs.size());
  std::memcpy(staging.bytes + most_inputs_, batch.targets.data(), batch.targets.size());
  gpu_->Copy(bytes_.data(), staging.bytes, bytes_.size());
  gpu_->Record(staging.read);
}

}  // namespace trainer
