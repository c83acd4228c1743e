// A transfer of an endpoint, for tests.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "transports/transport.h"

namespace entrain {

// One transfer and its outcome. Must outlive the transfer.
struct Transfer : Completion {
  Transfer() {
    done = [](Completion* self, const absl::Status& result, int64_t moved) {
      auto* transfer = static_cast<Transfer*>(self);
      ++transfer->times;
      transfer->status = result;
      transfer->bytes = moved;
    };
  }
  int times = 0;
  absl::Status status = absl::UnknownError("not completed");
  int64_t bytes = -1;
};

}  // namespace entrain
