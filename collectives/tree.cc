#include "collectives/tree.h"

#include <cstddef>

namespace entrain::tree {
namespace {

// The rank `distance` places behind the root.
int RankAt(const Group& group, int root, int distance) {
  return group.ranks[static_cast<size_t>((root + distance) % group.size())];
}

int DistanceFrom(const Group& group, int root) {
  return (group.me - root + group.size()) % group.size();
}

}  // namespace

Branch Binomial(const Group& group, int root) {
  const int n = group.size();
  const int me = DistanceFrom(group, root);
  Branch branch;
  int bit = 1;  // my subtree is [me, me + bit)
  while (bit < n && (me & bit) == 0) {
    bit *= 2;
  }
  if (me != 0) {
    branch.parent = RankAt(group, root, me - bit);
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (me + bit < n) {
      branch.children.push_back(RankAt(group, root, me + bit));
    }
  }
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
  // The acknowledgements are awaited together with the last send: one round less.
  for (const int child : branch.children) {
    draft->AwaitSignal(child);
  }
  if (branch.parent >= 0) {
    draft->BeginRound();
    draft->Signal(branch.parent);
  }
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
