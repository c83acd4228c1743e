// The statuses that have ended communicators of this process and of its peers. A process that has
// lost a peer may exit because of this loss, with or without a message. Its other peers must not
// blame this process, so it first tells them the cause.
//
// Thread safety: none. Belongs to the engine's driver.
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
  // For this time, Tell does not replace a cause, because a later failure may be a consequence of
  // the cause. If a call that was started after this time succeeds, the process has survived the
  // cause. The process then takes the cause back and tells the peers.
  static constexpr int64_t kGoneOnNs = 5 * kSecond;
  // Sends the text to all peers.
  using TellAll = absl::AnyInvocable<void(const std::string& text)>;

  // The clock must outlive this object.
  Causes(const Clock& clock, TellAll tell_all) : clock_(clock), tell_all_(std::move(tell_all)) {}

  // Tells all peers the status that has ended a communicator here. Does nothing if an earlier cause
  // was told less than kGoneOnNs ago.
  void Tell(const absl::Status& why);
  // Returns true if the peers were told a cause and it was not taken back.
  bool told() const { return !told_.ok(); }
  const absl::Status& cause() const { return told_; }
  // Must be called when a call that was started at `started_ns` has succeeded.
  void Succeeded(int64_t started_ns) {
    if (told() && started_ns - told_at_ns_ > kGoneOnNs) {
      TakeBack();
    }
  }

  // Must be called when the process goes on in a communicator without the ranks that were lost. The
  // process has then survived the cause.
  void GoneOn() {
    if (told()) {
      TakeBack();
    }
  }

  // Takes a text that a peer has sent through its TellAll. Ignores the text if it is no status.
  void Hear(const Endpoint* from, absl::string_view text);
  // Returns the cause that the peer has told after `since_ns`, or OK if the peer has told none.
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
