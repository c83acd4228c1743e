// Something to do on the engine's driver (driver_seat.h).
#pragma once

#include "lib/base/mpsc_queue.h"

namespace entrain {

// Deletes itself or is kept by its submitter, as it likes.
class Job : public MpscNode {
 public:
  virtual ~Job() = default;
  virtual void Run() = 0;  // [driver]
};

}  // namespace entrain
