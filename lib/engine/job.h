// A task for the engine's driver (driver_seat.h).
#pragma once

#include "lib/base/mpsc_queue.h"

namespace entrain {

// A job deletes itself in Run, or its submitter keeps it alive until Run has returned.
class Job : public MpscNode {
 public:
  virtual ~Job() = default;
  virtual void Run() = 0;  // [driver]
};

}  // namespace entrain
