// A library that does whole collectives over device memory (NCCL), for one communicator of ours.
//
// Thread safety: everything but Abort and Gone by one thread at a time; these from any.
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
      default;  // after Abort, or when nothing is under way; may wait for neither network nor device
  // From what all ranks know alike (kind, operator, type, even or uneven counts), so that all answer alike.
  virtual bool Takes(const Call& call) const = 0;
  // Enqueues the call on the stream: its input is read, and its output written, in that order with what else is there.
  // The same calls in the same order on every rank. Returns at once; before Begun has said so, nothing else may be given
  // to this, nor put behind it on the stream. An error ends the communicator. `scratch`: of the library's ScratchBytes,
  // until the stream is through.
  virtual absl::Status Enqueue(const Call& call, StreamHandle stream, void* scratch) = 0;
  // Whether what was given last is on the stream. Connections are made at their first use, so the other ranks may have to
  // come for it.
  virtual absl::StatusOr<bool> Begun() = 0;
  // What has gone wrong since without any call being told: a peer, a link. To be asked while waiting.
  virtual absl::Status AsyncStatus() = 0;
  // What is under way ends soon, with whatever in its buffers. Idempotent.
  virtual void Abort() = 0;
  // After Abort: whether the library puts nothing on streams any more, and what it had put there has ended. Also while
  // some stream waits for the caller.
  virtual bool Gone() = 0;
};

class OffloadLibrary {
 public:
  virtual ~OffloadLibrary() = default;
  virtual const char* name() const = 0;     // "nccl"
  virtual std::string version() const = 0;  // "2.27.7"
  // Device memory that a call needs besides its buffers.
  virtual int64_t ScratchBytes(const Call& call) const = 0;
  // By one rank, for all: what they join by. Any bytes, at most 256.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Collective; returns at once. Nothing may be given to it before its Begun has said that all have come.
  virtual absl::StatusOr<std::unique_ptr<Offload>> Join(const std::string& id, int rank, int size,
                                                        Device& device) = 0;
};

}  // namespace entrain
