// An accelerator as the library uses it: memory of its own, queues of work, kernels over that memory. lib/device/cuda
// implements it; the rest of the library knows only this, and runs without one.
//
// Thread safety: any thread; a stream or an event by one thread at a time. Nothing here waits for the device but what
// says so. Errors name the driver's function and what it said; after INTERNAL the device may be lost for this process.
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

// Device memory as another process of this host can open it.
struct DeviceExport {
  std::array<uint8_t, 64> allocation{};  // the driver's handle of the whole allocation
  uint64_t begin = 0;                    // its address in the process that has it
  int64_t bytes = 0;                     // of it
  int64_t offset = 0;                    // of the memory in it, in bytes
};

class Device {
 public:
  virtual ~Device() = default;
  virtual int ordinal() const = 0;
  virtual const std::string& name() const = 0;              // "NVIDIA H100 80GB HBM3"
  virtual const std::array<uint8_t, 16>& uuid() const = 0;  // the same in every process

  // For other libraries, which ask the driver which device the calling thread is on: this one,
  // until Leave puts back what was. Nested like brackets.
  virtual absl::Status Enter() = 0;
  virtual void Leave() = 0;

  // Memory. At least 256-byte aligned; bytes > 0. Freeing null does nothing; nothing may use it any more.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Of the host, page-locked; the device reads and writes it at the same address.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  // A queue that does not wait for the default stream, nor it for this one. Destroying one lets it finish.
  virtual absl::StatusOr<StreamHandle> CreateStream() = 0;
  virtual void DestroyStream(StreamHandle stream) = 0;
  // ---- Enqueued on `stream`, in order with what else is there. Addresses of host, pinned and device memory alike; what
  // is not pinned may make the caller wait.
  virtual absl::Status Copy(void* dst, const void* src, int64_t bytes, StreamHandle stream) = 0;
  virtual absl::Status Fill(void* dst, uint8_t value, int64_t bytes, StreamHandle stream) = 0;
  // What follows on the stream runs once *word >= at_least, seen as a difference modulo 2^32. `word`: pinned.
  virtual absl::Status AwaitWord(StreamHandle stream, const uint32_t* word, uint32_t at_least) = 0;

  // A mark on a stream. One that was never recorded counts as reached.
  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  virtual absl::Status Record(EventHandle event, StreamHandle stream) = 0;
  virtual absl::StatusOr<bool> Reached(EventHandle event) = 0;
  // What follows on the stream runs after the mark.
  virtual absl::Status AwaitEvent(StreamHandle stream, EventHandle event) = 0;
  // The calling thread waits, politely. DEADLINE_EXCEEDED when the time is up.
  absl::Status Wait(EventHandle event, Deadline give_up);

  // Device memory (Allocate's or the caller's) for other processes; and theirs, readable and writable here until Close.
  // Opening what this process itself exported fails: the driver forbids it. UNIMPLEMENTED for memory that the driver
  // cannot export (of a pool, managed).
  virtual absl::StatusOr<DeviceExport> Export(const void* memory) = 0;
  // The allocation's beginning; counted: opening it again gives the same address, and Close undoes one Open.
  virtual absl::StatusOr<void*> Open(const DeviceExport& memory) = 0;
  virtual void Close(const DeviceExport& memory) = 0;

  // Of the bits of 32-bit words: differs, but for chance, where one of them does; the same on every
  // device. The caller waits for it; DEADLINE_EXCEEDED when the time is up, with the kernel under way.
  virtual absl::StatusOr<uint64_t> Hash(const void* words, int64_t count, StreamHandle stream,
                                        Deadline give_up) = 0;

  // How many sources its kernels combine.
  virtual int most_sources() const = 0;
  // The kernel table over device memory: arguments, results and bits as lib/kernels/kernels.h says, but for sums of
  // squares, whose order is another (the same on every device of one kind). Its functions enqueue on the stream that the
  // calling thread has bound (KernelStream); those that return a number wait for it, no longer than that allows. Arrays
  // of pointers and weights are read before they return.
  virtual const Kernels& kernels() const = 0;
};

// Between two looks at something that others bring about, after so long: as long as a hand-over of the core is quicker, that;
// then a nap of a tenth of what was waited, at most 1 ms.
void PauseAfter(int64_t waited_ns);

// An event of the device's, made when it is recorded.
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
  // True where nothing was recorded.
  absl::StatusOr<bool> Reached() const;
  // The same, and an error counts as reached: the device is lost.
  bool quiet() const;
  EventHandle event() const { return event_; }

 private:
  Device& device_;
  EventHandle event_ = nullptr;
};

// While it lives, the calling thread's calls of device.kernels() go to this stream. Not nested; one thread.
class KernelStream {
 public:
  // `limit_ns`: how long one kernel that returns a number is waited for.
  KernelStream(Device& device, StreamHandle stream, int64_t limit_ns = kDefaultTimeoutNs);
  ~KernelStream();
  KernelStream(const KernelStream&) = delete;
  KernelStream& operator=(const KernelStream&) = delete;

  // The calling thread's; null: none.
  static KernelStream* Current();
  Device& device() const { return device_; }
  StreamHandle stream() const { return stream_; }
  // When who begins to wait now gives up: DEADLINE_EXCEEDED, the kernel under way. After any error no more are started.
  Deadline limit() const { return Deadline::After(limit_ns_); }
  // The first error of a kernel since the object was made: kernels have no status of their own.
  const absl::Status& status() const { return status_; }
  void Note(const absl::Status& error);

 private:
  Device& device_;
  const StreamHandle stream_;
  const int64_t limit_ns_;
  absl::Status status_;
};

// What the calling thread computes with: the kernels of the device whose stream it has bound, else the CPU's best.
const Kernels& CurrentKernels();
// Likewise, for arrays that are where those compute: enqueued on the stream, or done at once.
void CopyArray(void* dst, const void* src, int64_t bytes);
void ZeroArray(void* dst, int64_t bytes);

// All of the process's.
class Devices {
 public:
  virtual ~Devices() = default;
  virtual int count() const = 0;
  // Lives as long as this. INVALID_ARGUMENT outside [0, count).
  virtual absl::StatusOr<Device*> At(int ordinal) = 0;
  // Where memory is, and, unless it is kHost, of which device.
  struct Place {
    MemoryKind kind = MemoryKind::kHost;
    Device* device = nullptr;
  };
  virtual absl::StatusOr<Place> PlaceOf(const void* memory) = 0;
  // On which device a stream is. Null: that of the calling thread; the first, unless the thread has chosen.
  virtual absl::StatusOr<Device*> OfStream(StreamHandle stream) = 0;
};

}  // namespace entrain
