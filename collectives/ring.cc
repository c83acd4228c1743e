#include "collectives/ring.h"

namespace entrain::ring {
namespace {

// Returns the piece of the member that is `behind` places before `position` in the ring.
const Parts& Behind(const Pieces& pieces, int position, int behind) {
  const int n = static_cast<int>(pieces.size());
  return pieces[static_cast<size_t>((position - behind + n) % n)];
}

int Left(const Group& group) {
  return group.ranks[static_cast<size_t>((group.me + group.size() - 1) % group.size())];
}

int Right(const Group& group) {
  return group.ranks[static_cast<size_t>((group.me + 1) % group.size())];
}

}  // namespace

void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last) {
  for (int step = 1; step < group.size(); ++step) {
    draft->BeginRound();
    const Parts& arriving = Behind(pieces, group.me, step + 1);
    const Contribution sum = draft->RecvContribution(Left(group), 0, arriving);
    draft->Send(Right(group), Behind(pieces, group.me, step));
    draft->Combine(arriving, 1, {sum}, last && step == group.size() - 1);
  }
}

void AllGather(Draft* draft, const Group& group, const Pieces& pieces) {
  for (int step = 1; step < group.size(); ++step) {
    draft->BeginRound();
    draft->Recv(Left(group), Behind(pieces, group.me, step));
    draft->Send(Right(group), Behind(pieces, group.me, step - 1));
  }
  draft->Settle(pieces[static_cast<size_t>(group.me)]);
}

}  // namespace entrain::ring
