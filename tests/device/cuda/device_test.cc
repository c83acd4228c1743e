// Device as lib/device/cuda implements it: memory, copies, streams, events, words, errors.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "tests/device/cuda/on_device.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

std::vector<char> Pattern(size_t bytes, int seed) {
  std::vector<char> x(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    x[i] = static_cast<char>((i * 31 + static_cast<size_t>(seed)) % 251);
  }
  return x;
}

TEST(CudaDevice, HasANameAndAnIdentity) {
  Device& device = TestDevice();
  EXPECT_EQ(device.ordinal(), 0);
  EXPECT_FALSE(device.name().empty());
  EXPECT_NE(device.uuid(), (std::array<uint8_t, 16>{}));
  EXPECT_EQ(&TestDevice(), &device);
  for (const int ordinal : {-1, TestDevices().count()}) {
    const auto none = TestDevices().At(ordinal);
    EXPECT_TRUE(absl::IsInvalidArgument(none.status()));
    EXPECT_THAT(std::string(none.status().message()), HasSubstr(absl::StrCat("device ", ordinal)));
  }
}

TEST(CudaDevice, IsKnownByItsStreams) {
  Device& last = TestDevice(TestDevices().count() - 1);
  TestStream stream(last);
  EXPECT_EQ(TestDevices().OfStream(stream.get()).value(), &last);
  std::thread([&] {
    EXPECT_EQ(TestDevices().OfStream(nullptr).value(), &TestDevice(0));
    ASSERT_TRUE(last.Enter().ok());
    EXPECT_EQ(TestDevices().OfStream(nullptr).value(), &last);
    last.Leave();
  }).join();
}

TEST(CudaDevice, CopiesBetweenAllKindsOfMemory) {
  Device& device = TestDevice();
  TestStream stream(device);
  constexpr int64_t kBytes = 100001;
  const TestMemory first(device, kBytes), second(device, kBytes);
  const auto pinned = device.AllocatePinned(kBytes);
  ASSERT_TRUE(pinned.ok());
  const std::vector<char> in = Pattern(kBytes, 1);
  std::vector<char> out(kBytes);
  ASSERT_TRUE(device.Copy(first.get(), in.data(), kBytes, stream.get()).ok());
  ASSERT_TRUE(device.Copy(second.get() + 1, first.get() + 1, kBytes - 1, stream.get()).ok());
  ASSERT_TRUE(device.Fill(second.get(), 0x5a, 1, stream.get()).ok());
  ASSERT_TRUE(device.Copy(*pinned, second.get(), kBytes, stream.get()).ok());
  ASSERT_TRUE(device.Copy(first.get(), *pinned, kBytes, stream.get()).ok());
  ASSERT_TRUE(device.Copy(out.data(), first.get(), kBytes, stream.get()).ok());
  ASSERT_TRUE(device.Copy(out.data(), first.get(), 0, stream.get()).ok());
  stream.Finish();
  EXPECT_EQ(out[0], 0x5a);
  EXPECT_TRUE(std::equal(out.begin() + 1, out.end(), in.begin() + 1));
  device.FreePinned(*pinned);
}

TEST(CudaDevice, MemoryIsAlignedAndItsPlaceIsKnown) {
  Device& device = TestDevice();
  const TestMemory memory(device, 1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 256, 0u);
  const auto pinned = device.AllocatePinned(1000);
  ASSERT_TRUE(pinned.ok());
  int on_stack = 0;
  const auto of_device = TestDevices().PlaceOf(memory.get() + 999);
  const auto of_pinned = TestDevices().PlaceOf(static_cast<char*>(*pinned) + 10);
  const auto of_stack = TestDevices().PlaceOf(&on_stack);
  ASSERT_TRUE(of_device.ok() && of_pinned.ok() && of_stack.ok());
  EXPECT_EQ(of_device->kind, MemoryKind::kDevice);
  EXPECT_EQ(of_device->device, &device);
  EXPECT_EQ(of_pinned->kind, MemoryKind::kHostPinned);
  EXPECT_EQ(of_pinned->device, &device);
  EXPECT_EQ(of_stack->kind, MemoryKind::kHost);
  EXPECT_EQ(of_stack->device, nullptr);
  device.FreePinned(*pinned);
  device.Free(nullptr);
  device.FreePinned(nullptr);
}

TEST(CudaDevice, PlacesAreKnownToDriversThatWantAContext) {
  ENTRAIN_NEEDS_FAKE();
  const TestMemory memory(TestDevice(), 100);
  FailCall("cuPointerGetAttributes", 1, 201);  // CUDA_ERROR_INVALID_CONTEXT
  const auto place = TestDevices().PlaceOf(memory.get());
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->kind, MemoryKind::kDevice);
  EXPECT_EQ(place->device, &TestDevice());
  FailCall("cuPointerGetAttributes", 1, 700);
  EXPECT_TRUE(absl::IsInternal(TestDevices().PlaceOf(memory.get()).status()));
}

TEST(CudaDevice, AStreamWaitsForAWordAndEventsOrderStreams) {
  Device& device = TestDevice();
  TestStream first(device), second(device);
  const auto pinned = device.AllocatePinned(64);
  ASSERT_TRUE(pinned.ok());
  auto* const word = static_cast<uint32_t*>(*pinned);
  auto* const seen = word + 1;
  *word = 0xfffffffe;  // wraps around after two steps
  *seen = 0;
  const TestMemory memory(device, 4);
  const auto marked = device.CreateEvent();
  ASSERT_TRUE(marked.ok());
  EXPECT_TRUE(*device.Reached(*marked));  // never recorded
  ASSERT_TRUE(device.Fill(memory.get(), 1, 4, first.get()).ok());
  ASSERT_TRUE(device.AwaitWord(first.get(), word, 1).ok());
  ASSERT_TRUE(device.Fill(memory.get(), 7, 4, first.get()).ok());
  ASSERT_TRUE(device.Record(*marked, first.get()).ok());
  ASSERT_TRUE(device.AwaitEvent(second.get(), *marked).ok());
  ASSERT_TRUE(device.Copy(seen, memory.get(), 4, second.get()).ok());
  const absl::Status early = device.Wait(*marked, Deadline::After(50 * kMillisecond));
  EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
  EXPECT_FALSE(*device.Reached(*marked));
  EXPECT_EQ(__atomic_load_n(seen, __ATOMIC_ACQUIRE), 0u);
  __atomic_store_n(word, 0, __ATOMIC_RELEASE);  // not yet
  EXPECT_TRUE(absl::IsDeadlineExceeded(device.Wait(*marked, Deadline::After(20 * kMillisecond))));
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  EXPECT_TRUE(device.Wait(*marked, Deadline::After(30 * kSecond)).ok());
  second.Finish();
  EXPECT_EQ(*seen, 0x07070707u);
  device.DestroyEvent(*marked);
  device.FreePinned(*pinned);
}

TEST(CudaDevice, WhereTheDeviceCannotWaitForAWordAThreadDoes) {
  ENTRAIN_NEEDS_FAKE();
  Device& device = TestDevice();
  TestStream stream(device);
  const auto pinned = device.AllocatePinned(4);
  ASSERT_TRUE(pinned.ok());
  auto* const word = static_cast<uint32_t*>(*pinned);
  *word = 4;
  FailCall("cuStreamWaitValue32_v2", 0, 801);  // CUDA_ERROR_NOT_SUPPORTED
  ASSERT_TRUE(device.AwaitWord(stream.get(), word, 5).ok());
  FailCall("cuStreamWaitValue32_v2", 0, 0);
  const auto event = device.CreateEvent();
  ASSERT_TRUE(event.ok() && device.Record(*event, stream.get()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(device.Wait(*event, Deadline::After(20 * kMillisecond))));
  __atomic_store_n(word, 6, __ATOMIC_RELEASE);
  EXPECT_TRUE(device.Wait(*event, Deadline::After(30 * kSecond)).ok());
  device.DestroyEvent(*event);
  stream.Finish();
  device.FreePinned(*pinned);
}

TEST(CudaDevice, OurStreamsDoNotWaitForTheDefaultOne) {
  Device& device = TestDevice();
  TestStream ours(device);
  const auto pinned = device.AllocatePinned(4);
  ASSERT_TRUE(pinned.ok());
  auto* const word = static_cast<uint32_t*>(*pinned);
  *word = 0;
  const auto at_default = device.CreateEvent();
  ASSERT_TRUE(at_default.ok());
  const TestMemory memory(device, 4);
  ASSERT_TRUE(device.AwaitWord(nullptr, word, 1).ok());
  ASSERT_TRUE(device.Record(*at_default, nullptr).ok());
  ASSERT_TRUE(device.Fill(memory.get(), 1, 4, ours.get()).ok());
  ours.Finish();
  EXPECT_FALSE(*device.Reached(*at_default));
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  EXPECT_TRUE(device.Wait(*at_default, Deadline::After(30 * kSecond)).ok());
  device.DestroyEvent(*at_default);
  device.FreePinned(*pinned);
}

TEST(CudaDevice, TwoDevicesAreTwo) {
  if (TestDevices().count() < 2) {
    GTEST_SKIP() << "one device";
  }
  Device& other = TestDevice(1);
  EXPECT_NE(other.uuid(), TestDevice().uuid());
  const TestMemory here(TestDevice(), 100), there(other, 100);
  EXPECT_EQ(TestDevices().PlaceOf(there.get())->device, &other);
  TestStream stream(other);
  const std::vector<char> in = Pattern(100, 3);
  std::vector<char> out(100);
  ASSERT_TRUE(other.Copy(there.get(), in.data(), 100, stream.get()).ok());
  ASSERT_TRUE(other.Copy(here.get(), there.get(), 100, stream.get()).ok());
  ASSERT_TRUE(other.Copy(out.data(), here.get(), 100, stream.get()).ok());
  stream.Finish();
  EXPECT_EQ(in, out);
}

// ---- Errors

TEST(CudaDevice, ErrorsNameTheFunctionAndWhatTheDriverSaid) {
  ENTRAIN_NEEDS_FAKE();
  Device& device = TestDevice();
  FailCall("cuMemAlloc_v2", 2, 2);  // the second call: CUDA_ERROR_OUT_OF_MEMORY
  const TestMemory memory(device, 16);
  const auto none = device.Allocate(16);
  EXPECT_TRUE(absl::IsResourceExhausted(none.status()));
  EXPECT_EQ(none.status().message(), "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_TRUE(absl::IsResourceExhausted(device.Allocate(int64_t{1} << 50).status()));

  FailCall("cuEventRecord", 1, 700);
  const auto event = device.CreateEvent();
  ASSERT_TRUE(event.ok());
  const absl::Status lost = device.Record(*event, nullptr);
  EXPECT_TRUE(absl::IsInternal(lost));
  EXPECT_THAT(std::string(lost.message()), HasSubstr("cuEventRecord: CUDA_ERROR_ILLEGAL_ADDRESS"));
  FailCall("cuEventQuery", 1, 998);  // no such error, but a valid value of the type
  EXPECT_THAT(std::string(device.Reached(*event).status().message()),
              HasSubstr("cuEventQuery: unknown error 998"));
  device.DestroyEvent(*event);

  int no_stream = 0;
  const absl::Status refused = device.Fill(memory.get(), 0, 16, &no_stream);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("CUDA_ERROR_INVALID_HANDLE"));
  // The range goes beyond the end of an allocation.
  EXPECT_FALSE(device.Fill(memory.get(), 0, 17, nullptr).ok());
}

TEST(CudaDevice, TheCallersContextStaysCurrent) {
  ENTRAIN_NEEDS_FAKE();
  using Context = void*;
  const auto current = [] {
    Context context = &context;
    EXPECT_EQ(OfFake<int(Context*)>("cuCtxGetCurrent")(&context), 0);
    return context;
  };
  TestDevice();
  EXPECT_EQ(current(), nullptr);
  Context context = nullptr;
  ASSERT_EQ(OfFake<int(Context*, int)>("cuDevicePrimaryCtxRetain")(&context, 1), 0);
  ASSERT_EQ(OfFake<int(Context)>("cuCtxPushCurrent_v2")(context), 0);
  FailCall("cuMemAlloc_v2", 1, 2);
  EXPECT_FALSE(TestDevice().Allocate(1).ok());
  const TestMemory memory(TestDevice(), 1);
  EXPECT_EQ(TestDevices().PlaceOf(memory.get())->device, &TestDevice());
  EXPECT_EQ(current(), context);
  ASSERT_EQ(OfFake<int(Context*)>("cuCtxPopCurrent_v2")(&context), 0);
}

TEST(CudaDevice, AForkedChildIsToldWhy) {
  Device& device = TestDevice();
  const pid_t pid = fork();
  if (pid == 0) {
    const auto memory = device.Allocate(16);
    const auto devices = OpenDevices();
    const bool told = absl::IsFailedPrecondition(memory.status()) &&
                      absl::IsFailedPrecondition(devices.status()) &&
                      absl::IsFailedPrecondition(TestDevices().PlaceOf(&told).status());
    _exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(CudaDevice, ManyThreadsShareOne) {
  Device& device = TestDevice();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&device, &good, t] {
      TestStream stream(device);
      for (int round = 0; round < 20; ++round) {
        const TestMemory memory(device, 1000);
        const std::vector<char> in = Pattern(1000, t * 100 + round);
        std::vector<char> out(1000);
        const bool ok = device.Copy(memory.get(), in.data(), 1000, stream.get()).ok() &&
                        device.Copy(out.data(), memory.get(), 1000, stream.get()).ok();
        stream.Finish();
        good += ok && in == out ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, 80);
}

}  // namespace
}  // namespace entrain
