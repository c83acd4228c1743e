// A stream of a training object's own beside the caller's, for what a thread of the object's does.
// Where there is no device nothing here does anything.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/device/arrays.h"

namespace entrain {

class OwnStream {
 public:
  static absl::StatusOr<std::unique_ptr<OwnStream>> Make(const ArraysAt& callers);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  const ArraysAt& at() const { return own_; }
  const ArraysAt& callers() const { return callers_; }
  // On a device: from now on this is the caller's stream, which waits for what is on the one before.
  absl::Status SetCallers(StreamHandle stream);
  // What follows on the own stream runs after what is on the caller's now.
  absl::Status Follow() { return Order(own_.stream, callers_.stream); }
  // What follows on the caller's stream runs after what is on the own now.
  absl::Status Lead() { return Order(callers_.stream, own_.stream); }

 private:
  explicit OwnStream(const ArraysAt& callers)
      : callers_(callers), own_{callers.device, nullptr, callers.limit_ns} {}
  absl::Status Order(StreamHandle later, StreamHandle earlier);

  ArraysAt callers_;
  ArraysAt own_;
};

}  // namespace entrain
