// The core of a communicator. The core owns the parts of the communicator, starts its calls,
// receives the engine's events (control messages and early messages of the members, lost paths,
// timers), and passes each to the part that handles it. The parts that decide about failures (the
// inquiry, the answers, the vote, the agreements on the remaining ranks, the end) are without I/O
// and clock: after each event the core does what they have decided, before the event returns
// (comm_failures.cc, which also has OnLost, OnControl, OnTick, Fail and StartAgreement). The
// parts on the path of a call ask the core through CommShell. Each part is built after the parts
// that it refers to. The user's handle, the engine and the works share the core. A core may exist
// after Engine::Shutdown has destroyed the endpoints. After that the core does not use the
// endpoints.
//
// Thread safety: any thread, except for functions marked [driver] (lib/engine/driver_seat.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/call_runner.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure/ending.h"
#include "lib/comm/failure/failure_words.h"
#include "lib/comm/failure/inquiry.h"
#include "lib/comm/failure/mismatch.h"
#include "lib/comm/failure/respondent.h"
#include "lib/comm/failure/survivor_calls.h"
#include "lib/comm/flight/flight_dump.h"
#include "lib/comm/flight/flight_recorder.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/packed_call.h"
#include "lib/comm/peers.h"
#include "lib/engine/engine.h"

namespace entrain {

class CommCore;

// One call of entrain_comm_agree or entrain_comm_shrink on this rank.
class SurvivorWork final : public Work {
 public:
  SurvivorWork(Engine& engine, std::string comm, Survivors::Kind kind);
  ~SurvivorWork() override;

  WorkInfo Info() const override;
  // Results. Valid after the work is over. flag: the AND of all ranks' flags. TakeNext: the
  // communicator that a shrink has made.
  uint32_t flag() const { return flag_; }
  std::shared_ptr<CommCore> TakeNext() { return std::move(next_); }

 private:
  friend class CommCore;

  const std::string comm_;
  const Survivors::Kind kind_;
  const int64_t started_ns_;
  uint32_t flag_ = 0;
  std::shared_ptr<CommCore> next_;
};

// Returns the two lines of Planner::Explain, and then the text of Endpoint::Explain of each
// endpoint. Equal texts appear once.
absl::StatusOr<std::string> Explain(CommCore& core, CallKind kind, int64_t count, DType dtype);

class CommCore final : public ContextOwner,
                       private CommShell,
                       public std::enable_shared_from_this<CommCore> {
 public:
  CommCore(std::shared_ptr<Engine> engine, BufferPool& pool, CoreConfig config);
  // Makes the core. Computes config.paths.cores from the cores of all members. Tells the engine if
  // this rank's host has more ranks than cores.
  static std::shared_ptr<CommCore> Make(std::shared_ptr<Engine> engine, BufferPool& pool,
                                        CoreConfig config);

  // Makes the core of a communicator of some ranks of `parent`. `members`: the ranks, each with its
  // context number in the new communicator. The caller must call Open().
  static std::shared_ptr<CommCore> MakeFrom(const CommCore& parent, std::string name,
                                            uint64_t generation,
                                            const std::vector<std::pair<int, Context>>& members);

  absl::StatusOr<RefPtr<Work>> Start(Call call, bool kick);
  // Runs a blocking call: inline if possible, otherwise by Start and Wait.
  absl::Status Run(const Call& call);
  CallRunner& runner() { return runner_; }
  const CallRunner& runner() const { return runner_; }
  // Returns the object that gives calls their numbers, their plans and their default timeout.
  CallFunnel& funnel() { return funnel_; }
  const CallFunnel& funnel() const { return funnel_; }
  // Returns the status with which the communicator has ended.
  const CommEnd& end() const { return ending_.end(); }
  // Ends the communicator on all ranks at the caller's request. Does not wait.
  void Abort(absl::string_view reason);
  // Ends the communicator on all ranks because of an error on this rank. Does not wait. `leaves`:
  // the user also releases the communicator.
  void EndHere(const absl::Status& why, bool leaves);
  void EndHere(const absl::Status& why) override { EndHere(why, /*leaves=*/false); }
  // Ends the communicator on all ranks because of an error outside this communicator. Returns after
  // it has told the other ranks.
  void EndWith(const absl::Status& why);
  // While the returned object exists, an end of this communicator with an error also ends `part`.
  // If this communicator has ended already, ends `part` at once.
  [[nodiscard]] std::shared_ptr<void> EndToo(const std::shared_ptr<CommCore>& part);
  // Returns the object that finds the rank to blame. Only SetSilence and silence_ns may be called
  // on any thread.
  Inquiry& inquiry() { return inquiry_; }

  // ---- [driver]
  // Opens the communicator's context in the engine. Must be called once, before any call.
  void Open();
  // Must be called when the user releases the communicator. `what`: a phrase for errors, for
  // example "destroyed the communicator".
  void Leave(absl::string_view what);
  // Returns this rank's knowledge of each rank, in rank order.
  std::vector<MemberReport> Members() const;
  // ContextOwner
  void Attend() override;
  void OnControl(Endpoint& from, absl::string_view message) override;
  void OnLost(Endpoint& from, const absl::Status& why) override;
  Deadline next_tick() const override;
  void OnTick(int64_t now_ns) override;
  void OnEarly(Endpoint& from, const Envelope& envelope) override;
  std::string UserOf(ConstBytes bytes) const override;
  void OnShutdown() override;
  std::optional<int64_t> waits_since() const override;
  Deadline FindOut(HeldUpBy then) override;

  // ---- Any thread
  // SetPaths and SetProbed change the values by which plans are chosen. Plans made before are
  // discarded.
  void SetPaths(const Paths& paths);
  void SetProbed(const CostModel& model);
  CommStats stats() const;
  const FlightRecorder& flight() const { return flight_; }
  // [driver] Returns the part of a flight dump that must be collected on the driver.
  FlightLook flight_look() const;
  // What a packed call uses of this communicator.
  PackedCall::Parts packed_parts() {
    return {Keep(), engine_, config_, pool_, funnel_, ending_.end()};
  }
  // Returns the name of the transport to a member, or "self" for this rank itself.
  absl::string_view transport_to(int rank) const;
  // Blocks until all calls started so far are over. Returns false if a call is not over at
  // `give_up`.
  bool Drain(Deadline give_up);
  // Starts an agreement with the other ranks on the set of remaining ranks. May be called after the
  // communicator has ended.
  RefPtr<SurvivorWork> StartAgreement(Survivors::Wish wish, int64_t timeout_ns,
                                      const std::string& name);
  // Tells the other ranks that this rank could not start this call, and the reason. Sends the
  // messages before it returns. If a peer's endpoint does not accept a message yet, the message is
  // sent later.
  void Refused(const Call& call, const absl::Status& why);

  Engine& engine() { return engine_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_holder_; }
  BufferPool& pool() { return pool_; }
  const CoreConfig& config() const { return config_; }
  const Topology& topology() const { return topology_; }
  int rank() const { return config_.rank; }
  int size() const { return static_cast<int>(config_.members.size()); }

 private:
  // CommShell
  std::shared_ptr<CommShell> Keep() override {
    return std::shared_ptr<CommShell>(shared_from_this(), this);
  }
  RefPtr<CallWork> Submit(Admitted admitted, CallBegin begin) override {
    return runner_.Submit(std::move(admitted), std::move(begin));
  }
  void StartWork(CallWork* work) override { runner_.StartWork(work); }
  void NeedAttention() override;
  void Fail(const absl::Status& why) override;

  // Returns true if the communicator has ended. After the end, only agreements on the remaining
  // ranks run.
  bool Over() const { return ending_.over(); }
  // Ends the communicator on all ranks because `parent` has ended. Does not wait.
  void EndLike(const CommCore& parent);
  // Makes the driver end the communicator soon, with the error that was set. `leaves`: it also says
  // farewell.
  void EndSoon(bool leaves);
  // [driver] Does what Ending has decided.
  void Perform(const Ending::End& end);
  void SayFarewell(absl::string_view what);
  // [driver] Does what follows from the events of the inquiry. Must be called after each of them.
  void PerformInquiry();
  // [driver] Sends the answer to a query. If this rank waits in a call of another communicator,
  // asks that communicator for the reason, and sends a second answer when the reason is known.
  void AnswerTo(int rank, const Query& query);
  void SendAnswer(int rank, const Query& query, const Respondent::Reply& reply);
  // Makes the driver flush sent messages to the peers before the thread stops being the driver.
  void NeedFlush() { engine_.seat().NeedFlush(); }
  // [driver] Does what the vote about a mismatch needs next.
  void AttendVote();
  // [driver] Does what the agreement on the remaining ranks has decided. Must be called after each
  // of its events.
  void PerformAgreement();
  // [driver] Starts the call of a work, or finishes the work with an error.
  void StartAgreement(const RefPtr<SurvivorWork>& work, SurvivorCall call);
  // [driver] At the first use of SurvivorCalls, tells it what this rank knows of the members.
  void BeginAgreement();
  // Requests a flight dump, and ends the parts that end with this communicator.
  void TellOfFailure();

  const std::shared_ptr<Engine> engine_holder_;
  Engine& engine_;
  BufferPool& pool_;
  const CoreConfig config_;
  const Topology topology_;
  // Indexed by Member::transport. These are copies, because the engine's transports may end before
  // this object.
  const std::vector<std::string> transport_names_;
  const Peers peers_;
  const FailureWords words_;

  OpenCalls open_;  // [driver]
  FlightRecorder flight_;
  Ending ending_;
  CallFunnel funnel_;
  Mismatches mismatches_;  // [driver]
  Inquiry inquiry_;
  Respondent respondent_;           // [driver]
  SurvivorCalls agreements_;        // [driver]
  RefPtr<SurvivorWork> agreeing_;   // [driver] the call under way; null: none
  std::shared_ptr<CommCore> next_;  // [driver] made by a shrink, and not taken yet
  CallRunner runner_;
  // [driver] Other communicators that wait for what the inquiry finds out.
  std::vector<HeldUpBy> those_who_asked_;
  bool attending_ = false;                   // [driver]
  using Tie = std::weak_ptr<CommCore>;       // to a communicator that ends too
  std::vector<std::weak_ptr<Tie>> end_too_;  // [driver]
};

}  // namespace entrain
