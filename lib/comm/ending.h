// Ends a communicator, once. Whatever the reason, all goes through Fail: the first reason counts, the members and the
// process's other communicators learn it, messages of the context are dropped from then on, and open calls end with it.
//
// Thread safety: any thread, except for what is marked [driver].
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/comm/comm_end.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/engine.h"

namespace entrain {

// The communicator, as its end needs it.
class EndingOwner {
 public:
  virtual ~EndingOwner() = default;
  // The communicator lives as long as this is held.
  virtual std::shared_ptr<void> Keep() = 0;
  // [driver] The member has left of its own accord: it is told nothing more.
  virtual bool left(int rank) const = 0;
  // [driver] All open calls end, and nothing else goes on.
  virtual void EndCalls(const absl::Status& why) = 0;
};

class Ending {
 public:
  // All outlive it.
  Ending(EndingOwner& owner, Engine& engine, const CoreConfig& config, const Peers& peers,
         const FailureWords& words, const OpenCalls& open);

  const CommEnd& end() const { return end_; }
  bool ended() const { return end_.ended(); }
  absl::Status status() const { return end_.status(); }

  // The caller's wish.
  void Abort(absl::string_view reason);
  // Soon ends it on all ranks, by what only this one knows of.
  void EndHere(const absl::Status& why);
  // Ends it by an error that its user has met; returns when the others have been told.
  void EndWith(const absl::Status& why);

  // [driver] Ends it here and tells the others why.
  void Fail(const absl::Status& why);
  // [driver] The user lets go of it: ends unfinished calls everywhere, or leaves quietly. `what`: "destroyed the communicator".
  void Leave(absl::string_view what);

 private:
  void TellMembers(const absl::Status& why);
  void LeaveQuietly();
  // This rank is guilty.
  Blame Mine(Phase phase) const;

  EndingOwner& owner_;
  Engine& engine_;
  const CoreConfig& config_;
  const Peers& peers_;
  const FailureWords& words_;
  const OpenCalls& open_;
  CommEnd end_;
};

}  // namespace entrain
