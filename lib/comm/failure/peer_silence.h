// A failure detector. It stores when each rank was last heard. It decides when a rank that sends
// nothing counts as silent, and when this rank must send a question to the other ranks. PeerSilence
// is a pure state machine without I/O and clock. The agreement on the remaining ranks (survivors.h)
// uses PeerSilence.
//
// While this process is stopped, it does not hear its peers. So if no event came for half of the
// allowed silence, this interval does not count as silence of the peers. Inquiry (inquiry.h) uses it
// for open calls.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/clock.h"

namespace entrain {

class PeerSilence {
 public:
  static constexpr int64_t kQuestionsPerSilence = 4;

  // The ranks are 0 to size - 1.
  explicit PeerSilence(int size) : heard_ns_(static_cast<size_t>(size), 0) {}

  // Must be called when this rank asks the other ranks and begins to wait for them. From then on, a
  // rank that sends nothing for `allowed_ns` counts as silent.
  void Begin(int64_t now_ns, int64_t allowed_ns);
  // Must be called at every event, before the event is handled.
  void OnEvent(int64_t now_ns);
  // Must be called when a message from the rank has come.
  void OnHeard(int rank, int64_t now_ns) { heard_ns_[static_cast<size_t>(rank)] = now_ns; }
  // Returns true if this rank must ask the other ranks now. The next question is then due after a
  // quarter of the allowed silence.
  bool TakeQuestion(int64_t now_ns);

  // Returns the time of the next question.
  Deadline ask_at() const { return {ask_at_ns_}; }
  // Returns the time at which the rank counts as silent if it sends nothing before that time.
  Deadline SilentAt(int rank) const;

 private:
  int64_t allowed_ns_ = 0;
  int64_t ask_at_ns_ = 0;
  int64_t awake_since_ns_ = 0;  // this process has run without a long stop since this time
  int64_t last_event_ns_ = 0;
  std::vector<int64_t> heard_ns_;  // by rank
};

}  // namespace entrain
