// An accelerator as the library uses it: memory of its own, queues of work, and kernels over that
// memory. lib/device/cuda implements this interface; the rest of the library uses only the
// interface, and runs without a device.
//
// Thread safety: any thread; a stream or an event must be used by one thread at a time. Functions
// block only if their comment says so. Errors contain the name of the driver's function and its
// message. After INTERNAL the device may be lost for this process.
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

// Device memory in a form that another process of this host can open.
struct DeviceExport {
  std::array<uint8_t, 64> allocation{};  // the driver's handle of the whole allocation
  uint64_t begin = 0;                    // the allocation's address in the exporting process
  int64_t bytes = 0;                     // size of the allocation
  int64_t offset = 0;                    // offset of the memory in the allocation, in bytes
};

class Device {
 public:
  virtual ~Device() = default;
  virtual int ordinal() const = 0;
  virtual const std::string& name() const = 0;              // "NVIDIA H100 80GB HBM3"
  virtual const std::array<uint8_t, 16>& uuid() const = 0;  // equal in every process

  // Enter makes this device the calling thread's current device, which other libraries use. Leave
  // restores the previous device. Calls must be nested like brackets.
  virtual absl::Status Enter() = 0;
  virtual void Leave() = 0;

  // Allocates device memory, aligned to at least 256 bytes; bytes > 0. The memory must not be in
  // use when it is freed. Freeing null does nothing.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Allocates page-locked host memory. The device reads and writes it at the same address.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  // Creates a queue that is not synchronised with the default stream. DestroyStream lets enqueued
  // work finish.
  virtual absl::StatusOr<StreamHandle> CreateStream() = 0;
  virtual void DestroyStream(StreamHandle stream) = 0;
  // ---- Functions that enqueue on `stream`, in order with its other work. Addresses may be in
  // host, pinned or device memory; memory that is not pinned may make the caller wait.
  virtual absl::Status Copy(void* dst, const void* src, int64_t bytes, StreamHandle stream) = 0;
  virtual absl::Status Fill(void* dst, uint8_t value, int64_t bytes, StreamHandle stream) = 0;
  // Makes later work on the stream wait until *word >= at_least, compared modulo 2^32. `word` must
  // be pinned.
  virtual absl::Status AwaitWord(StreamHandle stream, const uint32_t* word, uint32_t at_least) = 0;

  // An event marks a point of a stream. An event that was never recorded counts as reached.
  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  virtual absl::Status Record(EventHandle event, StreamHandle stream) = 0;
  virtual absl::StatusOr<bool> Reached(EventHandle event) = 0;
  // Orders later work on the stream behind the event.
  virtual absl::Status AwaitEvent(StreamHandle stream, EventHandle event) = 0;
  // Blocks until the event is reached; polls, and sleeps between the polls. Returns
  // DEADLINE_EXCEEDED when the time is up.
  absl::Status Wait(EventHandle event, Deadline give_up);

  // Export describes device memory (from Allocate or from the caller) for other processes. Open
  // makes another process's memory readable and writable here until Close. Opening memory that this
  // process has exported itself fails, because the driver forbids it. Export returns UNIMPLEMENTED
  // for memory that the driver cannot export (memory of a pool, managed memory).
  virtual absl::StatusOr<DeviceExport> Export(const void* memory) = 0;
  // Returns the beginning of the allocation. Opens are counted: opening an allocation again returns
  // the same address, and Close undoes one Open.
  virtual absl::StatusOr<void*> Open(const DeviceExport& memory) = 0;
  virtual void Close(const DeviceExport& memory) = 0;

  // Returns a hash of the bits of 32-bit words. The hash differs, except by chance, if any word
  // differs, and is equal on every device. Blocks; returns DEADLINE_EXCEEDED when the time is up,
  // while the kernel still runs.
  virtual absl::StatusOr<uint64_t> Hash(const void* words, int64_t count, StreamHandle stream,
                                        Deadline give_up) = 0;

  // Returns the largest number of sources that one kernel combines.
  virtual int most_sources() const = 0;
  // Returns the kernel table over device memory. Arguments, results and bits are as in
  // lib/kernels/kernels.h, except that sums of squares are added in another order, which is the
  // same on every device of one kind. The functions enqueue on the stream that the calling thread
  // has bound (KernelStream). Functions that return a number block until the number is there, for
  // at most the limit of the KernelStream. Arrays of pointers and weights are read before the
  // functions return.
  virtual const Kernels& kernels() const = 0;
};

// Pauses between two polls for an event, `waited_ns` after the first poll. Yields the core while
// the wait is short; later sleeps for a tenth of the time waited, at most 1 ms.
void PauseAfter(int64_t waited_ns);

// An event that is created when it is first recorded.
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
  // Returns true if nothing was recorded.
  absl::StatusOr<bool> Reached() const;
  // Returns the result of Reached, but true after an error, because the device is then lost.
  bool quiet() const;
  EventHandle event() const { return event_; }

 private:
  Device& device_;
  EventHandle event_ = nullptr;
};

// While the object lives, the calling thread's calls of device.kernels() use this stream. The
// objects of a thread must not be nested. Used by one thread only.
class KernelStream {
 public:
  // `limit_ns` limits the wait for one kernel that returns a number.
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

// Returns the kernels for the calling thread: those of the device whose stream it has bound,
// otherwise the CPU's best.
const Kernels& CurrentKernels();
// Copy and zero arrays in the memory on which CurrentKernels() works. The work is enqueued on the
// stream, or done at once.
void CopyArray(void* dst, const void* src, int64_t bytes);
void ZeroArray(void* dst, int64_t bytes);

// All devices of the process.
class Devices {
 public:
  virtual ~Devices() = default;
  virtual int count() const = 0;
  // The device lives as long as this object. Returns INVALID_ARGUMENT outside [0, count).
  virtual absl::StatusOr<Device*> At(int ordinal) = 0;
  // The kind of a memory, and its device if the kind is not kHost.
  struct Place {
    MemoryKind kind = MemoryKind::kHost;
    Device* device = nullptr;
  };
  virtual absl::StatusOr<Place> PlaceOf(const void* memory) = 0;
  // Returns the device of a stream. For a null stream this is the calling thread's current device:
  // the first one, unless the thread has chosen another.
  virtual absl::StatusOr<Device*> OfStream(StreamHandle stream) = 0;
};

}  // namespace entrain
