// A trial (tests/support/trial.h) on device memory.
#pragma once

#include <cstddef>
#include <memory>

#include "gtest/gtest.h"

#include "lib/base/call.h"
#include "tests/device/cuda/on_device.h"
#include "tests/support/trial.h"

namespace entrain {

// Buffers that share memory on the host share it on the device as well.
class DeviceTrial {
 public:
  DeviceTrial(Device& device, const TrialSpec& spec, int rank, int size, StreamHandle stream)
      : device_(device), trial_(spec, rank, size), call(trial_.call), stream_(stream) {
    const auto* const in = static_cast<const std::byte*>(call.in.data);
    auto* const out = static_cast<std::byte*>(call.out.data);
    const bool smaller_in = call.in.bytes <= call.out.bytes;
    const bool in_of_out = smaller_in && out != nullptr && in >= out && in < out + call.out.bytes;
    const bool out_of_in = !smaller_in && in != nullptr && out >= in && out < in + call.in.bytes;
    if (!out_of_in) {
      out_ = Place(call.out);
      call.out.data = out_ == nullptr ? nullptr : out_->get();
    }
    if (!in_of_out) {
      in_ = Place(call.in);
      call.in.data = in_ == nullptr ? nullptr : in_->get();
    }
    if (in_of_out) {
      call.in.data = out_->get() + (in - out);
    } else if (out_of_in) {
      call.out.data = in_->get() + (out - in);
    }
    call.options.device = call.options.on_stream = true;
    call.options.stream = stream;
  }
  // Checks the results when the stream has finished.
  void Check() {
    if (call.out.bytes > 0) {
      TestStream back(device_);
      ASSERT_TRUE(
          device_.Copy(trial_.call.out.data, call.out.data, call.out.bytes, back.get()).ok());
      back.Finish();
    }
    trial_.Check(1e-3f);  // NCCL adds up quotients
  }

 private:
  std::unique_ptr<TestMemory> Place(const BufferView& host) {
    if (host.bytes == 0) {
      return nullptr;
    }
    auto memory = std::make_unique<TestMemory>(device_, host.bytes);
    EXPECT_TRUE(device_.Copy(memory->get(), host.data, host.bytes, stream_).ok());
    return memory;
  }

  Device& device_;
  Trial trial_;

 public:
  Call call;

 private:
  const StreamHandle stream_;
  std::unique_ptr<TestMemory> in_, out_;
};

}  // namespace entrain
