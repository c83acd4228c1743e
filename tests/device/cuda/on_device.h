// The device of the tests of this folder: that of the fake driver, unless TEST_GPU=1 asks for a
// real one.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "gtest/gtest.h"

#include "lib/device/registry.h"
#include "tests/support/fake_cuda/fake_driver.h"

namespace entrain {

inline bool OnRealDevice() {
  const char* const asked = std::getenv("TEST_GPU");  // NOLINT(concurrency-mt-unsafe)
  return asked != nullptr && std::string(asked) == "1";
}

inline Devices& TestDevices() {
  static Devices* const devices = [] {
    if (!OnRealDevice()) {
      setenv("ENTRAIN_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);  // NOLINT(concurrency-mt-unsafe)
      setenv("FAKE_CUDA_DEVICES", "2", 0);                   // NOLINT(concurrency-mt-unsafe)
    }
    const auto opened = OpenDevices();
    if (!opened.ok()) {
      ADD_FAILURE() << opened.status();
      std::abort();
    }
    return *opened;
  }();
  return *devices;
}

inline Device& TestDevice(int ordinal = 0) {
  const auto device = TestDevices().At(ordinal);
  if (!device.ok()) {
    ADD_FAILURE() << device.status();
    std::abort();
  }
  return **device;
}

// A function that the fake driver exports (fake_driver.h).
template <typename F>
F* OfFake(const char* name) {
  TestDevices();
  void* const library = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}
inline void FailCall(const char* function, int nth, int result) {
  OfFake<decltype(FakeCudaFail)>("FakeCudaFail")(function, nth, result);
}
inline int CallsOf(const char* function) {
  return OfFake<decltype(FakeCudaCalls)>("FakeCudaCalls")(function);
}

inline void PauseFake(bool paused) {
  OfFake<decltype(FakeCudaPause)>("FakeCudaPause")(paused ? 1 : 0);
}

// Returns the numbers of all objects that must be freed.
inline std::vector<int> LiveOnFake() {
  std::vector<int> live;
  for (const char* const what : {"stream", "event", "device memory", "pinned memory"}) {
    live.push_back(OfFake<decltype(FakeCudaLive)>("FakeCudaLive")(what));
  }
  return live;
}

#define ENTRAIN_NEEDS_FAKE()                                        \
  if (OnRealDevice()) {                                             \
    GTEST_SKIP() << "asks the fake driver for what no other gives"; \
  }

// A stream, which is destroyed with this object.
class TestStream {
 public:
  explicit TestStream(Device& device) : device_(device) {
    const auto stream = device.CreateStream();
    const auto event = device.CreateEvent();
    EXPECT_TRUE(stream.ok() && event.ok());
    stream_ = stream.value_or(nullptr);
    event_ = event.value_or(nullptr);
  }
  ~TestStream() {
    Finish();
    device_.DestroyEvent(event_);
    device_.DestroyStream(stream_);
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  StreamHandle get() const { return stream_; }
  void Finish() {
    EXPECT_TRUE(device_.Record(event_, stream_).ok());
    EXPECT_TRUE(device_.Wait(event_, Deadline::After(30 * kSecond)).ok());
  }

 private:
  Device& device_;
  StreamHandle stream_ = nullptr;
  EventHandle event_ = nullptr;
};

// Device memory, which is freed with this object.
class TestMemory {
 public:
  TestMemory(Device& device, int64_t bytes) : device_(device) {
    const auto memory = device.Allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = memory.value_or(nullptr);
  }
  ~TestMemory() { device_.Free(memory_); }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  char* get() const { return static_cast<char*>(memory_); }

 private:
  Device& device_;
  void* memory_ = nullptr;
};

}  // namespace entrain
