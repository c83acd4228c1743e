#include "collectives/composed_all_to_all.h"

#include <map>
#include <utility>
#include <vector>

#include "collectives/hosts.h"

namespace entrain::composed {
namespace {

using Block = std::pair<int, int>;  // from rank, to rank
using Blocks = std::vector<Block>;

// The blocks that travel between this rank and another rank in one message.
struct Message {
  int peer;
  Blocks blocks;
};
using Messages = std::vector<Message>;

// The route of each block. A block for a rank of another host goes through one rank of the sender's
// host: the rank whose position on this host equals the destination's position on the other host.
// If the sender's host has too few ranks, the position is taken modulo the number of its ranks.
class Routes {
 public:
  Routes(const Hosts& hosts, int me) : hosts_(hosts), me_(me), host_(hosts.HostOf(me)) {}

  // Return the messages inside the host, and between hosts. If `out`, they are the messages that
  // this rank sends, else the messages that it receives.
  Messages Inside(bool out) const {
    Messages messages;
    for (const int peer : hosts_.RanksOn(host_)) {
      if (peer != me_) {
        messages.push_back({peer, out ? Handed(me_, peer) : Handed(peer, me_)});
      }
    }
    return messages;
  }
  Messages Across(bool out) const {
    Messages messages;
    for (int host = 0; host < hosts_.count(); ++host) {
      if (host == host_) {
        continue;
      }
      if (!out) {
        messages.push_back({ServerOn(host, me_), From(host, me_)});
        continue;
      }
      for (const int rank : hosts_.RanksOn(host)) {
        if (ServerOn(host_, rank) == me_) {
          messages.push_back({rank, From(host_, rank)});
        }
      }
    }
    return messages;
  }

 private:
  int ServerOn(int host, int rank) const {
    return hosts_.RanksOn(host)[static_cast<size_t>(hosts_.PlaceOf(rank) % hosts_.SizeOf(host))];
  }
  // Returns the blocks that `from` sends to `to`: the block that `to` keeps, and the blocks that
  // `to` sends on to other hosts.
  Blocks Handed(int from, int to) const {
    Blocks blocks;
    for (int rank = 0; rank < static_cast<int>(hosts_.host_of.size()); ++rank) {
      if (rank == to || (hosts_.HostOf(rank) != host_ && ServerOn(host_, rank) == to)) {
        blocks.push_back({from, rank});
      }
    }
    return blocks;
  }
  Blocks From(int host, int to) const {
    Blocks blocks;
    for (const int from : hosts_.RanksOn(host)) {
      blocks.push_back({from, to});
    }
    return blocks;
  }

  const Hosts& hosts_;
  const int me_, host_;
};

// Adds the rounds that move the blocks. Keeps the place of every block that this rank has at the
// moment.
class Traffic {
 public:
  Traffic(ScheduleBuilder* builder, int lane)
      : builder_(builder), spec_(builder->spec()), lane_(lane) {
    builder_->BeginLane();
    for (int to = 0; to < spec_.size; ++to) {
      places_[{spec_.rank, to}] = {Slot::kIn, BlockOf(spec_, to, lane_), 1};
    }
  }

  // Adds a round that packs and sends `out`, and receives `in`.
  void Move(const Messages& out, const Messages& in) {
    std::vector<Region> packed;
    for (const Message& message : out) {
      packed.push_back(NewRegion(message.blocks));
      int next = packed.back().first;
      for (const Block& block : message.blocks) {
        builder_->Copy({Slot::kScratch, next++, 1}, places_.at(block));
      }
    }
    builder_->BeginRound();
    for (const Message& message : in) {
      const Region region = NewRegion(message.blocks);
      builder_->Recv(message.peer, region);
      int next = region.first;
      for (const Block& block : message.blocks) {
        places_[block] = {Slot::kScratch, next++, 1};
      }
    }
    for (size_t i = 0; i < out.size(); ++i) {
      builder_->Send(out[i].peer, packed[i]);
    }
  }

  void Unpack() {
    for (int from = 0; from < spec_.size; ++from) {
      builder_->Copy({Slot::kOut, BlockOf(spec_, from, lane_), 1}, places_.at({from, spec_.rank}));
    }
  }

 private:
  Region NewRegion(const Blocks& blocks) {
    Region region{Slot::kScratch, 0, static_cast<int32_t>(blocks.size())};
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int one = builder_->AddScratch(BlockOf(spec_, 0, lane_));
      region.first = i == 0 ? one : region.first;
    }
    return region;
  }

  ScheduleBuilder* const builder_;
  const Spec& spec_;
  const int lane_;
  std::map<Block, Region> places_;
};

}  // namespace

void AllToAll(ScheduleBuilder* builder, int lane, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const Routes routes(hosts, builder->spec().rank);
  Traffic traffic(builder, lane);
  traffic.Move(routes.Inside(true), routes.Inside(false));
  traffic.Move(routes.Across(true), routes.Across(false));
  traffic.Unpack();
}

}  // namespace entrain::composed
