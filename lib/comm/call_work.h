// One started call of a communicator. A CallWork is a Job: it starts the call on the driver. A
// CallWork is also a Work: the caller waits for it.
//
// Thread safety: functions marked [driver] run on the engine's driver. The others may be called
// from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/call.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/flight/flight_recorder.h"
#include "lib/engine/engine.h"
#include "lib/engine/executor.h"
#include "lib/engine/work.h"
#include "lib/memory/buffer.h"

namespace entrain {

// The state of an open call in a flight dump (docs/flight.md). [driver]
struct FlightOpen {
  uint64_t mark = 0;  // the call's mark in the flight recorder; 0: the call is not recorded
  FlightCall call;
  FlightState state = FlightState::kPlanned;
  // The peers of the transfers that are posted and not complete, in increasing order of rank.
  std::vector<int> receives_from, sends_to;
};

// Returns a description of a call. `comm`: the communicator's name. `number`: as in Blame::sequence.
WorkInfo InfoOf(const std::string& comm, const Call& call, uint64_t number, int64_t started_ns);

class CallWork final : public Work, public Job {
 public:
  // `comm`: the communicator's name.
  CallWork(Engine& engine, std::shared_ptr<CommShell> shell, const std::string& comm,
           Admitted admitted, CallBegin begin);
  // Job. CallRunner::Prepare has taken a reference for the engine, so this object lives until the
  // call is over.
  void Run() override;
  WorkInfo Info() const override;

  const Call& call() const { return begin_.call; }
  int64_t started_ns() const { return begin_.started_ns; }
  const RefPtr<Work>& whole() const { return begin_.whole; }
  const Progress& from() const { return begin_.from; }
  // Returns the call's number as it appears in errors (Blame::sequence). 0: the call is a receive
  // in a line (call_funnel.h) and has no number yet.
  uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  // Returns true if the call is a receive in a line.
  bool waits() const { return number() == 0; }
  // Returns the peer of a send or receive, or the root of another call. -1: the call is a receive
  // from any peer, and its message has not come yet.
  int peer() const { return peer_.load(std::memory_order_relaxed); }
  // Returns the call's name in errors: "all_reduce #2".
  std::string Name() const;

  // [driver] All public members below.
  using Work::Finish;
  const Wiring& wiring() const { return wiring_; }
  Executor& executor() { return *executor_; }
  const Executor& executor() const { return *executor_; }
  // Returns a rank for which the call waits. -1: the call waits for no rank.
  int WaitingFor() const { return executor_->WaitingFor(); }
  // Returns the values for the flight recorder.
  FlightCall flight_call() const;
  FlightState flight_state() const;
  FlightOpen flight_open() const;
  // Ends the wait of a receive in a line. `peer`: the sender of the receive's message.
  void Take(Admitted admitted, int peer);
  // Returns the call's buffers to the pool. No transfer of the call may be under way.
  void GiveBuffers(BufferPool& pool);

  bool started = false;
  bool ready = false;     // Executor::Advance must be called
  bool inquired = false;  // the deadline has passed, and an inquiry about this call has begun
  uint64_t flight = 0;    // the call's mark in the flight recorder
  // The state of the call in the flight recorder.
  FlightState recorded = FlightState::kPlanned;

 private:
  void MakeExecutor(Admitted admitted);

  const std::shared_ptr<CommShell> shell_;
  const std::string& comm_;  // the communicator's name; shell_ keeps it alive
  CallBegin begin_;
  Wiring wiring_;
  std::atomic<uint64_t> number_;
  std::atomic<int> peer_;
  // Never empty. Optional only so that Take can replace the executor.
  std::optional<Executor> executor_;
};

}  // namespace entrain
