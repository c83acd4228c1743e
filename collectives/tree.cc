#include "collectives/tree.h"

#include <algorithm>
#include <cstddef>

namespace entrain::tree {
namespace {

// Returns the rank `distance` places after the root.
int RankAt(const Group& group, int root, int distance) {
  return group.ranks[static_cast<size_t>((root + distance) % group.size())];
}

int DistanceFrom(const Group& group, int root) {
  return (group.me - root + group.size()) % group.size();
}

// Let `me` be the distance of this rank from the root. The subtree of this rank has the distances
// [me, me + step), up to n - 1. `step` is the largest power of the radix that divides `me`. For the
// root, `step` is the smallest power of the radix that is at least n.
Branch OfRadix(const Group& group, int root, int radix) {
  const int n = group.size();
  const int me = DistanceFrom(group, root);
  Branch branch;
  int step = 1;
  while (step < n && me % (step * radix) == 0) {
    step *= radix;
  }
  branch.own = {me, std::min(step, n - me)};
  if (me != 0) {
    branch.parent = RankAt(group, root, me - me % (step * radix));
  }
  for (step /= radix; step > 0; step /= radix) {
    for (int digit = radix - 1; digit > 0; --digit) {
      const int child = me + digit * step;
      if (child < n) {
        branch.children.push_back(RankAt(group, root, child));
        branch.spans.push_back({child, std::min(step, n - child)});
      }
    }
  }
  return branch;
}

Parts PartsOf(const Group& group, int root, const Branch::Span& span) {
  Parts parts;
  for (int i = 0; i < span.length; ++i) {
    parts.push_back(RankAt(group, root, span.begin + i));
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

}  // namespace

Branch Binomial(const Group& group, int root) {
  return OfRadix(group, root, 2);
}

Branch Knomial(const Group& group, int root) {
  Branch branch = OfRadix(group, root, 4);
  branch.at_once = true;
  return branch;
}

Branch Star(const Group& group, int root) {
  Branch branch;
  branch.at_once = true;
  if (group.me != root) {
    branch.parent = RankAt(group, root, 0);
    return branch;
  }
  for (int distance = 1; distance < group.size(); ++distance) {
    branch.children.push_back(RankAt(group, root, distance));
  }
  return branch;
}

Branch Chain(const Group& group, int root) {
  const int me = DistanceFrom(group, root);
  Branch branch;
  if (me > 0) {
    branch.parent = RankAt(group, root, me - 1);
  }
  if (me + 1 < group.size()) {
    branch.children.push_back(RankAt(group, root, me + 1));
  }
  return branch;
}

void Broadcast(Draft* draft, const Branch& branch) {
  const Parts all = AllParts(draft->spec());
  draft->BeginRound();
  if (branch.parent >= 0) {
    draft->Recv(branch.parent, all);
    draft->BeginRound();
  }
  for (size_t i = 0; i < branch.children.size(); ++i) {
    if (i > 0 && !branch.at_once) {
      draft->BeginRound();
    }
    draft->Send(branch.children[i], all);
  }
}

void Reduce(Draft* draft, const Branch& branch) {
  const Parts all = AllParts(draft->spec());
  if (!branch.children.empty()) {
    draft->BeginRound();
    std::vector<Contribution> from;
    for (const int child : branch.children) {
      from.push_back(draft->RecvContribution(child, static_cast<int>(from.size()) + 1, all));
    }
    draft->Combine(all, 0, from, /*last=*/branch.parent < 0);
  }
  if (branch.parent >= 0) {
    draft->BeginRound();
    draft->Send(branch.parent, all);
  }
}

void Gather(Draft* draft, const Group& group, int root) {
  const Branch branch = Binomial(group, root);
  const Parts own = PartsOf(group, root, branch.own);
  if (!branch.children.empty()) {
    draft->BeginRound();
    if (branch.parent >= 0) {
      draft->Assemble(own);
    }
    for (size_t i = 0; i < branch.children.size(); ++i) {
      draft->Recv(branch.children[i], PartsOf(group, root, branch.spans[i]));
    }
  }
  if (branch.parent >= 0) {
    draft->BeginRound();
    draft->Send(branch.parent, own);
  } else {
    draft->Settle({draft->spec().rank});
  }
}

void Scatter(Draft* draft, const Group& group, int root) {
  const Branch branch = Binomial(group, root);
  if (branch.parent >= 0) {
    draft->BeginRound();
    draft->Recv(branch.parent, PartsOf(group, root, branch.own));
  }
  draft->BeginRound();
  for (size_t i = 0; i < branch.children.size(); ++i) {
    draft->Send(branch.children[i], PartsOf(group, root, branch.spans[i]));
  }
  draft->Settle({draft->spec().rank});
}

void Barrier(Draft* draft, const Group& group) {
  const int n = group.size();
  for (int distance = 1; distance < n; distance *= 2) {
    draft->BeginRound();
    draft->AwaitSignal(RankAt(group, group.me, n - distance));
    draft->Signal(RankAt(group, group.me, distance));
  }
}

}  // namespace entrain::tree
