#include "collectives/cost.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <utility>
#include <vector>

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

// Adds the transfers of one round to `*elements`. Returns true if any transfer has its peer on
// another host.
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

int64_t Picos(int64_t bytes, int64_t fs) {
  return bytes * fs / 1000;
}

// Simulates one lane on all ranks. Every rank runs its rounds in order. In a round, a rank first
// sends its messages. When all messages to it have arrived, it processes them in the order of
// arrival. Then it combines.
class LaneWalk {
 public:
  LaneWalk(absl::Span<const Schedule> schedules, absl::Span<const int> hosts, const Layout& layout,
           int64_t element_bytes, const MachineCost& machine)
      : schedules_(schedules),
        layout_(layout),
        element_bytes_(element_bytes),
        machine_(machine),
        ranks_(schedules.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].host = hosts.empty() ? 0 : At(hosts[r]);
      hosts_.resize(std::max(hosts_.size(), ranks_[r].host + 1));
      ++hosts_[ranks_[r].host].ranks;
    }
  }

  LaneCost Run() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Post(r);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        while (FinishRound(r)) {
          moved = true;
        }
      }
    }
    LaneCost cost;
    for (const Rank& rank : ranks_) {
      cost.first_ps = std::max(cost.first_ps, rank.clock);
      cost.next_ps = std::max(cost.next_ps, rank.work);
      hosts_[rank.host].work += rank.work;
    }
    for (const Host& host : hosts_) {
      cost.next_ps = std::max({cost.next_ps, Crowded(host) ? host.work / machine_.cores : 0,
                               host.memory, host.out, host.in});
    }
    cost.first_ps = std::max(cost.first_ps, cost.next_ps);
    return cost;
  }

 private:
  struct Message {
    int64_t there, bytes;
    const LinkCost* link;
  };
  struct Rank {
    size_t host = 0;
    uint32_t round = 0, seen = 0;  // how many of the round's transfers Receive has handled
    std::vector<Message> arrived;  // messages of the round
    int64_t clock = 0, work = 0;
    void Work(int64_t ps) {
      clock += ps;
      work += ps;
    }
  };
  struct Host {
    int ranks = 0;
    int64_t work = 0, memory = 0, out = 0, in = 0;
  };

  bool Crowded(const Host& host) const { return machine_.cores > 0 && host.ranks > machine_.cores; }
  const Lane& LaneOf(size_t r) const { return schedules_[r].lanes[0]; }
  bool IsOver(size_t r) const { return ranks_[r].round == LaneOf(r).rounds; }
  const Round& RoundOf(size_t r) const {
    return schedules_[r].rounds[LaneOf(r).first_round + ranks_[r].round];
  }
  int64_t BytesOf(size_t r, const Region& region) const {
    return ElementsOf(schedules_[r], LaneOf(r), layout_, region) * element_bytes_;
  }

  void Post(size_t r) {
    if (IsOver(r)) {
      return;
    }
    for (const Transfer& transfer : TransfersOf(schedules_[r], RoundOf(r))) {
      if (transfer.direction == Direction::kSend) {
        Send(r, At(transfer.peer), BytesOf(r, transfer.region));
      }
    }
  }

  void Send(size_t from, size_t to, int64_t bytes) {
    Host &sender = hosts_[ranks_[from].host], &receiver = hosts_[ranks_[to].host];
    const bool apart = &sender != &receiver;
    const LinkCost& link = apart ? machine_.across : machine_.inside;
    (apart ? sender.out : sender.memory) += Picos(bytes, link.wire_fs);
    receiver.in += apart ? Picos(bytes, link.wire_fs) : 0;
    ranks_[from].Work(link.message_ps);
    sent_[{from, to}].push_back({ranks_[from].clock + link.latency_ps, bytes, &link});
  }

  // Returns false if a message is missing or the lane is over.
  bool FinishRound(size_t r) {
    if (IsOver(r) || !Receive(r)) {
      return false;
    }
    Rank& rank = ranks_[r];
    std::stable_sort(rank.arrived.begin(), rank.arrived.end(),
                     [](const Message& a, const Message& b) { return a.there < b.there; });
    for (const Message& message : rank.arrived) {
      const int64_t work = message.link->message_ps + Picos(message.bytes, message.link->byte_fs);
      // The receiver processes the message while it arrives, but not faster than the wire delivers
      // it.
      const int64_t over =
          message.there + std::max(work, Picos(message.bytes, message.link->wire_fs));
      rank.Work(work);
      rank.clock = std::max(rank.clock, over);
    }
    if (!rank.arrived.empty() && Crowded(hosts_[rank.host])) {
      rank.Work(machine_.switch_ps);
    }
    Combine(r);
    rank.arrived.clear();
    rank.seen = 0;
    ++rank.round;
    Post(r);
    return true;
  }

  bool Receive(size_t r) {
    Rank& rank = ranks_[r];
    const auto transfers = TransfersOf(schedules_[r], RoundOf(r));
    for (; rank.seen < transfers.size(); ++rank.seen) {
      if (transfers[rank.seen].direction == Direction::kRecv) {
        std::deque<Message>& sent = sent_[{At(transfers[rank.seen].peer), r}];
        if (sent.empty()) {
          return false;
        }
        rank.arrived.push_back(sent.front());
        sent.pop_front();
      }
    }
    return true;
  }

  // Combining reads each operand and writes the result. reduce_fs covers three accesses: reads of
  // two operands and one write.
  void Combine(size_t r) {
    const Round& round = RoundOf(r);
    for (uint32_t i = 0; i < round.ops; ++i) {
      const LocalOp& op = schedules_[r].ops[round.first_op + i];
      ranks_[r].Work(
          Picos(BytesOf(r, op.dst) * (int64_t{op.operands} + 1) / 3, machine_.reduce_fs));
    }
  }

  const absl::Span<const Schedule> schedules_;
  const Layout& layout_;
  const int64_t element_bytes_;
  const MachineCost& machine_;
  std::vector<Rank> ranks_;
  std::vector<Host> hosts_;
  std::map<std::pair<size_t, size_t>, std::deque<Message>>
      sent_;  // messages that are not received yet, by sender and receiver
};

// Counts hops: CountLane returns their number for a machine on which each message takes 1 ps and
// nothing else takes time. If across_only, only messages between hosts take time.
int CountHops(absl::Span<const Schedule> schedules, absl::Span<const int> hosts,
              const Layout& layout, bool across_only) {
  MachineCost machine;
  machine.inside.latency_ps = across_only ? 0 : 1;
  machine.across.latency_ps = 1;
  return static_cast<int>(CountLane(schedules, hosts, layout, 1, machine).first_ps);
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
  Cost cost;  // until the last loop, its byte counts are elements
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

LaneCost CountLane(absl::Span<const Schedule> schedules, absl::Span<const int> hosts,
                   const Layout& layout, int64_t element_bytes, const MachineCost& machine) {
  return LaneWalk(schedules, hosts, layout, element_bytes, machine).Run();
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
