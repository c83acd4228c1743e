// The loop that measures every library: check, warm up, time.
//
// A call is timed from a barrier outside the library to its return. The time of the slowest rank
// counts, and the figure is the median over calls. A second figure, loop_us, is the time of a call
// when many calls follow each other without a barrier between them. nccl-tests measures this second
// figure.
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
  int calls = 0;  // number of timed calls
  double median_us = 0, min_us = 0, p95_us = 0, loop_us = 0;
  double algbw_gbs = 0, busbw_gbs = 0;  // 1e9 bytes a second, from the median
  // The time of a meeting of the ranks, without the measured library. The ranks meet once before
  // the calls and once after them; the longer time counts. It shows how far apart the cores were. A
  // virtual machine may be moved to cores that are far apart, and small calls then take several
  // times as long for a while. -1 if ranks do not spin in the meeting, because the time then does
  // not show the distance.
  double meet_us = -1;
  int64_t wrong = 0;  // number of elements over all ranks; -1: could not be checked
};

// The memory of one rank for the largest case.
class Buffers {
 public:
  // Allocates private pages and touches them.
  static absl::StatusOr<Buffers> Allocate(int64_t bytes);
  // Wraps memory of another owner. `release` tells the owner that the memory is not needed any
  // more.
  Buffers(void* in, void* out, std::function<void()> release)
      : in_(in), out_(out), host_in_(in), host_out_(out), release_(std::move(release)) {}
  // For buffers that the loop cannot read or write itself: the loop fills and checks the host
  // buffers, and `copy` copies from the host buffers to the buffers, or back.
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
  // The buffers for the calls.
  void* in() const { return in_; }
  void* out() const { return out_; }
  // The buffers that the loop fills before PutThere, and checks after Fetch.
  void* host_in() const { return host_in_; }
  void* host_out() const { return host_out_; }
  absl::Status PutThere() const { return copy_ ? copy_(true) : absl::OkStatus(); }
  absl::Status Fetch() const { return copy_ ? copy_(false) : absl::OkStatus(); }

 private:
  void *in_, *out_, *host_in_, *host_out_;
  Copier copy_;
  std::function<void()> release_;
};

// Measures a case. Collective. Times calls for about `budget_s` seconds, and at least three calls.
absl::StatusOr<Figures> Measure(Subject& subject, Meeting& meeting, const Case& measured,
                                const Buffers& buffers, double budget_s);

}  // namespace entrain::perf
