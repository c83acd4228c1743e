#include "collectives/halving_doubling.h"

#include <cstddef>

namespace entrain::halving_doubling {
namespace {

size_t At(int index) {
  return static_cast<size_t>(index);
}

// One cut of the positions [low, high) into A = [low, middle) and B = [middle, high), as one member
// sees it.
struct Cut {
  int low, middle, high;
  bool in_a;
  int partner;  // in the other half; -1: this rank is A's last member and has no partner
  int single;   // A's last member if it has no partner; else -1
};

// Returns the cuts of this rank's halves, from the whole group down to two members.
std::vector<Cut> CutsOf(const Group& group) {
  std::vector<Cut> cuts;
  int low = 0;
  int high = group.size();
  while (high - low > 1) {
    const int middle = low + (high - low + 1) / 2;
    Cut cut{low, middle, high, group.me < middle, -1, -1};
    cut.single = (high - low) % 2 == 1 ? middle - 1 : -1;
    if (group.me != cut.single) {
      cut.partner = cut.in_a ? group.me - low + middle : group.me - middle + low;
    }
    cuts.push_back(cut);
    (cut.in_a ? high : low) = middle;
  }
  return cuts;
}

Parts OwnHalf(const Pieces& pieces, const Cut& cut) {
  return cut.in_a ? Join(pieces, cut.low, cut.middle) : Join(pieces, cut.middle, cut.high);
}

Parts OtherHalf(const Pieces& pieces, const Cut& cut) {
  return cut.in_a ? Join(pieces, cut.middle, cut.high) : Join(pieces, cut.low, cut.middle);
}

}  // namespace

void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last) {
  for (const Cut& cut : CutsOf(group)) {
    draft->BeginRound();
    if (cut.partner < 0) {
      for (int b = cut.middle; b < cut.high; ++b) {
        draft->Send(group.ranks[At(b)], pieces[At(b)]);
      }
      continue;
    }
    const Parts own = OwnHalf(pieces, cut);
    std::vector<Contribution> from = {
        draft->RecvContribution(group.ranks[At(cut.partner)], cut.partner, own)};
    if (!cut.in_a && cut.single >= 0) {
      from.push_back(
          draft->RecvContribution(group.ranks[At(cut.single)], cut.single, pieces[At(group.me)]));
    }
    draft->Send(group.ranks[At(cut.partner)], OtherHalf(pieces, cut));
    const int half = cut.in_a ? cut.middle - cut.low : cut.high - cut.middle;
    draft->Combine(own, group.me, from, last && half == 1);
  }
}

void AllGather(Draft* draft, const Group& group, const Pieces& pieces) {
  const std::vector<Cut> cuts = CutsOf(group);
  const Parts& mine = pieces[At(group.me)];
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    draft->BeginRound();
    if (cut->partner < 0) {
      for (int b = cut->middle; b < cut->high; ++b) {
        draft->Recv(group.ranks[At(b)], pieces[At(b)]);
      }
    } else {
      draft->Recv(group.ranks[At(cut->partner)], OtherHalf(pieces, *cut));
      draft->Send(group.ranks[At(cut->partner)], OwnHalf(pieces, *cut));
      if (!cut->in_a && cut->single >= 0) {
        draft->Send(group.ranks[At(cut->single)], mine);
      }
    }
    // Only the first call has an effect. Later rounds send this piece in one message with received
    // pieces, which are in kOut.
    draft->Settle(mine);
  }
  draft->Settle(mine);
}

}  // namespace entrain::halving_doubling
