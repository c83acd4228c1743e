#include "collectives/cost.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "collectives/timeline.h"

namespace entrain {
namespace {

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

bool AreApart(absl::Span<const int> hosts, int a, int b) {
  return !hosts.empty() && hosts[At(a)] != hosts[At(b)];
}

absl::Span<const Transfer> TransfersOf(const Schedule& schedule, const Round& round) {
  return absl::MakeSpan(schedule.transfers).subspan(round.first_transfer, round.transfers);
}

// Adds what one round moves. Whether it crosses hosts.
bool AddTransfers(const Schedule& schedule, const Lane& lane, const Round& round,
                  const Layout& layout, absl::Span<const int> hosts, Cost* elements) {
  bool crosses = false;
  for (const Transfer& transfer : TransfersOf(schedule, round)) {
    const bool apart = AreApart(hosts, schedule.spec.rank, transfer.peer);
    const int64_t count = ElementsOf(schedule, lane, layout, transfer.region);
    crosses |= apart;
    if (transfer.direction == Direction::kSend) {
      ++elements->messages;
      elements->bytes_sent += count;
      elements->bytes_sent_across += apart ? count : 0;
    } else {
      elements->bytes_received += count;
      elements->bytes_received_across += apart ? count : 0;
    }
  }
  return crosses;
}

// On a clock that only messages move, by one; across_only: only those between hosts.
int CountHops(absl::Span<const Schedule> schedules, absl::Span<const int> hosts,
              const Layout& layout, bool across_only) {
  MachineModel machine;
  machine.inside.latency_ps = across_only ? 0 : 1;
  machine.across.latency_ps = 1;
  machine.inside.eager_bytes = machine.across.eager_bytes = std::numeric_limits<int64_t>::max();
  int lanes = 1;
  for (const Schedule& schedule : schedules) {
    lanes = std::max(lanes, static_cast<int>(schedule.lanes.size()));
  }
  return static_cast<int>(RunTimeline(schedules, hosts, layout, 1, lanes, machine));
}

void TakeLarger(Cost* worst, const Cost& cost) {
  worst->rounds = std::max(worst->rounds, cost.rounds);
  worst->messages = std::max(worst->messages, cost.messages);
  worst->bytes_sent = std::max(worst->bytes_sent, cost.bytes_sent);
  worst->bytes_received = std::max(worst->bytes_received, cost.bytes_received);
  worst->bytes_sent_across = std::max(worst->bytes_sent_across, cost.bytes_sent_across);
  worst->bytes_received_across = std::max(worst->bytes_received_across, cost.bytes_received_across);
  worst->reduced_elements = std::max(worst->reduced_elements, cost.reduced_elements);
  worst->reduced_bytes = std::max(worst->reduced_bytes, cost.reduced_bytes);
  worst->scratch_bytes = std::max(worst->scratch_bytes, cost.scratch_bytes);
}

}  // namespace

Cost CountCost(const Schedule& schedule, const Layout& layout, int64_t element_bytes,
               absl::Span<const int> hosts) {
  Cost cost;  // bytes are counted as elements first
  for (const Lane& lane : schedule.lanes) {
    int across = 0;
    for (uint32_t r = 0; r < lane.rounds; ++r) {
      const Round& round = schedule.rounds[lane.first_round + r];
      across += AddTransfers(schedule, lane, round, layout, hosts, &cost) ? 1 : 0;
      for (uint32_t i = 0; i < round.ops; ++i) {
        const LocalOp& op = schedule.ops[round.first_op + i];
        cost.reduced_elements +=
            ElementsOf(schedule, lane, layout, op.dst) * (int64_t{op.operands} - 1);
      }
    }
    cost.rounds = std::max(cost.rounds, static_cast<int>(lane.rounds));
    cost.hops_across = std::max(cost.hops_across, across);
  }
  for (const int32_t like : schedule.scratch_like) {
    cost.scratch_bytes += layout.elements(like);
  }
  cost.hops = cost.rounds;
  cost.reduced_bytes = cost.reduced_elements;
  for (int64_t* figure : {&cost.bytes_sent, &cost.bytes_received, &cost.bytes_sent_across,
                          &cost.bytes_received_across, &cost.reduced_bytes, &cost.scratch_bytes}) {
    *figure *= element_bytes;
  }
  return cost;
}

Cost CountWorstCost(const Algorithm& algorithm, const Spec& spec, absl::Span<const int> hosts,
                    const Layout& layout, int64_t element_bytes) {
  Cost worst;
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < spec.size; ++rank) {
    Spec of_rank = spec;
    of_rank.rank = rank;
    schedules.push_back(algorithm.build(of_rank, hosts));
    TakeLarger(&worst, CountCost(schedules.back(), layout, element_bytes, hosts));
  }
  worst.hops = CountHops(schedules, hosts, layout, /*across_only=*/false);
  worst.hops_across = CountHops(schedules, hosts, layout, /*across_only=*/true);
  return worst;
}

}  // namespace entrain
