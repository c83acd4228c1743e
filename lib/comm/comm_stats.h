// The counters of a communicator.
#pragma once

#include <cstdint>

namespace entrain {

struct CommStats {
  uint64_t calls = 0, bytes_sent = 0, bytes_received = 0;
};

}  // namespace entrain
