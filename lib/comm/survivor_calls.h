// The agreements of a communicator on the remaining ranks: entrain_comm_agree and
// entrain_comm_shrink. Survivors decides. SurvivorCalls sends the messages of Survivors, handles
// the callers' deadlines, makes the new communicator, and writes the errors.
//
// A call that reaches its time limit returns TIMED_OUT, but the rank stays in the agreement. So the
// other ranks can still decide, and their decision may include this rank. A repeated call returns
// this decision.
//
// Thread safety: none. Belongs to the communicator's driver. Any thread may use the works.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/comm/comm_shell.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/peers.h"
#include "lib/comm/survivors.h"
#include "lib/engine/engine.h"
#include "lib/engine/work.h"

namespace entrain {

// One call of entrain_comm_agree or entrain_comm_shrink on this rank.
class SurvivorWork final : public Work {
 public:
  // `name`: the name of the communicator that a shrink makes. SurvivorCalls sets the context of
  // `wish`.
  SurvivorWork(Engine& engine, Survivors::Wish wish, int64_t timeout_ns, std::string comm,
               std::string name);
  ~SurvivorWork() override;

  WorkInfo Info() const override;
  // Results. Valid after the work is over. flag: the AND of all ranks' flags. TakeNext: the
  // communicator that a shrink has made.
  uint32_t flag() const { return flag_; }
  std::shared_ptr<CommCore> TakeNext() { return std::move(next_); }

 private:
  friend class SurvivorCalls;
  absl::string_view operation() const;

  const std::string comm_, name_;
  Survivors::Wish wish_;
  const int64_t timeout_ns_, started_ns_;
  uint32_t flag_ = 0;
  std::shared_ptr<CommCore> next_;
};

class SurvivorCalls {
 public:
  // If the library of a rank sends nothing for a quarter of the call's timeout, or for `silence_ns`
  // of the communicator, if that is shorter, the rank counts as unreachable. The time is limited to
  // this range.
  static constexpr int64_t kLeastSilenceNs = 500 * kMillisecond, kMostSilenceNs = 5 * kSecond;

  // All arguments must outlive this object.
  SurvivorCalls(CommShell& shell, Engine& engine, const Peers& peers, const FailureWords& words,
                const std::string& name, uint64_t generation);

  void Start(RefPtr<SurvivorWork> work);
  void OnControl(int rank, absl::string_view body);
  void OnLost(int rank, const absl::Status& why);
  void OnLeft(int rank);
  Deadline next_tick() const;
  void OnTick(int64_t now_ns);
  // Must be called when this rank leaves the communicator, or its runtime is destroyed. The call
  // under way and every later call end with `why`.
  void Close(const absl::Status& why);

 private:
  // A result that came after its call had timed out. The next call of this kind returns the result.
  struct Result {
    Survivors::Kind kind;
    absl::Status status;
    uint32_t flag = 0;
    std::shared_ptr<CommCore> next;
  };

  Survivors& machine();
  int64_t Silence() const;
  // Returns true if the error of the path proves that the rank's process has ended.
  bool Proves(int rank, const absl::Status& why) const;
  void Begin();
  // Sends the messages of machine_. If machine_ has decided or given up, applies the result.
  void After();
  void TakeDecision();
  void TakeEnd();
  void Give(Result result);
  void End(const absl::Status& why);
  void ReleaseContext();
  absl::Status TimedOut(int64_t now_ns) const;
  absl::Status Wrong(const Survivors::Decision& decision, uint32_t number) const;
  absl::Status Stale() const;
  absl::Status Say(absl::StatusCode code, absl::string_view operation, uint32_t number, int guilty,
                   Phase phase, const std::string& text) const;

  CommShell& shell_;
  Engine& engine_;
  const Peers& peers_;
  const FailureWords& words_;
  const std::string& name_;
  const uint64_t generation_;
  std::vector<uint64_t> received_;  // by rank: Endpoint::received at the last tick
  // Created at the first use, because most communicators do not need it.
  std::optional<Survivors> machine_;
  uint32_t seen_ = 1;    // machine_->number() at the last call of After
  absl::Status closed_;  // the argument of Close
  bool ended_ = false;   // machine_ has given up, and the communicator has ended for this reason
  bool begun_ = false;   // the wish of work_ was passed to machine_
  Context context_ = 0;  // reserved for the communicator of the shrink under way; 0: none
  // The kind of the agreement under way on this rank. If no agreement is under way: the kind that
  // the other ranks may have begun.
  Survivors::Kind kind_ = Survivors::Kind::kShrink;
  std::string next_name_;
  RefPtr<SurvivorWork> work_;
  std::optional<Result> untaken_;
};

}  // namespace entrain
