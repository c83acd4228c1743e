#include "collectives/recursive_doubling.h"

#include <bit>
#include <cstddef>

namespace entrain::recursive_doubling {

void AllReduce(Draft* draft, const Group& group, const Parts& parts) {
  const int n = group.size();
  const int active = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const int pairs = n - active;
  const int me = group.me;
  const auto rank_at = [&](int position) { return group.ranks[static_cast<size_t>(position)]; };
  const bool paired = me < 2 * pairs;
  if (paired && me % 2 == 1) {
    draft->BeginRound();
    draft->Send(rank_at(me - 1), parts);
    draft->BeginRound();
    draft->Recv(rank_at(me - 1), parts);
    return;
  }
  const auto meet = [&](int other, bool sends, bool last) {
    draft->BeginRound();
    const Contribution theirs = draft->RecvContribution(rank_at(other), other, parts);
    if (sends) {
      draft->Send(rank_at(other), parts);
    }
    draft->Combine(parts, me, {theirs}, last);
  };
  if (paired) {
    meet(me + 1, /*sends=*/false, /*last=*/false);
  }
  const int number = paired ? me / 2 : me - pairs;  // among the active ranks
  for (int distance = 1; distance < active; distance *= 2) {
    const int other = number ^ distance;
    meet(other < pairs ? other * 2 : other + pairs, /*sends=*/true,
         /*last=*/distance * 2 == active);
  }
  if (paired) {
    draft->BeginRound();
    draft->Send(rank_at(me + 1), parts);
  }
}

}  // namespace entrain::recursive_doubling
