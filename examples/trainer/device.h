// Where a run computes: the CPU, or a GPU and one stream of it. The memory that models, gradients
// and optimizers are in, and the loops over whole vectors that a step needs besides its passes and
// its optimizer. On a GPU everything is enqueued on the stream and the host goes on, unless a
// function says that it waits. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "examples/trainer/mlp.h"
#include "examples/trainer/model.h"
#include "examples/trainer/pass.h"

namespace trainer {

class Device {
 public:
  virtual ~Device() = default;

  virtual bool is_gpu() const = 0;
  // A CUstream; null on the CPU.
  virtual void* stream() const = 0;

  // Of zeros. Throws Error when there is not so much.
  virtual void* Allocate(int64_t bytes) = 0;
  // Waits for the device.
  virtual void Free(void* memory) = 0;
  virtual void Clear(void* to, int64_t bytes) = 0;
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  // From the host's memory, which may change afterwards; and back, which waits.
  virtual void Upload(void* to, const void* host, int64_t bytes) = 0;
  virtual void Download(void* host, const void* from, int64_t bytes) = 0;

  // As kernels.h has them. A sum waits.
  virtual void Add(float* dst, const float* src, int64_t n) = 0;
  virtual void Scale(float* dst, float factor, int64_t n) = 0;
  virtual double SumOfSquares(const float* x, int64_t n) = 0;
  virtual void WidenBf16(const uint16_t* src, float* dst, int64_t n) = 0;
  virtual void NarrowBf16(const float* src, uint16_t* dst, int64_t n) = 0;

  // A pass of batches of at most so many rows, whose parameters and gradients are on the device.
  virtual std::unique_ptr<Pass> NewPass(const ModelConfig& config, int rows) = 0;
  virtual std::unique_ptr<Pass> NewPass(const MlpConfig& config, int rows) = 0;
};

// What --device names: "cpu", "cuda" (process number `local_rank` of a host takes GPU local_rank
// modulo how many there are) or "cuda:N". Throws Error with one line that says what is missing.
std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank);
// The same for a GPU; ordinal below 0: by the local rank.
std::unique_ptr<Device> OpenGpu(int ordinal, int local_rank);

// `size` elements on a device, zero to begin with. The device must outlive them.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(Device* device, int64_t size)
      : device_(device),
        data_(static_cast<T*>(device->Allocate(size * int64_t{sizeof(T)}))),
        size_(size) {}
  ~Array() {
    if (data_ != nullptr) {
      device_->Free(data_);
    }
  }
  Array(Array&& other) noexcept { *this = std::move(other); }
  Array& operator=(Array&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * int64_t{sizeof(T)}; }
  void Clear() { device_->Clear(data_, bytes()); }
  // All of it: from the host's memory, and back, which waits.
  void Upload(const T* host) { device_->Upload(data_, host, bytes()); }
  void Download(T* host) const { device_->Download(host, data_, bytes()); }

 private:
  Device* device_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace trainer
