// One started call of a communicator: the job that starts it on the driver, and the work that its caller waits for.
//
// Thread safety: what is marked [driver] runs on the engine's driver; the rest from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/call.h"
#include "lib/comm/inline_path.h"
#include "lib/comm/planner.h"
#include "lib/engine/engine.h"
#include "lib/engine/executor.h"
#include "lib/engine/work.h"
#include "lib/memory/buffer.h"

namespace entrain {

class CallWork;

// The communicator, as its calls need it. All [driver].
class CallOwner {
 public:
  virtual ~CallOwner() = default;
  // The call's turn on the driver has come.
  virtual void StartWork(CallWork* work) = 0;
  // A call has become ready.
  virtual void NeedAttention() = 0;
};

// Some of the ranks, for parts of calls that only these exchange, under numbers that all ranks have taken.
struct PartGroup {
  Group group;
  std::vector<Endpoint*> endpoints;  // by place in the group; shared with wirings
  std::vector<Context> contexts;     // likewise
  Planner planner;                   // the communicator's mutex guards it
};

class CallWork final : public Work, public Job {
 public:
  // What a call begins with, besides its admission.
  struct Begin {
    Call call;
    OwnedBuffer staged =
        {};              // what the call's input points to when that is not the caller's buffer
    Progress from = {};  // what of the call is done
    int64_t started_ns = 0;
    RefPtr<Work> whole = {};           // the work of which this is a part, or null
    const PartGroup* among = nullptr;  // null: all ranks
  };
  // `comm`: the communicator's name.
  CallWork(Engine& engine, std::shared_ptr<CallOwner> owner, const std::string& comm,
           Admitted admitted, Begin begin);
  void Run() override {
    owner_->StartWork(this);
  }  // Job; the submitter took the engine's reference
  WorkInfo Info() const override;

  const Call& call() const { return begin_.call; }
  int64_t started_ns() const { return begin_.started_ns; }
  const RefPtr<Work>& whole() const { return begin_.whole; }
  const Progress& from() const { return begin_.from; }
  // As Blame::sequence; 0: a receive in line, which has no number yet.
  uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  bool waits() const { return number() == 0; }
  // The peer of a send or receive; -1: not known yet.
  int peer() const { return peer_.load(std::memory_order_relaxed); }
  // As in errors: "all_reduce #2".
  std::string Name() const;

  // [driver]:
  using Work::Finish;
  const Wiring& wiring() const { return wiring_; }
  Executor& executor() { return *executor_; }
  const Executor& executor() const { return *executor_; }
  // The rank that it waits for; -1: none.
  int WaitingFor() const;
  // Its turn has come: it is the receive of this message of the peer's.
  void Take(Admitted admitted, int peer);
  // Gives its buffers back, once no transfer of the call is under way.
  void GiveBuffers(BufferPool& pool);

  bool started = false;
  bool ready = false;     // the executor has something to do
  bool inquired = false;  // its deadline has passed and the others are being asked

 private:
  void MakeExecutor(Admitted admitted);

  const std::shared_ptr<CallOwner> owner_;
  const std::string& comm_;  // the owner's
  Begin begin_;
  Wiring wiring_;
  std::atomic<uint64_t> number_;
  std::atomic<int> peer_;
  std::optional<Executor> executor_;  // always one; another when the work's turn has come
};

}  // namespace entrain
