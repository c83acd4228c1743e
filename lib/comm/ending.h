// Ends a communicator, once. Every end with an error goes through the function Conclude. The first
// error counts (except after EndAsStale). Conclude tells the error to the members and to the peers
// of the process's other communicators. From then on the engine drops messages of the context, and
// open calls end with the error.
//
// Thread safety: any thread, except for functions marked [driver].
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

// The interface of Ending to its communicator.
class EndingOwner {
 public:
  virtual ~EndingOwner() = default;
  // Returns a reference that keeps the communicator alive.
  virtual std::shared_ptr<void> Keep() = 0;
  // [driver] Returns true if the member has left by itself. Such a member is told nothing more.
  virtual bool left(int rank) const = 0;
  // [driver] Ends all open calls, inquiries and votes.
  virtual void EndCalls(const absl::Status& why) = 0;
};

class Ending {
 public:
  // All arguments must outlive this object.
  Ending(EndingOwner& owner, Engine& engine, const CoreConfig& config, const Peers& peers,
         const FailureWords& words, const OpenCalls& open);

  const CommEnd& end() const { return end_; }
  bool ended() const { return end_.ended(); }
  absl::Status status() const { return end_.status(); }

  // Ends the communicator on all ranks, because the caller asks for it. Does not wait.
  void Abort(absl::string_view reason);
  // Ends the communicator on all ranks with an error that only this rank knows. Does not wait.
  // `leaves`: the user of the communicator also releases it.
  void EndHere(const absl::Status& why, bool leaves = false);
  // Ends the communicator on all ranks with an error that the user has met elsewhere. Returns when
  // the other ranks have been told.
  void EndWith(const absl::Status& why);
  // Does the same as EndWith for an error of the communicator from which this one was made. Does
  // not wait.
  void EndLike(const absl::Status& why);

  // [driver] Ends the communicator here, and tells the other ranks the error.
  void Fail(const absl::Status& why);
  // [driver] Ends the communicator because the other ranks go on without this one. If the
  // communicator has ended before, this reason replaces the earlier one.
  void EndAsStale(const absl::Status& why);
  // [driver] Called when the user releases the communicator. If calls are open, ends them on all
  // ranks; otherwise leaves without an error. `what` is the phrase for the error: "destroyed the
  // communicator".
  void Leave(absl::string_view what);

 private:
  // Ends the context with `why`, and tells the other ranks `told`.
  void Conclude(const absl::Status& why, const absl::Status& told);
  void TellMembers(const absl::Status& why, const absl::Status& told);
  // Returns a blame record that names this rank.
  Blame Mine(Phase phase) const;

  EndingOwner& owner_;
  Engine& engine_;
  const CoreConfig& config_;
  const Peers& peers_;
  const FailureWords& words_;
  const OpenCalls& open_;
  CommEnd end_;
  bool left_ = false;  // [driver]
};

}  // namespace entrain
