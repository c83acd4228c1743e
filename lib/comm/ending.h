// Ends a communicator, once. Every end with an error goes through the function Conclude. The first
// error counts, except that the error of EndAsStale replaces an earlier error. Conclude sends the
// error to the members, and to the peers of the process's other communicators. From then on the
// engine drops messages of the context, and open calls end with the error.
//
// Thread safety: any thread, except for functions marked [driver].
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/comm/comm_end.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/engine.h"

namespace entrain {

class Ending {
 public:
  // All arguments must outlive this object.
  Ending(CommShell& shell, Engine& engine, const CoreConfig& config, const Peers& peers,
         const FailureWords& words, const OpenCalls& open);

  const CommEnd& end() const { return end_; }
  bool ended() const { return end_.ended(); }
  absl::Status status() const { return end_.status(); }

  // Ends the communicator on all ranks at the caller's request. Does not wait.
  void Abort(absl::string_view reason);
  // Ends the communicator on all ranks because of an error on this rank. Does not wait. `leaves`:
  // the user also releases the communicator.
  void EndHere(const absl::Status& why, bool leaves = false);
  // Ends the communicator on all ranks because of an error outside this communicator. Returns after
  // it has told the other ranks.
  void EndWith(const absl::Status& why);
  // Ends the communicator on all ranks because `parent`, the communicator from which this one was
  // made, has ended. Does not wait.
  void EndLike(const Ending& parent);

  // [driver] Ends the communicator on this rank, and sends the error to the other ranks.
  void Fail(const absl::Status& why);
  // [driver] Ends the communicator because the other ranks go on without this rank. If the
  // communicator has already ended, `why` replaces the earlier error.
  void EndAsStale(const absl::Status& why);
  // [driver] Must be called when the user releases the communicator. If calls are open, ends them
  // on all ranks. Otherwise leaves without an error. `what`: a phrase for the error, for example
  // "destroyed the communicator".
  void Leave(absl::string_view what);

 private:
  // Ends the context with `why`, and sends `told` to the other ranks.
  void Conclude(const absl::Status& why, const absl::Status& told);
  void TellMembers(const absl::Status& why, const absl::Status& told);
  // Fails later on the driver, with the status that was set. `leaves`: also leaves.
  void FailSoon(bool leaves);
  // Returns a record that blames this rank.
  Blame Mine(Phase phase) const;

  CommShell& shell_;
  Engine& engine_;
  const CoreConfig& config_;
  const Peers& peers_;
  const FailureWords& words_;
  const OpenCalls& open_;
  CommEnd end_;
  bool left_ = false;  // [driver]
};

}  // namespace entrain
