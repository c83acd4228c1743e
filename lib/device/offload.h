// A library that does whole collectives over device memory (NCCL), for one communicator.
//
// Thread safety: Abort and Gone may be called by any thread, all other functions by one thread at a
// time.
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
      // Must be called after Abort, or when nothing is under way. Must wait for neither network nor
      // device.
      default;
  // Returns true if the library can do the call. The answer depends only on values that are equal
  // on all ranks (kind, operator, type, even or uneven counts), so that it is the same on all
  // ranks.
  virtual bool Takes(const Call& call) const = 0;
  // Enqueues the call on the stream. Its input is read, and its output written, in order with the
  // stream's other work. All ranks must make the same calls in the same order. Returns at once.
  // Until Begun returns true, no other call may be given to this object, and nothing may be
  // enqueued behind the call on the stream. An error ends the communicator. `scratch` has the
  // library's ScratchBytes; it is used until the stream has finished the call.
  virtual absl::Status Enqueue(const Call& call, StreamHandle stream, void* scratch) = 0;
  // Returns true if the last call is on the stream. The library makes connections at their first
  // use, so this may depend on calls of the other ranks.
  virtual absl::StatusOr<bool> Begun() = 0;
  // Returns the error of a peer or a link that has occurred outside any function of this object. A
  // waiting caller must poll this function.
  virtual absl::Status AsyncStatus() = 0;
  // Makes calls under way end soon, with undefined contents of their buffers. Idempotent.
  virtual void Abort() = 0;
  // Must be called after Abort. Returns true if the library enqueues nothing more on streams and
  // all its work there has ended. Also works while some stream waits for the caller.
  virtual bool Gone() = 0;
};

class OffloadLibrary {
 public:
  virtual ~OffloadLibrary() = default;
  virtual const char* name() const = 0;     // "nccl"
  virtual std::string version() const = 0;  // "2.27.7"
  // Returns the device memory that a call needs besides its buffers.
  virtual int64_t ScratchBytes(const Call& call) const = 0;
  // Called by one rank for all ranks. Returns an id with which all ranks join: arbitrary bytes, at
  // most 256.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Collective. Returns at once. No call may be given to the object before its Begun returns true,
  // which means that all ranks have joined.
  virtual absl::StatusOr<std::unique_ptr<Offload>> Join(const std::string& id, int rank, int size,
                                                        Device& device) = 0;
};

}  // namespace entrain
