// The interface to a library, such as NCCL, that does whole collectives over device memory. An
// Offload is one communicator of the library.
//
// Thread safety: any thread may call Abort and Gone. All other functions must be called by one
// thread at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/call.h"
#include "lib/device/device.h"

namespace entrain {

class Offload {
 public:
  virtual ~Offload() =
      // The caller must call Abort first, unless no call is under way. An implementation must not
      // wait for the network or the device.
      default;
  // Returns true if the library can do the call. An implementation must decide only by values that
  // are equal on all ranks: kind, operator, type, even or uneven counts. So the result is equal on
  // all ranks.
  virtual bool Takes(const Call& call) const = 0;
  // Enqueues the call on the stream, in order with the stream's other work. All ranks must make the
  // same calls in the same order. Returns at once. Until Begun returns true, the caller must not
  // give another call to this object, and must not enqueue other work on the stream. After an error
  // the caller must call Abort. `scratch` is memory of OffloadLibrary::ScratchBytes bytes. The
  // library uses this memory until the stream has finished the call.
  virtual absl::Status Enqueue(const Call& call, StreamHandle stream, void* scratch) = 0;
  // Returns true if the library has put the last call on the stream. The library connects two ranks
  // when they first exchange data. So the result may stay false until the other ranks have made the
  // call.
  virtual absl::StatusOr<bool> Begun() = 0;
  // Returns the error if a peer or a link has failed since the call was enqueued. A caller that
  // waits for the end of a call must poll this function.
  virtual absl::Status AsyncStatus() = 0;
  // Makes calls under way end soon. The contents of their buffers are then undefined. Idempotent.
  virtual void Abort() = 0;
  // Must be called after Abort. Returns true if the library will enqueue no more work, and all its
  // work on streams has ended. The result becomes true even while a stream waits for the caller.
  virtual bool Gone() = 0;
};

class OffloadLibrary {
 public:
  virtual ~OffloadLibrary() = default;
  virtual const char* name() const = 0;     // "nccl"
  virtual std::string version() const = 0;  // "2.27.7"
  // Returns the number of bytes of device memory that a call needs besides its buffers.
  virtual int64_t ScratchBytes(const Call& call) const = 0;
  // Must be called by one rank for all ranks. Returns the id that all ranks pass to Join: any
  // bytes, at most 256.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Collective. Returns at once. Begun of the object returns true when all ranks have joined.
  // Before that, the caller must not give the object a call.
  virtual absl::StatusOr<std::unique_ptr<Offload>> Join(const std::string& id, int rank, int size,
                                                        Device& device) = 0;
};

}  // namespace entrain
