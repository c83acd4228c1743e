// What has ended communicators of this process, and of its peers. A process that has lost a peer may end because of
// that, with a word or without, and its own peers must not blame it: it tells them the cause first.
//
// Thread safety: none; the engine's driver.
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
  // The first cause counts for so long, since what fails then may fail because of it. When a call succeeds that was
  // started that much later, this process has survived the cause, and the peers are told so.
  static constexpr int64_t kGoneOnNs = 5 * kSecond;
  // Sends the text to all peers.
  using TellAll = absl::AnyInvocable<void(const std::string& text)>;

  // The clock outlives it.
  Causes(const Clock& clock, TellAll tell_all) : clock_(clock), tell_all_(std::move(tell_all)) {}

  // Tells all peers what has ended a communicator here, unless an earlier cause counts.
  void Tell(const absl::Status& why);
  // A cause counts here.
  bool told() const { return !told_.ok(); }
  const absl::Status& cause() const { return told_; }
  // A call that was started at that time has succeeded.
  void Succeeded(int64_t started_ns) {
    if (told() && started_ns - told_at_ns_ > kGoneOnNs) {
      TakeBack();
    }
  }

  // A peer's text, as its TellAll has got it. A text that is no status is ignored.
  void Hear(const Endpoint* from, absl::string_view text);
  // What the peer has told, if it did so after `since_ns`; OK: nothing.
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
