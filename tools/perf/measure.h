// The loop that every library is measured by: check, warm up, time.
//
// A call is timed from a barrier outside the library to its return; the slowest rank counts; the
// figure is the median over calls. Beside it stands the time of a call when many follow each other
// without a barrier between them (loop_us), which is what nccl-tests times.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
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

// Memory of one rank for the largest case.
class Buffers {
 public:
  // Private pages, touched.
  static absl::StatusOr<Buffers> Allocate(int64_t bytes);
  // Of others, who are told when they are needed no more.
  Buffers(void* in, void* out, std::function<void()> release)
      : in_(in), out_(out), host_in_(in), host_out_(out), release_(std::move(release)) {}
  // The same, where the loop cannot look at them itself: it fills and checks other ones, which `copy` makes the same, in
  // either direction.
  using Copier = std::function<absl::Status(bool to_buffers)>;
  Buffers SeenAs(void* host_in, void* host_out, Copier copy) && {
    host_in_ = host_in;
    host_out_ = host_out;
    copy_ = std::move(copy);
    return std::move(*this);
  }
  Buffers(Buffers&& other) noexcept
      : in_(other.in_),
        out_(other.out_),
        host_in_(other.host_in_),
        host_out_(other.host_out_),
        copy_(std::move(other.copy_)),
        release_(std::exchange(other.release_, nullptr)) {}
  Buffers& operator=(Buffers&&) = delete;
  ~Buffers() {
    if (release_) {
      release_();
    }
  }
  // What calls are given.
  void* in() const { return in_; }
  void* out() const { return out_; }
  // What is filled before PutThere, and looked at after Fetch.
  void* host_in() const { return host_in_; }
  void* host_out() const { return host_out_; }
  absl::Status PutThere() const { return copy_ ? copy_(true) : absl::OkStatus(); }
  absl::Status Fetch() const { return copy_ ? copy_(false) : absl::OkStatus(); }

 private:
  void *in_, *out_, *host_in_, *host_out_;
  Copier copy_;
  std::function<void()> release_;
};

// Collective. About `budget_s` seconds of timed calls, at least three calls.
absl::StatusOr<Figures> Measure(Subject& subject, Meeting& meeting, const Case& measured,
                                const Buffers& buffers, double budget_s);

}  // namespace entrain::perf
