// Arrays of a test on the host or on a device, so that one test body covers both. The device is
// that of the fake driver, or the machine's first if TEST_GPU=1 is set.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "lib/train/device_waits.h"
#include "lib/train/gradient_channel.h"

#ifdef FAKE_CUDA_LIBRARY
#include "tests/device/cuda/on_device.h"
#endif

namespace entrain {

// A place, and the caller's stream on it.
class Arrays {
 public:
  explicit Arrays(bool on_device, int ordinal = 0) {
#ifdef FAKE_CUDA_LIBRARY
    if (on_device) {
      stream_ = std::make_unique<TestStream>(TestDevice(ordinal));
      at_ = {&TestDevice(ordinal), stream_->get()};
    }
#else
    EXPECT_FALSE(on_device || ordinal != 0);
#endif
  }
  const ArraysAt& at() const {
    return at_;
  }
  // Copies between the host and the place. The copy is complete when this returns.
  void Move(void* to, const void* from, int64_t bytes) const {
    MoveAt(at_, to, from, bytes);
  }
  static void MoveAt(const ArraysAt& at, void* to, const void* from, int64_t bytes) {
    if (bytes == 0) {
      return;  // the place may have no memory
    }
    if (at.device == nullptr) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
    } else {
      EXPECT_EQ(at.device->Copy(to, from, bytes, at.stream), absl::OkStatus());
      EXPECT_EQ(WaitForStream(at, Deadline::After(30 * kSecond)), absl::OkStatus());
    }
  }
  template <typename T>
  std::vector<T> Read(const void* from, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    Move(values.data(), from, count * static_cast<int64_t>(sizeof(T)));
    return values;
  }
  template <typename T>
  void Write(void* to, const std::vector<T>& values) const {
    Move(to, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }

 private:
#ifdef FAKE_CUDA_LIBRARY
  std::unique_ptr<TestStream> stream_;
#endif
  ArraysAt at_;
};

// An array of the test in that place.
template <typename T>
class TestArray {
 public:
  TestArray(const Arrays& where, const std::vector<T>& values)
      : where_(where),
        count_(static_cast<int64_t>(values.size())),
        memory_(
            *PlacedArray::Allocate(where.at().device, count_ * static_cast<int64_t>(sizeof(T)))) {
    where.Write(data(), values);
  }
  void* data() const { return memory_.data(); }
  std::vector<T> Read() const { return where_.Read<T>(data(), count_); }

 private:
  const Arrays& where_;
  const int64_t count_;
  const PlacedArray memory_;
};

// Runs a step of the caller, which is written for host memory, in either place.
template <typename T>
class HostStep {
 public:
  HostStep(ShardStepFn step, void* user) : step_(step), user_(user) {}
  void GiveTo(ChannelOptions* options) {
    options->step = Run;
    options->user = this;
  }
  // Follows the channel's stream. Not needed on the host.
  void Follow(const Arrays& where, const GradientChannel& channel) {
    at_ = {where.at().device, channel.stream()};
  }

 private:
  static int32_t Run(void* self, int32_t preview, int64_t step, double lr, size_t first,
                     size_t count, const void* grads, void* master, void* out) {
    const HostStep& it = *static_cast<const HostStep*>(self);
    const auto bytes = static_cast<int64_t>(count * sizeof(T));
    std::vector<T> g(count), theta(count), estimate(count);
    Arrays::MoveAt(it.at_, g.data(), grads, bytes);
    Arrays::MoveAt(it.at_, theta.data(), master, bytes);
    const int32_t code = it.step_(it.user_, preview, step, lr, first, count, g.data(), theta.data(),
                                  preview != 0 ? estimate.data() : nullptr);
    Arrays::MoveAt(it.at_, preview != 0 ? out : master,
                   preview != 0 ? estimate.data() : theta.data(), bytes);
    return code;
  }

  const ShardStepFn step_;
  void* const user_;
  ArraysAt at_;
};

// For INSTANTIATE_TEST_SUITE_P of suites whose parameter is true if arrays are on a device.
#ifdef FAKE_CUDA_LIBRARY
inline const std::vector<bool> kPlaces = {false, true};
#else
inline const std::vector<bool> kPlaces = {false};
#endif
inline std::string NameOfPlace(const testing::TestParamInfo<bool>& info) {
  return info.param ? "device" : "host";
}

}  // namespace entrain
