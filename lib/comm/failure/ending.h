// Decides how a communicator ends: with which error, and what the other ranks learn of it. Ending
// is a pure state machine without I/O and clock. CommCore performs what Ending decides. The first
// error counts, except that the error of EndAsStale replaces an earlier error.
//
// The end has two steps. First, any thread sets the error (Abort, EndHere, EndWith, EndLike). From
// then on end() shows it to all threads, so no call starts. Second, the driver decides by Fail what
// has to be done, and does it before it does anything else: until then, peers may read and write
// the buffers of open calls. So the results of the [driver] functions must not be dropped or
// delayed.
//
// Thread safety: any thread, except for functions marked [driver].
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/comm/core_config.h"
#include "lib/comm/failure/comm_end.h"
#include "lib/comm/failure/failure_words.h"
#include "lib/comm/open_calls.h"

namespace entrain {

class Ending {
 public:
  // What the driver must do at the end with an error: end the context and all calls with `why`, and
  // send `told` to the members and to the peers of the process's other communicators.
  struct End {
    absl::Status why, told;
  };
  // What the driver must do when the user releases the communicator: perform `end`, tell the
  // members that this rank has left, and close the context.
  struct Farewell {
    std::optional<End> end;
    // Not OK: the communicator has not ended with an error. The members' transfers end with this
    // status.
    absl::Status quietly;
  };

  // All arguments must outlive this object.
  Ending(const CoreConfig& config, const FailureWords& words) : config_(config), words_(words) {}

  const CommEnd& end() const { return end_; }
  bool ended() const { return end_.ended(); }
  absl::Status status() const { return end_.status(); }

  // Sets an error that this rank's user wishes.
  void Abort(absl::string_view reason);
  // Sets an error of this rank.
  void EndHere(const absl::Status& why);
  // Sets an error from outside this communicator.
  void EndWith(const absl::Status& why);
  // Sets the error of `parent`, the communicator from which this one was made.
  void EndLike(const Ending& parent);

  // ---- [driver]
  // Returns true if the driver has ended or left the communicator.
  bool over() const { return over_; }
  // Ends the communicator with `why`, unless another error was set before. `cause`: the failure
  // that has ended another communicator of this process before, or OK. Returns nullopt if the
  // communicator is over.
  [[nodiscard]] std::optional<End> Fail(const absl::Status& why, const absl::Status& cause);
  // Ends the communicator because the other ranks go on without this rank. If the communicator has
  // already ended, `why` replaces the earlier error.
  [[nodiscard]] std::optional<End> EndAsStale(const absl::Status& why);
  // Must be called when the user releases the communicator. If calls are open, ends them on all
  // ranks. Otherwise leaves without an error. `what`: a phrase for the error, for example
  // "destroyed the communicator". Returns nullopt if this rank has left before.
  [[nodiscard]] std::optional<Farewell> Leave(absl::string_view what, const OpenCalls& open,
                                              const absl::Status& cause);

 private:
  // Returns a record that blames this rank.
  Blame Mine(Phase phase) const;

  const CoreConfig& config_;
  const FailureWords& words_;
  CommEnd end_;
  bool over_ = false, left_ = false;  // [driver]
};

}  // namespace entrain
