#include "collectives/timeline.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace entrain {
namespace {

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

int64_t Bytes(int64_t bytes, int64_t fs) {
  return bytes * fs / 1000;
}

class Timeline {
 public:
  Timeline(absl::Span<const Schedule> schedules, absl::Span<const int> hosts, const Layout& layout,
           int64_t element_bytes, int window, const MachineModel& machine)
      : schedules_(schedules),
        hosts_(hosts),
        layout_(layout),
        element_bytes_(element_bytes),
        machine_(machine),
        ranks_(schedules.size()) {
    int last_host = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      last_host = std::max(last_host, HostOf(rank));
      const size_t lanes = schedules[rank].lanes.size();
      ranks_[rank].lanes.resize(lanes);
      ranks_[rank].next_lane = static_cast<int>(std::min(lanes, At(window)));
    }
    host_state_.resize(At(last_host + 1));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ++host_state_[At(HostOf(rank))].ranks;
    }
    for (Host& host : host_state_) {
      // A rank with a core of its own needs no turns.
      host.cores.resize(machine.cores > 0 && machine.cores < host.ranks ? At(machine.cores) : 0);
    }
  }

  int64_t Run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (int lane = 0; lane < ranks_[rank].next_lane; ++lane) {
        Push({0, 0, Task::kStep, static_cast<int>(rank), lane});
      }
    }
    for (Turn turn = NextTurn(); turn.rank >= 0; turn = NextTurn()) {
      Rank& rank = ranks_[At(turn.rank)];
      const Task task = rank.tasks.top();
      rank.tasks.pop();
      rank.free_at = task.kind == Task::kStep ? Step(task, turn.start) : Take(task, turn.start);
      if (turn.core != nullptr) {
        turn.core->rank = turn.rank;
        turn.core->free_at = rank.free_at;
      }
      end_ = std::max(end_, rank.free_at);
    }
    return end_;
  }

 private:
  struct Task {
    // A message that is there; the word that one was taken; what a lane does when nothing is missing.
    enum Kind { kTake, kTaken, kStep };
    int64_t ready;
    uint64_t number;
    Kind kind;
    int rank, lane;
    int64_t work = 0;    // kTake, kTaken
    int waiting = -1;    // kTake: the rank that must hear of it
    int64_t answer = 0;  // what that takes
  };
  struct Later {
    bool operator()(const Task& a, const Task& b) const {
      return std::tie(a.ready, a.number) > std::tie(b.ready, b.number);
    }
  };
  struct LaneState {
    uint32_t round = 0;
    int missing = 0;
    bool posted = false;
  };
  struct Rank {
    std::priority_queue<Task, std::vector<Task>, Later> tasks;
    int64_t free_at = 0;
    int next_lane = 0;
    std::vector<LaneState> lanes;
  };
  struct Core {
    int rank = -1;
    int64_t free_at = 0;
  };
  struct Host {
    int ranks = 0;
    int64_t memory_free = 0, out_free = 0, in_free = 0;
    std::vector<Core> cores;
  };
  // From one rank to another in one lane: as many messages or receives as have not met, never both.
  struct Channel {
    std::vector<Task> sent;
    size_t taken = 0;
    int awaited = 0;
  };

  int HostOf(size_t rank) const { return hosts_.empty() ? 0 : hosts_[rank]; }

  void Push(Task task) {
    task.number = next_number_++;
    ranks_[At(task.rank)].tasks.push(task);
  }

  // A rank's next task, and when and where it can begin.
  struct Turn {
    int rank = -1;
    int64_t start = 0;
    uint64_t number = 0;
    Core* core = nullptr;  // null: its own
  };

  Turn TurnOf(int rank) {
    const Task& task = ranks_[At(rank)].tasks.top();
    Turn turn{rank, std::max(task.ready, ranks_[At(rank)].free_at), task.number, nullptr};
    for (Core& core : host_state_[At(HostOf(At(rank)))].cores) {
      const int64_t free_at =
          core.free_at + (core.rank >= 0 && core.rank != rank ? machine_.switch_ps : 0);
      const int64_t best = turn.core == nullptr ? std::numeric_limits<int64_t>::max() : turn.start;
      const int64_t start = std::max({task.ready, ranks_[At(rank)].free_at, free_at});
      if (start < best || (start == best && core.rank == rank)) {
        turn.core = &core;
        turn.start = start;
      }
    }
    return turn;
  }

  // The one that begins first: so a rank that has more to do keeps its core, as changing takes time.
  Turn NextTurn() {
    Turn next;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].tasks.empty()) {
        continue;
      }
      const Turn turn = TurnOf(static_cast<int>(rank));
      if (next.rank < 0 || std::tie(turn.start, turn.number) < std::tie(next.start, next.number)) {
        next = turn;
      }
    }
    return next;
  }

  Channel& ChannelOf(int from, int to, int lane) {
    const auto n = static_cast<uint64_t>(ranks_.size());
    return channels_[(static_cast<uint64_t>(from) * n + static_cast<uint64_t>(to)) << 16 |
                     static_cast<uint64_t>(lane)];
  }

  int64_t BytesOf(const Schedule& schedule, const Lane& lane, const Region& region) const {
    return ElementsOf(schedule, lane, layout_, region) * element_bytes_;
  }

  // When the last byte is over. Bytes follow those that came before.
  int64_t OverWire(int from, int to, bool apart, int64_t bytes, int64_t ready) {
    Host& sender = host_state_[At(HostOf(At(from)))];
    if (!apart) {
      sender.memory_free =
          std::max(sender.memory_free, ready) + Bytes(bytes, machine_.inside.wire_fs);
      return sender.memory_free;
    }
    Host& receiver = host_state_[At(HostOf(At(to)))];
    const int64_t start = std::max({sender.out_free, receiver.in_free, ready});
    sender.out_free = receiver.in_free = start + Bytes(bytes, machine_.across.wire_fs);
    return sender.out_free;
  }

  int64_t Send(int from, int lane, const Transfer& transfer, int64_t bytes, int64_t now) {
    const bool apart = HostOf(At(from)) != HostOf(At(transfer.peer));
    const LinkModel& link = apart ? machine_.across : machine_.inside;
    now += link.message_ps + Bytes(bytes, link.send_fs);
    const int64_t there = now + link.latency_ps;
    const int64_t over = OverWire(from, transfer.peer, apart, bytes, there);
    const bool large = bytes > link.eager_bytes;
    const int64_t work =
        link.message_ps + Bytes(bytes, link.receive_fs) + (large ? link.large_ps : 0);
    // Taken while it arrives: who takes faster than the wire brings begins later.
    Task message{std::max(there, over - work), 0, Task::kTake, transfer.peer, lane, work};
    if (large) {
      message.waiting = from;
      message.answer = link.latency_ps;
      ++ranks_[At(from)].lanes[At(lane)].missing;
    }
    Channel& channel = ChannelOf(from, transfer.peer, lane);
    if (channel.awaited > 0) {
      --channel.awaited;
      Push(message);
    } else {
      channel.sent.push_back(message);
    }
    return now;
  }

  void Expect(int to, int lane, int from, int64_t now) {
    Channel& channel = ChannelOf(from, to, lane);
    if (channel.taken == channel.sent.size()) {
      ++channel.awaited;
      return;
    }
    Task message = channel.sent[channel.taken++];
    message.ready = std::max(message.ready, now);
    Push(message);
  }

  int64_t Take(const Task& task, int64_t now) {
    now += task.work;
    if (task.waiting >= 0) {
      Push({now + task.answer, 0, Task::kTaken, task.waiting, task.lane});
    }
    if (--ranks_[At(task.rank)].lanes[At(task.lane)].missing == 0) {
      Push({now, 0, Task::kStep, task.rank, task.lane});
    }
    return now;
  }

  // Reading each operand and writing the result, against the three touches of two operands.
  int64_t Operate(const Schedule& schedule, const Lane& lane, const Round& round) const {
    int64_t time = 0;
    for (uint32_t i = 0; i < round.ops; ++i) {
      const LocalOp& op = schedule.ops[round.first_op + i];
      time += Bytes(BytesOf(schedule, lane, op.dst) * (int64_t{op.operands} + 1) / 3,
                    machine_.reduce_fs);
    }
    return time;
  }

  // The operations of the round that is complete; then rounds are posted until one lacks something.
  int64_t Step(const Task& task, int64_t now) {
    const Schedule& schedule = schedules_[At(task.rank)];
    Rank& rank = ranks_[At(task.rank)];
    const Lane& lane = schedule.lanes[At(task.lane)];
    LaneState& state = rank.lanes[At(task.lane)];
    while (true) {
      if (state.posted) {
        now += Operate(schedule, lane, schedule.rounds[lane.first_round + state.round]);
        state.posted = false;
        ++state.round;
      }
      if (state.round == lane.rounds) {
        if (rank.next_lane < static_cast<int>(rank.lanes.size())) {
          Push({now, 0, Task::kStep, task.rank, rank.next_lane++});
        }
        return now;
      }
      const Round& round = schedule.rounds[lane.first_round + state.round];
      now = Post(task, round, &state, now);
      if (state.missing > 0) {
        return now;
      }
    }
  }

  int64_t Post(const Task& task, const Round& round, LaneState* state, int64_t now) {
    const Schedule& schedule = schedules_[At(task.rank)];
    const Lane& lane = schedule.lanes[At(task.lane)];
    const auto transfers =
        absl::MakeSpan(schedule.transfers).subspan(round.first_transfer, round.transfers);
    state->posted = true;
    for (const Transfer& transfer : transfers) {
      state->missing += transfer.direction == Direction::kRecv ? 1 : 0;
    }
    for (const Transfer& transfer : transfers) {
      if (transfer.direction == Direction::kSend) {
        now = Send(task.rank, task.lane, transfer, BytesOf(schedule, lane, transfer.region), now);
      }
    }
    for (const Transfer& transfer : transfers) {
      if (transfer.direction == Direction::kRecv) {
        Expect(task.rank, task.lane, transfer.peer, now);
      }
    }
    return now;
  }

  absl::Span<const Schedule> schedules_;
  absl::Span<const int> hosts_;
  const Layout& layout_;
  const int64_t element_bytes_;
  const MachineModel& machine_;
  std::vector<Rank> ranks_;
  std::vector<Host> host_state_;
  std::unordered_map<uint64_t, Channel> channels_;
  uint64_t next_number_ = 0;
  int64_t end_ = 0;
};

}  // namespace

int64_t RunTimeline(absl::Span<const Schedule> schedules, absl::Span<const int> hosts,
                    const Layout& layout, int64_t element_bytes, int window,
                    const MachineModel& machine) {
  return Timeline(schedules, hosts, layout, element_bytes, window, machine).Run();
}

}  // namespace entrain
