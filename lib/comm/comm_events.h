// Receives the engine's events for a communicator: control messages and early messages of the
// members, lost paths, and timers. CommEvents passes each event to the part that handles it: the
// open calls, the inquiry, the vote, the agreements on the remaining ranks, and the end. CommEvents
// also connects these parts with each other. It owns the inquiry, the vote, the answers to other
// ranks and the agreements.
//
// Thread safety: none. Belongs to the communicator's driver (lib/engine/driver_seat.h). Only Keep
// may be called on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/call_runner.h"
#include "lib/comm/core_config.h"
#include "lib/comm/ending.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/inquiry.h"
#include "lib/comm/member_report.h"
#include "lib/comm/mismatch.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/comm/respondent.h"
#include "lib/comm/survivor_calls.h"
#include "lib/engine/engine.h"

namespace entrain {

// The interface of CommEvents to its communicator. Functions run on the driver, except Keep.
class EventsOwner {
 public:
  virtual ~EventsOwner() = default;
  // Returns a reference that keeps the communicator alive. Any thread.
  virtual std::shared_ptr<void> Keep() = 0;
  // Called when the communicator has ended with an error, before its calls end.
  virtual void OnFailure() = 0;
  // See SurvivorCallsOwner.
  virtual std::shared_ptr<CommCore> MakeNext(
      const std::string& name, const std::vector<std::pair<int, Context>>& members) = 0;
};

class CommEvents final : public ContextOwner,
                         public EndingOwner,
                         public RunnerOwner,
                         private InquiryOwner,
                         private MismatchOwner,
                         private SurvivorCallsOwner {
 public:
  // The other parts of the communicator. All must exist at every event. `ending`, `runner` and
  // `funnel` are made after CommEvents and destroyed before it. So the constructor of CommEvents
  // must not use these three, and neither must the destructors of its members.
  struct Parts {
    Engine& engine;
    const CoreConfig& config;
    const Peers& peers;
    const FailureWords& words;
    OpenCalls& open;
    Ending& ending;
    CallRunner& runner;
    CallFunnel& funnel;
  };
  CommEvents(EventsOwner& owner, const Parts& parts);

  Inquiry& inquiry() { return inquiry_; }
  const Inquiry& inquiry() const { return inquiry_; }
  Mismatches& mismatches() { return mismatches_; }
  SurvivorCalls& survivors() { return survivors_; }

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

  // EndingOwner and RunnerOwner. These functions also implement those of InquiryOwner,
  // MismatchOwner and SurvivorCallsOwner with the same names.
  std::shared_ptr<void> Keep() override { return owner_.Keep(); }
  bool left(int rank) const override { return inquiry_.left(rank); }
  int64_t silence_ns() const override { return inquiry_.silence_ns(); }
  void EndCalls(const absl::Status& why) override;
  void NeedAttention() override;
  void Fail(const absl::Status& why) override { with_.ending.Fail(why); }

 private:
  // InquiryOwner, MismatchOwner and SurvivorCallsOwner
  absl::Status CauseOf(int rank) const override;
  bool SaysNothing(int rank) const override;
  void Disagree(CallId call, uint64_t sequence, const Vote::Result& votes) override;
  void NeedFlush() override { with_.engine.seat().NeedFlush(); }
  void EndAsStale(const absl::Status& why) override { with_.ending.EndAsStale(why); }
  std::shared_ptr<CommCore> MakeNext(const std::string& name,
                                     const std::vector<std::pair<int, Context>>& members) override {
    return owner_.MakeNext(name, members);
  }

  // Returns true if the communicator has ended. After the end, only agreements on the remaining
  // ranks run.
  bool Over() const;

  EventsOwner& owner_;
  const Parts with_;
  Mismatches mismatches_;
  Inquiry inquiry_;
  Respondent respondent_;
  SurvivorCalls survivors_;
  int64_t opened_ns_ = 0;
  bool attending_ = false;
};

}  // namespace entrain
