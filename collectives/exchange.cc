#include "collectives/exchange.h"

#include <vector>

namespace entrain::exchange {
namespace {

// Posts both transfers with a peer. If the call is in place, receives the peer's block into scratch
// memory and appends the peer to `waiting`. The caller must then copy the block to kOut.
void Meet(ScheduleBuilder* builder, int lane, int peer, std::vector<int>* waiting) {
  const Spec& spec = builder->spec();
  const int block = BlockOf(spec, peer, lane);
  if (spec.in_place) {
    waiting->push_back(peer);
    builder->Recv(peer, {Slot::kScratch, builder->AddScratch(block), 1});
  } else {
    builder->Recv(peer, {Slot::kOut, block, 1});
  }
  builder->Send(peer, {Slot::kIn, block, 1});
}

void KeepOwn(ScheduleBuilder* builder, int lane) {
  const int block = BlockOf(builder->spec(), builder->spec().rank, lane);
  builder->Copy({Slot::kOut, block, 1}, {Slot::kIn, block, 1});
}

}  // namespace

void Direct(ScheduleBuilder* builder, int lane) {
  const Spec& spec = builder->spec();
  builder->BeginLane();
  builder->BeginRound();
  std::vector<int> waiting;
  for (int step = 1; step < spec.size; ++step) {
    Meet(builder, lane, (spec.rank + step) % spec.size, &waiting);
  }
  for (size_t i = 0; i < waiting.size(); ++i) {
    builder->Copy({Slot::kOut, BlockOf(spec, waiting[i], lane), 1},
                  {Slot::kScratch, static_cast<int>(i), 1});
  }
  KeepOwn(builder, lane);
}

void Pairwise(ScheduleBuilder* builder, int lane) {
  const Spec& spec = builder->spec();
  builder->BeginLane();
  std::vector<int> waiting;
  for (int round = 0; round < spec.size; ++round) {
    const int peer = (round - spec.rank + spec.size) % spec.size;
    if (peer == spec.rank) {
      continue;
    }
    builder->BeginRound();
    Meet(builder, lane, peer, &waiting);
    if (spec.in_place) {
      builder->Copy({Slot::kOut, BlockOf(spec, peer, lane), 1},
                    {Slot::kScratch, static_cast<int>(waiting.size()) - 1, 1});
    }
  }
  KeepOwn(builder, lane);
}

}  // namespace entrain::exchange
