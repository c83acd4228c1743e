#include "tools/perf/measure.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tools/perf/pattern.h"
#include "tools/perf/statistics.h"

namespace entrain::perf {
namespace {

constexpr double kSlowCall = 0.15;  // seconds; calls that take longer are timed three times
constexpr double kWarmShare = 0.1;  // share of the budget
constexpr int kMaxWarm = 50, kMinCalls = 5, kSlowCalls = 3, kBarrierChecks = 8;
constexpr int kMeetings = 200;
constexpr double kLoopBelow = 0.03;  // seconds; for longer calls loop_us only repeats the median

class Run {
 public:
  Run(Subject& subject, Meeting& meeting, const Case& measured, const Buffers& buffers)
      : subject_(subject),
        meeting_(meeting),
        case_(measured),
        pattern_(measured),
        buffers_(buffers),
        in_(buffers.host_in()),
        out_(buffers.host_out()) {}

  absl::StatusOr<Figures> Measure(double budget_s);

 private:
  absl::StatusOr<int64_t> Check();
  absl::StatusOr<int64_t> CheckBarrier();
  absl::Status Call() { return subject_.Run(case_, buffers_.in(), buffers_.out()); }
  absl::Status Fill();
  absl::StatusOr<int64_t> CountWrong();
  // Returns the slowest rank's seconds for one call after a barrier.
  absl::StatusOr<double> Estimate(double enough);
  absl::StatusOr<std::vector<double>> TimeCalls(int calls);
  absl::StatusOr<double> TimeLoop(int calls);
  absl::StatusOr<double> TimeMeeting();

  Subject& subject_;
  Meeting& meeting_;
  const Case case_;
  const Pattern pattern_;
  const Buffers& buffers_;
  void *const in_, *const out_;  // the host's copies
};

double Seconds(int64_t since_ns) {
  return static_cast<double>(Clock::Real().Now() - since_ns) * 1e-9;
}

absl::Status Run::Fill() {
  const int64_t width = SizeOf(case_.dtype);
  const int rank = subject_.rank();
  pattern_.FillInput(rank, in_);
  Pattern::Spoil(out_, case_.out_count() * width);
  if (subject_.in_place(case_)) {
    const int64_t own = case_.collective == CallKind::kAllGather ? rank * case_.count * width : 0;
    std::memcpy(static_cast<std::byte*>(out_) + own, in_,
                static_cast<size_t>(case_.in_count() * width));
  } else if (case_.collective == CallKind::kBroadcast && rank == case_.root) {
    pattern_.FillInput(rank, out_);
  }
  return buffers_.PutThere();
}

// Returns the sum over all ranks.
absl::StatusOr<int64_t> Run::CountWrong() {
  ENTRAIN_RETURN_IF_ERROR(buffers_.Fetch());
  return meeting_.Sum(pattern_.CountWrong(subject_.rank(), out_));
}

absl::StatusOr<int64_t> Run::CheckBarrier() {
  int64_t behind = 0;
  for (int step = 1; step <= kBarrierChecks; ++step) {
    meeting_.Mark(step);
    ENTRAIN_RETURN_IF_ERROR(Call());
    const int now = meeting_.Behind(step);
    behind = now < 0 ? -1 : behind + now;
  }
  ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
  meeting_.Mark(0);
  return behind;
}

absl::StatusOr<int64_t> Run::Check() {
  if (case_.collective == CallKind::kBarrier) {
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t behind, CheckBarrier());
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t sum, meeting_.Sum(std::max<int64_t>(behind, 0)));
    return behind < 0 ? -1 : sum;
  }
  ENTRAIN_RETURN_IF_ERROR(Fill());
  ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
  ENTRAIN_RETURN_IF_ERROR(Call());
  return CountWrong();
}

absl::StatusOr<double> Run::Estimate(double enough) {
  double best = 1e9;
  for (int k = 0; k < 3; ++k) {
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    const int64_t start = Clock::Real().Now();
    ENTRAIN_RETURN_IF_ERROR(Call());
    double took = Seconds(start);
    ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest({&took, 1}));
    best = std::min(best, took);
    if (best > enough) {
      break;
    }
  }
  return std::max(best, 1e-8);
}

absl::StatusOr<std::vector<double>> Run::TimeCalls(int calls) {
  std::vector<double> times(static_cast<size_t>(calls));
  for (double& time : times) {
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    const int64_t start = Clock::Real().Now();
    ENTRAIN_RETURN_IF_ERROR(Call());
    time = Seconds(start);
  }
  ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest(absl::MakeSpan(times)));
  return times;
}

absl::StatusOr<double> Run::TimeLoop(int calls) {
  ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
  const int64_t start = Clock::Real().Now();
  for (int i = 0; i < calls; ++i) {
    ENTRAIN_RETURN_IF_ERROR(Call());
  }
  double time = Seconds(start) / calls;
  ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest({&time, 1}));
  return time;
}

absl::StatusOr<double> Run::TimeMeeting() {
  ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
  const int64_t start = Clock::Real().Now();
  for (int i = 0; i < kMeetings; ++i) {
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
  }
  return Seconds(start) / kMeetings;
}

absl::StatusOr<Figures> Run::Measure(double budget_s) {
  Figures figures;
  ENTRAIN_ASSIGN_OR_RETURN(figures.wrong, Check());
  const bool in_place = subject_.in_place(case_);
  if (in_place) {
    // In place, sums grow from call to call. Starting from zeros, they stay finite.
    std::memset(out_, 0, static_cast<size_t>(case_.bytes));
    ENTRAIN_RETURN_IF_ERROR(buffers_.PutThere());
  }
  ENTRAIN_ASSIGN_OR_RETURN(const double estimate, Estimate(budget_s));
  const int warm =
      estimate > budget_s
          ? 0
          : static_cast<int>(std::clamp<double>(budget_s * kWarmShare / estimate, 1, kMaxWarm));
  for (int i = 0; i < warm; ++i) {
    ENTRAIN_RETURN_IF_ERROR(Call());
  }
  const int calls =
      estimate > kSlowCall
          ? kSlowCalls
          : static_cast<int>(std::clamp<double>(budget_s / estimate, kMinCalls, kMaxCalls));
  double before = 0, after = 0;
  if (meeting_.spins()) {
    ENTRAIN_ASSIGN_OR_RETURN(before, TimeMeeting());
  }
  ENTRAIN_ASSIGN_OR_RETURN(std::vector<double> times, TimeCalls(calls));
  if (meeting_.spins()) {
    ENTRAIN_ASSIGN_OR_RETURN(after, TimeMeeting());
    figures.meet_us = std::max(before, after) * 1e6;
  }
  const double share = case_.time_share() * 1e6;
  const Sample sample(std::move(times));
  figures.calls = calls;
  figures.median_us = sample.median() * share;
  figures.min_us = sample.least() * share;
  figures.p95_us = sample.percentile(95) * share;
  figures.loop_us = figures.median_us;
  if (estimate < kLoopBelow) {
    ENTRAIN_ASSIGN_OR_RETURN(const double loop, TimeLoop(calls));
    figures.loop_us = loop * share;
  }
  figures.algbw_gbs = static_cast<double>(case_.bytes) / figures.median_us * 1e-3;
  figures.busbw_gbs = figures.algbw_gbs * case_.bus_factor();
  if (!in_place && case_.collective != CallKind::kBarrier) {
    // The result of the last call must also be right.
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t late, CountWrong());
    figures.wrong += late;
  }
  return figures;
}

}  // namespace

absl::StatusOr<Buffers> Buffers::Allocate(int64_t bytes) {
  const size_t size = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + 4095) / 4096 * 4096;
  void* const memory =
      mmap(nullptr, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate two buffers of ", bytes, " bytes"));
  }
  std::memset(memory, 0, 2 * size);
  return Buffers(memory, static_cast<std::byte*>(memory) + size,
                 [memory, size] { munmap(memory, 2 * size); });
}

absl::StatusOr<Figures> Measure(Subject& subject, Meeting& meeting, const Case& measured,
                                const Buffers& buffers, double budget_s) {
  ENTRAIN_RETURN_IF_ERROR(subject.Prepare(measured, buffers.in(), buffers.out()));
  return Run(subject, meeting, measured, buffers).Measure(budget_s);
}

}  // namespace entrain::perf
