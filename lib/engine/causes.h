// The statuses that have ended communicators of this process and of its peers. If a process loses a
// peer, it may exit because of that. Its other peers would then report this process as the lost
// one. So the process tells its peers the cause before it exits.
//
// Thread safety: none. Used only on the engine's driver.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"

namespace entrain {

class Endpoint;

class Causes {
 public:
  // After Tell, a later failure within this time is taken for a consequence of the cause, so Tell
  // does not replace the cause. If a call succeeds that was started after this time, the process
  // has survived the cause. It then withdraws the cause, and tells the peers so.
  static constexpr int64_t kGoneOnNs = 5 * kSecond;
  // Sends `text` to all peers.
  using TellAll = absl::AnyInvocable<void(const std::string& text)>;

  // The clock must outlive this object.
  Causes(const Clock& clock, TellAll tell_all) : clock_(clock), tell_all_(std::move(tell_all)) {}

  // Tells all peers the status that has ended a communicator in this process. Does nothing if it
  // has told an earlier cause less than kGoneOnNs ago.
  void Tell(const absl::Status& why);
  // Returns true if the peers have been told a cause that has not been withdrawn.
  bool told() const { return !told_.ok(); }
  const absl::Status& cause() const { return told_; }
  // Must be called after a call that was started at `started_ns` has succeeded.
  void Succeeded(int64_t started_ns) {
    if (told() && started_ns - told_at_ns_ > kGoneOnNs) {
      TakeBack();
    }
  }

  // Must be called when this process continues in a communicator without the lost ranks. Withdraws
  // the cause.
  void GoneOn() {
    if (told()) {
      TakeBack();
    }
  }

  // Handles a text that a peer has sent by its TellAll. Ignores the text if it is not a status.
  void Hear(const Endpoint* from, absl::string_view text);
  // Returns the cause that the peer `from` has sent after `since_ns`, or OK if it has sent none or
  // has withdrawn it.
  absl::Status Of(const Endpoint* from, int64_t since_ns) const;

 private:
  struct Heard {
    absl::Status cause;
    int64_t at_ns = 0;
  };
  void TakeBack();

  const Clock& clock_;
  TellAll tell_all_;
  absl::Status told_;
  int64_t told_at_ns_ = 0;
  absl::flat_hash_map<const Endpoint*, Heard> heard_;
};

}  // namespace entrain
