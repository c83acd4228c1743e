// The loop that every library is measured by: check, warm up, time.
//
// A call is timed from a barrier outside the library to its return; the slowest rank counts; the
// figure is the median over calls. Beside it stands the time of a call when many follow each other
// without a barrier between them (loop_us), which is what nccl-tests times.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/statusor.h"

#include "tools/perf/measured_case.h"
#include "tools/perf/meeting.h"

namespace entrain::perf {

struct Figures {
  int calls = 0;  // that were timed
  double median_us = 0, min_us = 0, p95_us = 0, loop_us = 0;
  double algbw_gbs = 0, busbw_gbs = 0;  // 1e9 bytes a second, from the median
  // A meeting of the ranks outside the library, the slower of one before and one after the calls: how
  // far apart the cores were. Virtual machines are moved, and what is small takes several times as
  // long for a while. -1 where meeting says nothing about that, since ranks do not spin.
  double meet_us = -1;
  int64_t wrong = 0;  // elements, over all ranks; -1: could not be checked
};

// Memory of one rank for the largest case: private pages, touched, reused.
class Buffers {
 public:
  static absl::StatusOr<Buffers> Allocate(int64_t bytes);
  // Of others, who are told when they are needed no more.
  Buffers(void* in, void* out, std::function<void()> release)
      : in_(in), out_(out), release_(std::move(release)) {}
  Buffers(Buffers&& other) noexcept
      : in_(other.in_), out_(other.out_), release_(std::exchange(other.release_, nullptr)) {}
  Buffers& operator=(Buffers&&) = delete;
  ~Buffers() {
    if (release_) {
      release_();
    }
  }
  void* in() const { return in_; }
  void* out() const { return out_; }

 private:
  void *in_, *out_;
  std::function<void()> release_;
};

// Collective. About `budget_s` seconds of timed calls, at least three calls.
absl::StatusOr<Figures> Measure(Subject& subject, Meeting& meeting, const Case& measured,
                                const Buffers& buffers, double budget_s);

}  // namespace entrain::perf
