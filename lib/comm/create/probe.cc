#include "lib/comm/create/probe.h"

#include <algorithm>
#include <vector>

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int kSmallRounds = 64, kLargeRounds = 4, kWarmRounds = 8;
constexpr int64_t kSmallBytes = 8, kLargeBytes = 1 << 20;

// The values that one rank has measured for one kind of link. 0: the rank has no partner on such a
// link.
struct Seen {
  double latency_us = 0, gbs = 0;
};

class PingPong {
 public:
  PingPong(Communicator& comm, const CallOptions& options)
      : comm_(comm), options_(options), buffer_(static_cast<size_t>(kLargeBytes)) {}

  // Measures the link to this rank's partner in the group. Members 0 and 1 are partners, members 2
  // and 3 are partners, and so on. Returns zeros if this rank has no partner.
  absl::StatusOr<Seen> With(const Group& group) {
    const int partner = group.me ^ 1;
    if (partner >= group.size()) {
      return Seen();
    }
    const int peer = group.ranks[static_cast<size_t>(partner)];
    ENTRAIN_RETURN_IF_ERROR(Best(peer, kSmallBytes, kWarmRounds).status());
    ENTRAIN_ASSIGN_OR_RETURN(const double small, Best(peer, kSmallBytes, kSmallRounds));
    ENTRAIN_ASSIGN_OR_RETURN(const double large, Best(peer, kLargeBytes, kLargeRounds));
    return Seen{small * 1e6,
                static_cast<double>(kLargeBytes) * 1e-9 / std::max(large - small, 1e-7)};
  }

 private:
  // Returns the time of one message in seconds: half of the fastest round trip.
  absl::StatusOr<double> Best(int peer, int64_t bytes, int rounds) {
    double best = 1e9;
    const bool first = comm_.rank() < peer;
    for (int i = 0; i < rounds; ++i) {
      const int64_t start = Clock::Real().Now();
      ENTRAIN_RETURN_IF_ERROR(Move(first ? CallKind::kSend : CallKind::kRecv, peer, bytes));
      ENTRAIN_RETURN_IF_ERROR(Move(first ? CallKind::kRecv : CallKind::kSend, peer, bytes));
      best = std::min(best, static_cast<double>(Clock::Real().Now() - start) * 0.5e-9);
    }
    return best;
  }

  absl::Status Move(CallKind kind, int peer, int64_t bytes) {
    Call call;
    call.kind = kind;
    call.in = call.out = {buffer_.data(), bytes, MemoryKind::kHost};
    call.count = bytes;
    call.root = peer;
    call.options = options_;
    return comm_.Run(call);
  }

  Communicator& comm_;
  const CallOptions options_;
  std::vector<char> buffer_;
};

// Replaces the latency and the two rates of `figures` by measured values. The measured latency of a
// message includes the work of sender and receiver (message_us for each). Only one rate was
// measured, so the two rates are scaled by the same factor.
void Apply(const Seen& seen, LinkFigures* figures) {
  if (seen.gbs <= 0) {
    return;
  }
  figures->message_us = std::min(figures->message_us, seen.latency_us / 4);
  figures->latency_us = seen.latency_us - 2 * figures->message_us;
  const double were = std::min(figures->gbs, figures->host_gbs);
  for (double* gbs : {&figures->gbs, &figures->host_gbs}) {
    *gbs *= seen.gbs / were;
  }
}

}  // namespace

absl::StatusOr<CostModel> ProbeLinks(Communicator& comm, const CostModel& from, const Paths& paths,
                                     const CallOptions& options) {
  PingPong ping_pong(comm, options);
  ENTRAIN_ASSIGN_OR_RETURN(const Seen inside, ping_pong.With(comm.topology().Local(comm.rank())));
  ENTRAIN_ASSIGN_OR_RETURN(const Seen across, ping_pong.With(comm.topology().Across(comm.rank())));
  const Seen mine[2] = {inside, across};
  constexpr int64_t kDoubles = 2 * (sizeof(Seen) / sizeof(double));
  std::vector<Seen> all(2 * static_cast<size_t>(comm.size()));
  ENTRAIN_RETURN_IF_ERROR(comm.AllGather(mine, all.data(), kDoubles, DType::kF64, options));
  Seen worst[2];
  for (size_t i = 0; i < all.size(); ++i) {
    Seen& one = worst[i % 2];
    one.latency_us = std::max(one.latency_us, all[i].latency_us);
    one.gbs = one.gbs <= 0 ? all[i].gbs : all[i].gbs <= 0 ? one.gbs : std::min(one.gbs, all[i].gbs);
  }
  LinkFigures figures[2] = {from.inside, from.across};
  Apply(worst[0], &figures[0]);
  Apply(worst[1], &figures[1]);
  return CostModel(Crowd::Of(comm.topology().host_of), paths, figures[0], figures[1]);
}

}  // namespace entrain
