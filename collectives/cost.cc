#include "collectives/cost.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

namespace entrain {
namespace {

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

bool AreApart(absl::Span<const int> hosts, int a, int b) {
  return !hosts.empty() && hosts[At(a)] != hosts[At(b)];
}

int64_t ElementsOf(const Schedule& schedule, const Lane& lane, const Layout& layout,
                   const Region& region) {
  int64_t elements = 0;
  for (int i = 0; i < region.blocks; ++i) {
    elements +=
        layout.elements(region.slot == Slot::kScratch
                            ? schedule.scratch_like[lane.first_scratch + At(region.first + i)]
                            : region.first + i);
  }
  return elements;
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

// All ranks' lanes run against each other on a clock that only messages move.
class LogicalClock {
 public:
  // `across_only`: messages inside a host take no time.
  LogicalClock(absl::Span<const Schedule> schedules, absl::Span<const int> hosts, bool across_only)
      : schedules_(schedules), hosts_(hosts), across_only_(across_only) {}

  // When the last lane ends.
  int Run() {
    struct Running {
      int rank, lane;
      uint32_t round = 0;
      int now = 0;
      bool posted = false;
    };
    std::vector<Running> running;
    for (size_t rank = 0; rank < schedules_.size(); ++rank) {
      for (size_t lane = 0; lane < schedules_[rank].lanes.size(); ++lane) {
        running.push_back({static_cast<int>(rank), static_cast<int>(lane)});
      }
    }
    int end = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (Running& one : running) {
        const Schedule& schedule = schedules_[At(one.rank)];
        const Lane& lane = schedule.lanes[At(one.lane)];
        while (one.round < lane.rounds) {
          const Round& round = schedule.rounds[lane.first_round + one.round];
          if (!one.posted) {
            Post(one.rank, one.lane, round, one.now);
            one.posted = true;
          }
          if (!Arrive(one.rank, one.lane, round, &one.now)) {
            break;
          }
          one.posted = false;
          ++one.round;
          moved = true;
        }
        end = std::max(end, one.now);
      }
    }
    return end;
  }

 private:
  using Channel = std::tuple<int, int, int>;  // from, to, lane

  void Post(int rank, int lane, const Round& round, int now) {
    for (const Transfer& transfer : TransfersOf(schedules_[At(rank)], round)) {
      if (transfer.direction == Direction::kSend) {
        const int takes = !across_only_ || AreApart(hosts_, rank, transfer.peer) ? 1 : 0;
        sent_[{rank, transfer.peer, lane}].push_back(now + takes);
      }
    }
  }

  // False: something has not been sent yet, and nothing changed.
  bool Arrive(int rank, int lane, const Round& round, int* now) {
    std::map<Channel, size_t> taken;
    int last = *now;
    for (const Transfer& transfer : TransfersOf(schedules_[At(rank)], round)) {
      if (transfer.direction == Direction::kRecv) {
        const Channel channel{transfer.peer, rank, lane};
        const size_t index = received_[channel] + taken[channel]++;
        const std::vector<int>& sent = sent_[channel];
        if (index >= sent.size()) {
          return false;
        }
        last = std::max(last, sent[index]);
      }
    }
    for (const auto& [channel, messages] : taken) {
      received_[channel] += messages;
    }
    *now = last;
    return true;
  }

  absl::Span<const Schedule> schedules_;
  absl::Span<const int> hosts_;
  const bool across_only_;
  std::map<Channel, std::vector<int>> sent_;  // arrival times
  std::map<Channel, size_t> received_;
};

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
  worst.hops = LogicalClock(schedules, hosts, /*across_only=*/false).Run();
  worst.hops_across = LogicalClock(schedules, hosts, /*across_only=*/true).Run();
  return worst;
}

double EstimateSeconds(const Cost& cost, const LinkModel& link) {
  return cost.hops * link.latency_s + static_cast<double>(cost.messages) * link.message_s +
         static_cast<double>(std::max(cost.bytes_sent, cost.bytes_received)) / link.bytes_per_s +
         static_cast<double>(cost.reduced_bytes) / link.reduce_bytes_per_s;
}

double EstimateSeconds(const Cost& cost, const LinkModel& inside, const LinkModel& across) {
  Cost within = cost;
  within.hops -= cost.hops_across;
  within.bytes_sent -= cost.bytes_sent_across;
  within.bytes_received -= cost.bytes_received_across;
  return EstimateSeconds(within, inside) + cost.hops_across * across.latency_s +
         static_cast<double>(std::max(cost.bytes_sent_across, cost.bytes_received_across)) /
             across.bytes_per_s;
}

}  // namespace entrain
