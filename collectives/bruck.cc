#include "collectives/bruck.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace entrain::bruck {
namespace {

// Returns the parts of `count` members from position `first` on. Position 0 follows the last
// position.
Parts Around(const Pieces& pieces, int first, int count) {
  Parts parts;
  const int n = static_cast<int>(pieces.size());
  for (int i = 0; i < count; ++i) {
    const Parts& piece = pieces[static_cast<size_t>((first + i) % n)];
    parts.insert(parts.end(), piece.begin(), piece.end());
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

}  // namespace

void AllGather(Draft* draft, const Group& group, const Pieces& pieces) {
  const int n = group.size();
  const auto rank_at = [&](int position) {
    return group.ranks[static_cast<size_t>((position + n) % n)];
  };
  for (int distance = 1; distance < n; distance *= 2) {
    const int count = std::min(distance, n - distance);
    draft->BeginRound();
    draft->Recv(rank_at(group.me + distance), Around(pieces, group.me + distance, count));
    draft->Send(rank_at(group.me - distance), Around(pieces, group.me, count));
    // Later rounds send this piece in one message with received pieces, which are in kOut.
    draft->Settle(pieces[static_cast<size_t>(group.me)]);
  }
  draft->Settle(pieces[static_cast<size_t>(group.me)]);
}

void AllToAll(ScheduleBuilder* builder, int lane) {
  const Spec& spec = builder->spec();
  const int n = spec.size;
  const auto block = [&](int rank) { return BlockOf(spec, (rank % n + n) % n, lane); };
  builder->BeginLane();
  builder->BeginRound();
  // At first place[j] is the block that must travel j ranks onwards. At the end place[j] is the
  // block that has come from the rank j ranks before this one.
  std::vector<Region> place;
  for (int j = 0; j < n; ++j) {
    place.push_back({Slot::kIn, block(spec.rank + j), 1});
  }
  for (int distance = 1; distance < n; distance *= 2) {
    std::vector<int> travellers;
    for (int j = 0; j < n; ++j) {
      if ((j & distance) != 0) {
        travellers.push_back(j);
      }
    }
    const int count = static_cast<int>(travellers.size());
    const auto scratch = [&] {
      int first = 0;
      for (int i = 0; i < count; ++i) {
        const int one = builder->AddScratch(block(0));
        first = i == 0 ? one : first;
      }
      return first;
    };
    const int packed = scratch();
    const int arrived = scratch();
    for (int i = 0; i < count; ++i) {
      builder->Copy({Slot::kScratch, packed + i, 1}, place[static_cast<size_t>(travellers[i])]);
      place[static_cast<size_t>(travellers[i])] = {Slot::kScratch, arrived + i, 1};
    }
    builder->BeginRound();
    builder->Recv((spec.rank - distance + n) % n, {Slot::kScratch, arrived, count});
    builder->Send((spec.rank + distance) % n, {Slot::kScratch, packed, count});
  }
  for (int j = 0; j < n; ++j) {
    builder->Copy({Slot::kOut, block(spec.rank - j), 1}, place[static_cast<size_t>(j)]);
  }
}

}  // namespace entrain::bruck
