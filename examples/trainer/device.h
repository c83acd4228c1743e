// The device on which a run computes: the CPU, or a GPU with one stream. The object allocates the
// memory of models, gradients and optimizers. It also has the loops over whole vectors that a step
// needs in addition to its passes and its optimizer. On a GPU a function enqueues its work on the
// stream and returns, unless its comment says that it waits. Thread safety: one thread at a time.
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
  // Returns a CUstream; null on the CPU.
  virtual void* stream() const = 0;

  // Allocates zeroed memory. Throws Error if there is not enough.
  virtual void* Allocate(int64_t bytes) = 0;
  // Waits for the device.
  virtual void Free(void* memory) = 0;
  virtual void Clear(void* to, int64_t bytes) = 0;
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  // Upload copies from host memory, which may change after the call. Download copies to host
  // memory, and waits.
  virtual void Upload(void* to, const void* host, int64_t bytes) = 0;
  virtual void Download(void* host, const void* from, int64_t bytes) = 0;

  // These are the functions of kernels.h. SumOfSquares waits.
  virtual void Add(float* dst, const float* src, int64_t n) = 0;
  virtual void Scale(float* dst, float factor, int64_t n) = 0;
  virtual double SumOfSquares(const float* x, int64_t n) = 0;
  virtual void WidenBf16(const uint16_t* src, float* dst, int64_t n) = 0;
  virtual void NarrowBf16(const float* src, uint16_t* dst, int64_t n) = 0;

  // Makes a pass for batches of at most `rows` rows. Parameters and gradients are on the device.
  virtual std::unique_ptr<Pass> NewPass(const ModelConfig& config, int rows) = 0;
  virtual std::unique_ptr<Pass> NewPass(const MlpConfig& config, int rows) = 0;
};

// Opens the device that --device names: "cpu", "cuda" or "cuda:N". With "cuda", process
// `local_rank` of a host takes GPU local_rank modulo the number of GPUs. Throws Error with one line
// that names the missing part.
std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank);
// Opens a GPU. If `ordinal` is below 0, chooses it by the local rank.
std::unique_ptr<Device> OpenGpu(int ordinal, int local_rank);

// An array of `size` elements on a device, zero at first. The device must outlive the array.
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
  // Copy the whole array from and to host memory. Download waits.
  void Upload(const T* host) { device_->Upload(data_, host, bytes()); }
  void Download(T* host) const { device_->Download(host, data_, bytes()); }

 private:
  Device* device_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace trainer
