// Decides what the calls of entrain_comm_agree and entrain_comm_shrink on this rank return.
// Survivors (survivors.h) decides which ranks go on. SurvivorCalls passes it the calls, the
// members' messages and the lost paths, keeps the callers' deadlines, and writes the errors.
// SurvivorCalls is a pure state machine without I/O and clock. CommCore performs what it decides
// (Effects).
//
// A call that reaches its time limit returns TIMED_OUT, but the rank stays in the agreement. So the
// other ranks can still decide, and their decision may include this rank. A repeated call returns
// this decision.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lib/comm/failure/failure_words.h"
#include "lib/comm/failure/survivors.h"
#include "lib/comm/peers.h"

namespace entrain {

// One call of this rank.
struct SurvivorCall {
  // context: if SurvivorCalls::WantsContext, a context number that the caller has reserved.
  Survivors::Wish wish;
  int64_t timeout_ns = 0, started_ns = 0;
  int64_t silence_ns = 0;  // see Inquiry::SetSilence
  std::string next_name;   // the name of the communicator that a shrink makes
};
absl::string_view NameOf(Survivors::Kind kind);  // "shrink"

class SurvivorCalls {
 public:
  using Kind = Survivors::Kind;
  // If the library of a rank sends nothing for a quarter of the call's timeout, or for `silence_ns`
  // of the communicator, if that is shorter, the rank counts as unreachable. The time is limited to
  // this range.
  static constexpr int64_t kLeastSilenceNs = 500 * kMillisecond, kMostSilenceNs = 5 * kSecond;

  // The communicator that follows.
  struct Next {
    std::string name;
    std::vector<std::pair<int, Context>> members;  // each rank with its context number
  };
  // The result of the call under way.
  struct Outcome {
    absl::Status status;
    uint32_t flag = 0;
    bool takes_next = false;  // the call returns the last communicator of Effects::next
  };
  // What the driver must do after an event, in this order.
  struct Effects {
    std::vector<Survivors::Message> messages;  // send them
    std::optional<Next> next;                  // make and open this communicator, and keep it
    std::vector<Context> unused;               // release these context numbers
    absl::Status stale;           // not OK: the others go on without this rank; end with this error
    bool drops_next = false;      // end the kept communicator: no call will take it
    std::optional<Outcome> over;  // finish the call under way
  };

  // All arguments must outlive this object.
  SurvivorCalls(const Peers& peers, const FailureWords& words, const std::string& name,
                uint64_t generation)
      : peers_(peers), words_(words), name_(name), generation_(generation) {}

  // ---- Events. TakeEffects must be called after each of them.
  // Most communicators have no agreement. So Begin must be called before the first call of Start or
  // OnMessage. `members`: what this rank knows of each rank.
  bool begun() const { return machine_.has_value(); }
  void Begin(absl::Span<const MemberReport> members, int64_t now_ns);
  // Returns true if a call of this kind needs a context number of this rank.
  bool WantsContext(Kind kind) const;
  // Starts the next call. Returns an error if that is not possible.
  absl::Status Start(SurvivorCall call, int64_t now_ns);
  void OnMessage(int rank, absl::string_view text, int64_t now_ns);
  // The next two do nothing before Begin.
  void OnLost(int rank, const absl::Status& why, int64_t now_ns);
  void OnLeft(int rank, int64_t now_ns);
  Deadline next_tick() const;
  // `received`: by rank, the bytes that have come from it.
  void OnTick(int64_t now_ns, absl::Span<const uint64_t> received);
  // Must be called when this rank leaves the communicator, or its runtime is destroyed. The call
  // under way and every later call end with `why`.
  void Close(const absl::Status& why);

  Effects TakeEffects() { return std::exchange(todo_, {}); }

 private:
  // A result that came after its call had timed out. The next call of this kind returns the result.
  struct Late {
    Kind kind;
    Outcome outcome;
  };

  int64_t Silence() const;
  // Returns true if the error of the path proves that the rank's process has ended.
  bool Proves(int rank, const absl::Status& why) const;
  void BeginCall();
  // Takes what machine_ has to say. If machine_ has decided or given up, takes the result.
  void After();
  void TakeDecision();
  void TakeEnd();
  void End(Outcome outcome);
  void ReleaseContext();
  absl::Status TimedOut() const;
  absl::Status Wrong(const Survivors::Decision& decision, uint32_t number) const;
  absl::Status Stale() const;
  absl::Status Say(absl::StatusCode code, absl::string_view operation, uint32_t number, int guilty,
                   Phase phase, const std::string& text) const;

  const Peers& peers_;
  const FailureWords& words_;
  const std::string& name_;
  const uint64_t generation_;
  int64_t now_ns_ = 0;              // the time of the event under way
  std::vector<uint64_t> received_;  // by rank: the bytes at the last tick
  std::optional<Survivors> machine_;
  uint32_t seen_ = 1;    // machine_->number() at the last call of After
  absl::Status closed_;  // the argument of Close
  bool ended_ = false;   // machine_ has given up, and the communicator has ended for this reason
  std::optional<SurvivorCall> call_;  // the call under way
  bool passed_ = false;               // machine_ has got the wish of call_
  Context context_ = 0;  // reserved for the communicator of the shrink under way; 0: none
  // The kind of the agreement under way on this rank. If no agreement is under way: the kind that
  // the other ranks may have begun.
  Kind kind_ = Kind::kShrink;
  std::string next_name_;
  std::optional<Late> late_;
  Effects todo_;
};

}  // namespace entrain
