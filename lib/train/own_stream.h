// A stream that belongs to a training object, for the work of the object's thread. The caller has
// another stream. Without a device, Follow and Lead do nothing.
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
  // Must be called only on a device. Makes `stream` the caller's stream. `stream` waits for the
  // work on the previous stream.
  absl::Status SetCallers(StreamHandle stream);
  // Makes later work on this object's stream wait for the present work on the caller's stream.
  absl::Status Follow() { return Order(own_.stream, callers_.stream); }
  // Makes later work on the caller's stream wait for the present work on this object's stream.
  absl::Status Lead() { return Order(callers_.stream, own_.stream); }

 private:
  explicit OwnStream(const ArraysAt& callers)
      : callers_(callers), own_{callers.device, nullptr, callers.limit_ns} {}
  absl::Status Order(StreamHandle later, StreamHandle earlier);

  ArraysAt callers_;
  ArraysAt own_;
};

}  // namespace entrain
