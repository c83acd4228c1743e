// The part of far_device.py that PyTorch takes only from C++: memory, page-locked memory, streams
// and events of a device without hardware. The operators are in far_device.py.
//
// An address of the device is reserved and cannot be read or written: who takes it for memory of
// the host gets SIGSEGV. The elements lie elsewhere, where Far_Memory finds them. No address is
// used twice.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr auto kFar = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;
constexpr size_t kReserved = size_t{1} << 36;
constexpr size_t kAlignment = 256;

// Python learns of these events. Their numbers are places in the list _HEARD of far_device.py.
enum class Happened : int32_t { kStreamWait, kDeviceWait, kRecord, kBlock, kEventWait };
using Listener = void (*)(int32_t happened, int32_t device, int64_t stream, int64_t event);
Listener listener = nullptr;
bool stream_waits = true;
bool pins = true;

thread_local DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kDevices] = {};
std::atomic<c10::StreamId> last_stream{0};
std::atomic<int64_t> last_event{0};

std::mutex mutex;
std::map<uintptr_t, void*> memory;        // by its address on the device
std::map<uintptr_t, size_t> page_locked;  // sizes by address

Device FarDevice(DeviceIndex index) {
  return Device(kFar, index < 0 ? current_device : index);
}

Stream CurrentStream(Device device) {
  const Device far = FarDevice(device.index());
  return Stream(Stream::UNSAFE, far, current_streams[far.index()]);
}

void Tell(Happened happened, DeviceIndex device, int64_t stream, void* event) {
  listener(static_cast<int32_t>(happened), device, stream, reinterpret_cast<int64_t>(event));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFar; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(kFar, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) {
      current_device = device.index();
    }
  }
  Stream getStream(Device device) const override { return CurrentStream(device); }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, FarDevice(device.index()));
  }
  Stream getNewStream(Device device, int) const override {
    return Stream(Stream::UNSAFE, FarDevice(device.index()), ++last_stream);
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = CurrentStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool queryStream(const Stream&) const override { return false; }
  void synchronizeStream(const Stream& stream) const override {
    TORCH_CHECK(stream_waits, "the device does not wait for streams");
    Tell(Happened::kStreamWait, stream.device_index(), stream.id(), nullptr);
  }
  void synchronizeDevice(DeviceIndex device) const override {
    Tell(Happened::kDeviceWait, FarDevice(device).index(), 0, nullptr);
  }
  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = reinterpret_cast<void*>(++last_event);
    }
    Tell(Happened::kRecord, stream.device_index(), stream.id(), *event);
  }
  void block(void* event, const Stream& stream) const override {
    Tell(Happened::kBlock, stream.device_index(), stream.id(), event);
  }
  bool queryEvent(void*) const override { return false; }
  void synchronizeEvent(void* event) const override { Tell(Happened::kEventWait, 0, 0, event); }
};

void* ElementsAt(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex);
  return memory.at(reinterpret_cast<uintptr_t>(address));
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const Device device(kFar, current_device);
    if (size == 0) {
      return {nullptr, device};
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (next_ == 0) {
      void* const reserved = mmap(nullptr, kReserved, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(reserved != MAP_FAILED, "no addresses for the device");
      next_ = reinterpret_cast<uintptr_t>(reserved);
      end_ = next_ + kReserved;
    }
    const size_t room = (size + kAlignment - 1) / kAlignment * kAlignment;
    TORCH_CHECK(room <= end_ - next_, "the device has no addresses left");
    void* const elements = std::malloc(size);
    TORCH_CHECK(elements != nullptr, "no memory");
    std::memset(elements, 0xff, size);  // NaN
    memory[next_] = elements;
    void* const address = reinterpret_cast<void*>(next_);
    next_ += room;
    return {address, address, &Free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "the device does not copy storages");
  }

 private:
  static void Free(void* address) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = memory.find(reinterpret_cast<uintptr_t>(address));
    std::free(found->second);
    memory.erase(found);
  }

  uintptr_t next_ = 0;
  uintptr_t end_ = 0;
};

struct PageLocked final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const Device host(c10::DeviceType::CPU);
    if (size == 0) {
      return {nullptr, host};
    }
    void* const address = std::malloc(size);
    const std::lock_guard<std::mutex> lock(mutex);
    page_locked[reinterpret_cast<uintptr_t>(address)] = size;
    return {address, address, &Free, host};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }

 private:
  static void Free(void* address) {
    const std::lock_guard<std::mutex> lock(mutex);
    page_locked.erase(reinterpret_cast<uintptr_t>(address));
    std::free(address);
  }
};

Memory far_memory;
PageLocked far_page_locked;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { current_device = device; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return Guard().exchangeDevice(Device(kFar, device)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* address) const override {
    const auto place = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard<std::mutex> lock(mutex);
    auto found = page_locked.upper_bound(place);
    return found != page_locked.begin() && place < (--found)->first + found->second;
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK_NOT_IMPLEMENTED(pins, "the device has no page-locked memory");
    return &far_page_locked;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr resized = far_memory.allocate(size);
    if (const size_t kept = std::min(size, storage.nbytes()); kept > 0) {
      std::memcpy(ElementsAt(resized.get()), ElementsAt(storage.data()), kept);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(resized));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor Empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(Device(kFar)));
  return at::detail::empty_generic(size, &far_memory, kKeys, c10::dtype_or_default(type), format);
}

at::Tensor EmptyStrided(at::IntArrayRef size, at::IntArrayRef stride,
                        std::optional<at::ScalarType> type, std::optional<at::Layout>,
                        std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(Device(kFar)));
  return at::detail::empty_strided_generic(size, stride, &far_memory, kKeys,
                                           c10::dtype_or_default(type));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", Empty);
  m.impl("empty_strided", EmptyStrided);
}

// Makes the device known to PyTorch. `pinning`: it has page-locked memory. `waiting`: it can wait
// for a stream, not only for a device.
extern "C" void Far_Start(Listener hears, bool pinning, bool waiting) {
  listener = hears;
  pins = pinning;
  stream_waits = waiting;
  c10::SetAllocator(kFar, &far_memory);
  static const c10::impl::DeviceGuardImplRegistrar registrar(kFar, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

// Returns where the elements are whose address on the device is `address`, that of an allocation.
extern "C" void* Far_Memory(const void* address) {
  return ElementsAt(address);
}

extern "C" int64_t Far_CurrentStream(int32_t device) {
  return current_streams[device];
}
