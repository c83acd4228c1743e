// An accelerator as the library uses it. It has memory, queues of work (streams), and kernels that
// work on its memory. lib/device/cuda implements this interface. The rest of the library uses only
// the interface, and also works where there is no device.
//
// Thread safety: any thread. A stream or an event must be used by one thread at a time. A function
// blocks only if its comment says so. Errors contain the name of the driver's function and the
// driver's message. After INTERNAL the device may be lost for this process.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/base/dtype.h"

namespace entrain {

struct Kernels;

// The driver's handles. A null stream is the device's default stream.
using StreamHandle = void*;
using EventHandle = void*;

class Device {
 public:
  virtual ~Device() = default;
  virtual int ordinal() const = 0;
  virtual const std::string& name() const = 0;              // "NVIDIA H100 80GB HBM3"
  virtual const std::array<uint8_t, 16>& uuid() const = 0;  // equal in every process

  // Enter makes this device the current device of the calling thread. Other libraries, such as
  // NCCL, use the current device. Leave restores the previous device. Each Enter must be followed
  // by one Leave, and such pairs may be nested.
  virtual absl::Status Enter() = 0;
  virtual void Leave() = 0;

  // Allocate returns device memory that is aligned to at least 256 bytes. `bytes` must be positive.
  // The memory must not be in use when it is freed. Free(null) does nothing.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Allocates page-locked host memory. The device reads and writes it at the same address.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  // Creates a queue that is not synchronised with the default stream. DestroyStream lets enqueued
  // work finish.
  virtual absl::StatusOr<StreamHandle> CreateStream() = 0;
  virtual void DestroyStream(StreamHandle stream) = 0;
  // ---- These functions enqueue work on `stream`, in order with its other work. Addresses may be
  // in host, pinned or device memory. If host memory is not pinned, the caller may have to wait.
  virtual absl::Status Copy(void* dst, const void* src, int64_t bytes, StreamHandle stream) = 0;
  virtual absl::Status Fill(void* dst, uint8_t value, int64_t bytes, StreamHandle stream) = 0;
  // Makes later work on the stream wait until *word >= at_least, compared modulo 2^32. `word` must
  // be in pinned memory.
  virtual absl::Status AwaitWord(StreamHandle stream, const uint32_t* word, uint32_t at_least) = 0;

  // An event marks a point of a stream. An event that was never recorded counts as reached.
  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  virtual absl::Status Record(EventHandle event, StreamHandle stream) = 0;
  virtual absl::StatusOr<bool> Reached(EventHandle event) = 0;
  // Makes later work on the stream wait for the event.
  virtual absl::Status AwaitEvent(StreamHandle stream, EventHandle event) = 0;
  // Blocks until the event is reached. Polls, and sleeps between the polls. Returns
  // DEADLINE_EXCEEDED at the deadline `give_up`.
  absl::Status Wait(EventHandle event, Deadline give_up);

  // Returns the table of the kernels that work on device memory. Arguments and results are as in
  // lib/kernels/kernels.h, bit for bit. Only sums of squares differ, because their elements are
  // added in another order. This order is the same on every device of one kind. The functions
  // enqueue work on the stream of the calling thread's KernelStream. A function that returns a
  // number blocks until the number is known, at most for the limit of the KernelStream. The table
  // has only the functions that the optimizers of the C API call: sgd, adamw, agd, ascend,
  // add_sharpness, sum_of_squares, sum_of_squared_products, and scale_any for f32. The others are
  // null.
  virtual const Kernels& kernels() const = 0;
};

// Pauses between two polls for an event. `waited_ns` is the time since the first poll. In the first
// 50 us, yields the core. Later sleeps for a tenth of `waited_ns`: 10 us to 1 ms.
void PauseAfter(int64_t waited_ns);

// An event that is created at the first Record.
class DeviceMark {
 public:
  explicit DeviceMark(Device& device) : device_(device) {}
  ~DeviceMark() {
    if (event_ != nullptr) {
      device_.DestroyEvent(event_);
    }
  }
  DeviceMark(const DeviceMark&) = delete;
  DeviceMark& operator=(const DeviceMark&) = delete;
  absl::Status Record(StreamHandle stream);
  // Returns true if the event is reached, or if nothing was recorded.
  absl::StatusOr<bool> Reached() const;
  // Returns the result of Reached. If Reached fails, returns true, because the device is then lost.
  bool quiet() const;
  EventHandle event() const { return event_; }

 private:
  Device& device_;
  EventHandle event_ = nullptr;
};

// While the object lives, kernels that its thread calls by device.kernels() use this stream. A
// thread must have at most one object at a time. Only the thread that created an object may use the
// object.
class KernelStream {
 public:
  // `limit_ns` is the longest wait for a kernel that returns a number.
  KernelStream(Device& device, StreamHandle stream, int64_t limit_ns = kDefaultTimeoutNs);
  ~KernelStream();
  KernelStream(const KernelStream&) = delete;
  KernelStream& operator=(const KernelStream&) = delete;

  // Returns the calling thread's object, or null.
  static KernelStream* Current();
  Device& device() const { return device_; }
  StreamHandle stream() const { return stream_; }
  // Returns the deadline of a wait that begins now. If the kernel is not done at the deadline, the
  // error is DEADLINE_EXCEEDED, and the kernel still runs. After any error no more kernels are
  // started.
  Deadline limit() const { return Deadline::After(limit_ns_); }
  // Returns the first error of a kernel since the object was made. Kernels themselves return no
  // status.
  const absl::Status& status() const { return status_; }
  void Note(const absl::Status& error);

 private:
  Device& device_;
  const StreamHandle stream_;
  const int64_t limit_ns_;
  absl::Status status_;
};

// If the calling thread has a KernelStream, returns the kernels of its device. Otherwise returns
// the best kernels of the CPU, which share their work with the thread's KernelThreads, if it has
// any.
const Kernels& CurrentKernels();
// Copies in the memory on which CurrentKernels() works. If the thread has a KernelStream, the copy
// is enqueued on its stream. Otherwise it is done at once.
void CopyArray(void* dst, const void* src, int64_t bytes);

// All devices of the process.
class Devices {
 public:
  virtual ~Devices() = default;
  virtual int count() const = 0;
  // Returns INVALID_ARGUMENT if `ordinal` is not in [0, count). The device lives as long as this
  // object.
  virtual absl::StatusOr<Device*> At(int ordinal) = 0;
  // The kind of some memory, and its device. If the kind is kHost, `device` is null.
  struct Place {
    MemoryKind kind = MemoryKind::kHost;
    Device* device = nullptr;
  };
  virtual absl::StatusOr<Place> PlaceOf(const void* memory) = 0;
  // Returns the device of a stream. For a null stream, returns the current device of the calling
  // thread. If the thread has not chosen a device, this is the first device.
  virtual absl::StatusOr<Device*> OfStream(StreamHandle stream) = 0;
};

}  // namespace entrain
