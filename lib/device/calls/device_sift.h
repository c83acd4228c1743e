// A sparsified contribution of a call on device memory, sifted where it is, so that only what is kept goes to the host.
// The runner waits for the kernels that count, on a stream of its own that waits for nobody.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "lib/comm/packed_call.h"
#include "lib/device/calls/device_call.h"

namespace entrain {

class DeviceSift {
 public:
  // The call's contribution is sparsified, this rank has one, and nothing is owed: what is comes from the host.
  static bool Serves(const Call& call, int rank);
  // Of the device, and of page-locked memory, in bytes.
  static int64_t ScratchBytes(const Call& call);
  static int64_t HostBytes(const Call& call);

  explicit DeviceSift(DeviceCall& call);
  // What is kept is found, and its copies to `host` are enqueued on side.copy_in().
  absl::Status Begin(std::byte* host);
  // Whether the device has done with what it sifts.
  bool Quiet() const { return searched_.quiet(); }
  // Once the copies are done.
  const Sifted& sifted() const { return sifted_; }

 private:
  absl::Status Find(std::byte* host);
  absl::Status Keep(void* kept);

  DeviceCall& way_;
  const Call& call_;
  Sifted sifted_;
  DeviceMark searched_;
};

}  // namespace entrain
