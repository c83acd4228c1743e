#include "tests/support/simulator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

// A range of cells in one memory.
struct Range {
  std::vector<Cell>* memory = nullptr;
  size_t first = 0, count = 0;
};

// One lane of one rank.
struct RunningLane {
  int rank = 0, number = 0;
  uint32_t round = 0;
  uint32_t open = 0;  // transfers of the round that are not done
  bool posted = false;
  std::vector<Cell> scratch;
  std::vector<size_t> scratch_at;  // first cell of each block, and the end
};

struct PostedSend {
  RunningLane* lane = nullptr;
  Range from;                // rendezvous
  std::vector<Cell> values;  // eager
  size_t count = 0;
};

struct PostedRecv {
  RunningLane* lane = nullptr;
  Range to;
};

// Messages from one rank to another in one lane.
struct Channel {
  int from = 0, to = 0, lane = 0;
  std::deque<PostedSend> sends;
  std::deque<PostedRecv> recvs;
};

// A possible next event: a lane posts or ends its round, or a channel delivers.
struct Event {
  RunningLane* lane = nullptr;
  Channel* channel = nullptr;
};

class Simulator {
 public:
  Simulator(absl::Span<const Schedule> schedules, absl::Span<const RankLayout> layouts,
            const Simulation& simulation, std::vector<std::vector<Cell>>* data)
      : schedules_(schedules),
        layouts_(layouts),
        simulation_(simulation),
        random_(simulation.seed),
        in_(*data),
        out_(*data) {
    for (size_t rank = 0; rank < out_.size() && !simulation.in_place; ++rank) {
      out_[rank].assign(At(layouts[rank].out.first.back()), Cell());
    }
  }

  absl::Status Run();
  std::vector<std::vector<Cell>> TakeOut() { return std::move(out_); }
  const std::vector<std::vector<Cell>>& in() const { return in_; }

 private:
  void Open();
  absl::Status Step(const Event& event);
  absl::Status Post(RunningLane* lane);
  absl::Status Deliver(Channel* channel);
  absl::Status End(RunningLane* lane);
  absl::Status Apply(RunningLane* lane, const LocalOp& op);
  absl::Status CheckAllDone() const;
  void TransferDone(RunningLane* lane);

  const Round& RoundOf(const RunningLane& lane) const {
    const Schedule& schedule = schedules_[At(lane.rank)];
    return schedule.rounds[schedule.lanes[At(lane.number)].first_round + lane.round];
  }
  bool IsDone(const RunningLane& lane) const {
    return lane.round == schedules_[At(lane.rank)].lanes[At(lane.number)].rounds;
  }
  Range Bind(RunningLane* lane, const Region& region);
  absl::Status CheckSet(const Range& range, const RunningLane& lane) const;
  Channel* ChannelOf(int from, int to, int lane);
  std::string Describe(const RunningLane& lane) const {
    return absl::StrCat("rank ", lane.rank, " lane ", lane.number, " round ", lane.round);
  }

  absl::Span<const Schedule> schedules_;
  absl::Span<const RankLayout> layouts_;  // by rank
  const Simulation& simulation_;
  std::mt19937_64 random_;
  std::vector<std::vector<Cell>> in_, out_;  // by rank; in place only out_ is used
  std::deque<RunningLane> lanes_;
  std::map<std::tuple<int, int, int>, Channel> channels_;
  std::vector<Event> ready_;
};

void Simulator::Open() {
  for (size_t rank = 0; rank < schedules_.size(); ++rank) {
    const Schedule& schedule = schedules_[rank];
    for (size_t number = 0; number < schedule.lanes.size(); ++number) {
      const Lane& lane = schedule.lanes[number];
      RunningLane running;
      running.rank = static_cast<int>(rank);
      running.number = static_cast<int>(number);
      size_t cells = 0;
      for (uint32_t s = 0; s < lane.scratch; ++s) {
        running.scratch_at.push_back(cells);
        cells += At(layouts_[rank].in.elements(schedule.scratch_like[lane.first_scratch + s]));
      }
      running.scratch_at.push_back(cells);
      running.scratch.resize(cells);
      lanes_.push_back(std::move(running));
      if (!IsDone(lanes_.back())) {
        ready_.push_back({&lanes_.back(), nullptr});
      }
    }
  }
}

absl::Status Simulator::Run() {
  Open();
  while (!ready_.empty()) {
    const size_t chosen = random_() % ready_.size();
    const Event event = ready_[chosen];
    ready_[chosen] = ready_.back();
    ready_.pop_back();
    ENTRAIN_RETURN_IF_ERROR(Step(event));
  }
  return CheckAllDone();
}

absl::Status Simulator::Step(const Event& event) {
  if (event.channel != nullptr) {
    return Deliver(event.channel);
  }
  return event.lane->posted ? End(event.lane) : Post(event.lane);
}

Channel* Simulator::ChannelOf(int from, int to, int lane) {
  Channel& channel = channels_[{from, to, lane}];
  channel.from = from;
  channel.to = to;
  channel.lane = lane;
  return &channel;
}

Range Simulator::Bind(RunningLane* lane, const Region& region) {
  const auto end = region.first + region.blocks;
  if (region.blocks == 0) {
    return {&lane->scratch, 0, 0};
  }
  if (region.slot == Slot::kScratch) {
    const size_t first = lane->scratch_at[At(region.first)];
    return {&lane->scratch, first, lane->scratch_at[At(end)] - first};
  }
  const bool in = region.slot == Slot::kIn && !simulation_.in_place;
  const RankLayout& layouts = layouts_[At(lane->rank)];
  const Layout& layout = region.slot == Slot::kIn ? layouts.in : layouts.out;
  const size_t first = At(layout.first[At(region.first)]);
  return {in ? &in_[At(lane->rank)] : &out_[At(lane->rank)], first,
          At(layout.first[At(end)]) - first};
}

absl::Status Simulator::CheckSet(const Range& range, const RunningLane& lane) const {
  for (size_t i = 0; i < range.count; ++i) {
    if (!(*range.memory)[range.first + i].set) {
      return absl::InternalError(absl::StrCat(Describe(lane), " reads an element never written"));
    }
  }
  return absl::OkStatus();
}

absl::Status Simulator::Post(RunningLane* lane) {
  const Round& round = RoundOf(*lane);
  lane->posted = true;
  lane->open = round.transfers + 1;  // one for the posting itself
  for (uint32_t i = 0; i < round.transfers; ++i) {
    const Transfer& transfer = schedules_[At(lane->rank)].transfers[round.first_transfer + i];
    const bool sends = transfer.direction == Direction::kSend;
    Channel* channel = sends ? ChannelOf(lane->rank, transfer.peer, lane->number)
                             : ChannelOf(transfer.peer, lane->rank, lane->number);
    const Range range = Bind(lane, transfer.region);
    if (sends) {
      ENTRAIN_RETURN_IF_ERROR(CheckSet(range, *lane));
      PostedSend send{lane, range, {}, range.count};
      if (!simulation_.rendezvous) {
        const auto first = range.memory->begin() + static_cast<int64_t>(range.first);
        send.values.assign(first, first + static_cast<int64_t>(range.count));
        TransferDone(lane);
      }
      channel->sends.push_back(std::move(send));
    } else {
      channel->recvs.push_back({lane, range});
    }
    // The channel has one more pair of send and receive than before, so one more delivery can
    // happen.
    if ((sends ? channel->sends.size() <= channel->recvs.size()
               : channel->recvs.size() <= channel->sends.size())) {
      ready_.push_back({nullptr, channel});
    }
  }
  TransferDone(lane);
  return absl::OkStatus();
}

void Simulator::TransferDone(RunningLane* lane) {
  if (--lane->open == 0) {
    ready_.push_back({lane, nullptr});
  }
}

absl::Status Simulator::Deliver(Channel* channel) {
  PostedSend send = std::move(channel->sends.front());
  const PostedRecv recv = channel->recvs.front();
  channel->sends.pop_front();
  channel->recvs.pop_front();
  if (send.count != recv.to.count) {
    return absl::InternalError(absl::StrCat(Describe(*recv.lane), " expects ", recv.to.count,
                                            " elements from rank ", channel->from, ", which sent ",
                                            send.count, " in its round ", send.lane->round));
  }
  if (simulation_.rendezvous) {
    ENTRAIN_RETURN_IF_ERROR(CheckSet(send.from, *send.lane));
    const auto first = send.from.memory->begin() + static_cast<int64_t>(send.from.first);
    send.values.assign(first, first + static_cast<int64_t>(send.from.count));
    TransferDone(send.lane);
  }
  std::copy(send.values.begin(), send.values.end(),
            recv.to.memory->begin() + static_cast<int64_t>(recv.to.first));
  TransferDone(recv.lane);
  return absl::OkStatus();
}

absl::Status Simulator::End(RunningLane* lane) {
  const Round& round = RoundOf(*lane);
  for (uint32_t i = 0; i < round.ops; ++i) {
    ENTRAIN_RETURN_IF_ERROR(Apply(lane, schedules_[At(lane->rank)].ops[round.first_op + i]));
  }
  ++lane->round;
  lane->posted = false;
  if (!IsDone(*lane)) {
    ready_.push_back({lane, nullptr});
  }
  return absl::OkStatus();
}

absl::Status Simulator::Apply(RunningLane* lane, const LocalOp& op) {
  const Schedule& schedule = schedules_[At(lane->rank)];
  if (op.dst.slot == Slot::kIn) {
    return absl::InternalError(absl::StrCat(Describe(*lane), " writes its input"));
  }
  const Range to = Bind(lane, op.dst);
  std::vector<Range> from;
  for (uint32_t i = 0; i < op.operands; ++i) {
    from.push_back(Bind(lane, schedule.operands[op.first_operand + i]));
    ENTRAIN_RETURN_IF_ERROR(CheckSet(from.back(), *lane));
    if (from.back().count != to.count) {
      return absl::InternalError(absl::StrCat(Describe(*lane), " combines ", from.back().count,
                                              " elements into ", to.count));
    }
  }
  std::vector<int64_t> values(from.size());
  for (size_t e = 0; e < to.count; ++e) {
    for (size_t i = 0; i < from.size(); ++i) {
      values[i] = (*from[i].memory)[from[i].first + e].value;
    }
    int64_t result = values[0];
    if (op.kind == LocalKind::kCombine) {
      result = simulation_.combine(values);
      result = op.last ? simulation_.complete(result) : result;
    }
    (*to.memory)[to.first + e] = {result, true};
  }
  return absl::OkStatus();
}

absl::Status Simulator::CheckAllDone() const {
  std::string waiting;
  for (const RunningLane& lane : lanes_) {
    if (!IsDone(lane)) {
      absl::StrAppend(&waiting, waiting.empty() ? "" : "; ", Describe(lane), " waits for ",
                      lane.open, " transfers");
    }
  }
  if (!waiting.empty()) {
    return absl::InternalError(absl::StrCat("deadlock: ", waiting));
  }
  for (const auto& [key, channel] : channels_) {
    if (!channel.sends.empty()) {
      return absl::InternalError(absl::StrCat(channel.sends.size(), " messages from rank ",
                                              channel.from, " to rank ", channel.to, " in lane ",
                                              channel.lane, " were never received"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Simulate(absl::Span<const Schedule> schedules, const Layout& layout,
                      const Simulation& simulation, std::vector<std::vector<Cell>>* data) {
  return Simulate(schedules, std::vector<RankLayout>(schedules.size(), {layout, layout}),
                  simulation, data);
}

absl::Status Simulate(absl::Span<const Schedule> schedules, absl::Span<const RankLayout> layouts,
                      const Simulation& simulation, std::vector<std::vector<Cell>>* data) {
  Simulator simulator(schedules, layouts, simulation, data);
  ENTRAIN_RETURN_IF_ERROR(simulator.Run());
  if (!simulation.in_place) {
    for (size_t rank = 0; rank < data->size(); ++rank) {
      for (size_t i = 0; i < (*data)[rank].size(); ++i) {
        const Cell& before = (*data)[rank][i];
        const Cell& after = simulator.in()[rank][i];
        if (before.set != after.set || before.value != after.value) {
          return absl::InternalError(
              absl::StrCat("rank ", rank, "'s input changed at element ", i));
        }
      }
    }
  }
  *data = simulator.TakeOut();
  return absl::OkStatus();
}

}  // namespace entrain
