#include "transports/fault/fault_link.h"

#include <algorithm>
#include <cmath>

namespace entrain {

void FaultLink::Place(Frame& frame, int64_t start_ns) {
  frame.start_ns = start_ns;
  free_ns_ = frame.end_ns();
  frame.due_ns =
      std::max(frame.lane->last_due_ns, frame.end_ns() + plan_.latency_ns + frame.jitter_ns);
  frame.lane->last_due_ns = frame.due_ns;
}

void FaultLink::Post(FaultLane* lane, const Envelope& envelope, ConstBytes bytes,
                     Completion* done) {
  Frame& frame = frames_.emplace_back(Frame{lane, envelope, bytes, done, 0, 0});
  if (plan_.bytes_per_second > 0) {
    frame.wire_ns = static_cast<int64_t>(std::ceil(static_cast<double>(bytes.size()) * 1e9 /
                                                   static_cast<double>(plan_.bytes_per_second)));
  }
  if (plan_.jitter_ns > 0) {
    frame.jitter_ns = std::uniform_int_distribution<int64_t>(0, plan_.jitter_ns)(random_);
  }
  Place(frame, std::max(clock_.Now(), free_ns_));
}

int FaultLink::HandOver() {
  if (frames_.empty()) {
    return 0;
  }
  const int64_t now = clock_.Now();
  int handed = 0;
  // Because of jitter a later message may be due before an earlier one. But no message is due
  // before its own end_ns() plus the latency, and these times ascend. So the loop may stop early.
  for (size_t i = 0; i < frames_.size() && frames_[i].end_ns() + plan_.latency_ns <= now;) {
    if (frames_[i].due_ns > now) {
      ++i;
      continue;
    }
    const Frame frame = frames_[i];
    frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(i));
    frame.lane->to->PostSend(frame.envelope, frame.bytes, frame.done);
    ++handed;
  }
  return handed;
}

Deadline FaultLink::next() const {
  Deadline first;
  for (const Frame& frame : frames_) {
    if (frame.end_ns() + plan_.latency_ns >= first.at_ns) {
      break;
    }
    first = std::min(first, Deadline{frame.due_ns});
  }
  return first;
}

void FaultLink::Drop(FaultLane* lane, std::optional<Context> of, const absl::Status& why,
                     CompletionList* completions) {
  const size_t before = frames_.size();
  frames_.erase(
      std::remove_if(frames_.begin(), frames_.end(),
                     [&](const Frame& frame) {
                       if (frame.lane != lane || (of && frame.envelope.tag.context() != *of)) {
                         return false;
                       }
                       completions->Add(frame.done, why, 0);
                       return true;
                     }),
      frames_.end());
  if (frames_.size() == before) {
    return;
  }
  // Messages that have started keep their times. For the other messages the link is now free
  // earlier.
  const int64_t now = clock_.Now();
  free_ns_ = std::min(free_ns_, now);
  for (Frame& frame : frames_) {
    if (frame.start_ns > now) {
      frame.lane->last_due_ns = 0;
    }
  }
  for (Frame& frame : frames_) {
    if (frame.start_ns <= now) {
      free_ns_ = std::max(free_ns_, frame.end_ns());
      frame.lane->last_due_ns = std::max(frame.lane->last_due_ns, frame.due_ns);
    } else {
      Place(frame, std::max(free_ns_, now));
    }
  }
}

}  // namespace entrain
