// One started call of a communicator: the job that starts the call on the driver, and the work that
// its caller waits for.
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
#include "lib/comm/flight_recorder.h"
#include "lib/comm/inline_path.h"
#include "lib/comm/planner.h"
#include "lib/engine/engine.h"
#include "lib/engine/executor.h"
#include "lib/engine/work.h"
#include "lib/memory/buffer.h"

namespace entrain {

class CallWork;

// The communicator, as its calls need it. All functions are [driver].
class CallOwner {
 public:
  virtual ~CallOwner() = default;
  // The driver runs the job of this call.
  virtual void StartWork(CallWork* work) = 0;
  // A call has become ready.
  virtual void NeedAttention() = 0;
};

// A call under way, with what only the driver knows (docs/flight.md).
struct FlightOpen {
  uint64_t mark = 0;
  FlightCall call;
  FlightState state = FlightState::kPlanned;
  // The ranks of the transfers that are posted and have not completed, in increasing order.
  std::vector<int> receives_from, sends_to;
};

// A group of ranks that exchange parts of calls among themselves, under numbers that all ranks have
// taken.
struct PartGroup {
  Group group;
  std::vector<Endpoint*> endpoints;  // by place in the group; shared with wirings
  std::vector<Context> contexts;     // by place in the group
  Planner planner;                   // guarded by the communicator's mutex
};

class CallWork final : public Work, public Job {
 public:
  // The arguments of a call besides its admission.
  struct Begin {
    Call call;
    // The buffer that the call's input points to, if this is not the caller's buffer.
    OwnedBuffer staged = {};
    Progress from = {};  // the part that is done
    int64_t started_ns = 0;
    RefPtr<Work> whole = {};           // the work that this is a part of, or null
    const PartGroup* among = nullptr;  // null: all ranks
  };
  // `comm`: the communicator's name.
  CallWork(Engine& engine, std::shared_ptr<CallOwner> owner, const std::string& comm,
           Admitted admitted, Begin begin);
  // Job. The submitter has taken the engine's reference.
  void Run() override { owner_->StartWork(this); }
  WorkInfo Info() const override;

  const Call& call() const { return begin_.call; }
  int64_t started_ns() const { return begin_.started_ns; }
  const RefPtr<Work>& whole() const { return begin_.whole; }
  const Progress& from() const { return begin_.from; }
  // The number in errors, as in Blame::sequence. 0: a receive in line, which has no number yet.
  uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  bool waits() const { return number() == 0; }
  // Returns the peer of a send or receive. -1: the peer is not known yet.
  int peer() const { return peer_.load(std::memory_order_relaxed); }
  // Returns the call's name in errors: "all_reduce #2".
  std::string Name() const;

  // [driver]:
  using Work::Finish;
  const Wiring& wiring() const { return wiring_; }
  Executor& executor() { return *executor_; }
  const Executor& executor() const { return *executor_; }
  // Returns the rank that the call waits for. -1: no rank.
  int WaitingFor() const;
  // Returns the values for the flight recorder.
  FlightCall flight_call() const;
  FlightState flight_state() const;
  FlightOpen flight_open() const;
  // Ends the wait in line: the work becomes the receive of one message from `peer`.
  void Take(Admitted admitted, int peer);
  // Gives the call's buffers back. No transfer of the call may be under way.
  void GiveBuffers(BufferPool& pool);

  bool started = false;
  bool ready = false;     // the executor has something to do
  bool inquired = false;  // expired, and the other ranks are being asked
  uint64_t flight = 0;    // its mark in the flight recorder
  FlightState recorded = FlightState::kPlanned;

 private:
  void MakeExecutor(Admitted admitted);

  const std::shared_ptr<CallOwner> owner_;
  const std::string& comm_;  // the owner's
  Begin begin_;
  Wiring wiring_;
  std::atomic<uint64_t> number_;
  std::atomic<int> peer_;
  // Never empty. Take replaces the executor.
  std::optional<Executor> executor_;
};

}  // namespace entrain
