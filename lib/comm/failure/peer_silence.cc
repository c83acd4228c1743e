#include "lib/comm/failure/peer_silence.h"

#include <algorithm>

namespace entrain {

void PeerSilence::Begin(int64_t now_ns, int64_t allowed_ns) {
  allowed_ns_ = allowed_ns;
  awake_since_ns_ = last_event_ns_ = now_ns;
  ask_at_ns_ = now_ns + allowed_ns_ / kQuestionsPerSilence;
}

void PeerSilence::OnEvent(int64_t now_ns) {
  if (now_ns - last_event_ns_ > allowed_ns_ / 2) {
    awake_since_ns_ = now_ns;
  }
  last_event_ns_ = now_ns;
}

bool PeerSilence::TakeQuestion(int64_t now_ns) {
  if (!ask_at().Passed(now_ns)) {
    return false;
  }
  ask_at_ns_ = now_ns + allowed_ns_ / kQuestionsPerSilence;
  return true;
}

Deadline PeerSilence::SilentAt(int rank) const {
  return {std::max(heard_ns_[static_cast<size_t>(rank)], awake_since_ns_) + allowed_ns_};
}

}  // namespace entrain
