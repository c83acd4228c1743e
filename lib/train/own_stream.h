// A stream that a training object has beside the caller's stream, for the work of the object's
// thread. Without a device all functions do nothing.
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
  // On a device: makes `stream` the caller's stream. `stream` waits for the work on the previous
  // stream.
  absl::Status SetCallers(StreamHandle stream);
  // Orders later work on this object's stream behind the present work on the caller's stream.
  absl::Status Follow() { return Order(own_.stream, callers_.stream); }
  // Orders later work on the caller's stream behind the present work on this object's stream.
  absl::Status Lead() { return Order(callers_.stream, own_.stream); }

 private:
  explicit OwnStream(const ArraysAt& callers)
      : callers_(callers), own_{callers.device, nullptr, callers.limit_ns} {}
  absl::Status Order(StreamHandle later, StreamHandle earlier);

  ArraysAt callers_;
  ArraysAt own_;
};

}  // namespace entrain
