#include "collectives/direct.h"

#include <cstddef>

namespace entrain::direct {
namespace {

size_t At(int index) {
  return static_cast<size_t>(index);
}

// Returns the positions of the other members. The list begins with the position after this rank's.
// So members begin their sends with different members.
std::vector<int> Others(const Group& group) {
  std::vector<int> others;
  for (int step = 1; step < group.size(); ++step) {
    others.push_back((group.me + step) % group.size());
  }
  return others;
}

}  // namespace

void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last) {
  if (group.size() == 1) {
    return;
  }
  draft->BeginRound();
  std::vector<Contribution> from;
  for (const int other : Others(group)) {
    from.push_back(draft->RecvContribution(group.ranks[At(other)], other, pieces[At(group.me)]));
  }
  for (const int other : Others(group)) {
    draft->Send(group.ranks[At(other)], pieces[At(other)]);
  }
  draft->Combine(pieces[At(group.me)], group.me, from, last);
}

void AllGather(Draft* draft, const Group& group, const Pieces& pieces) {
  draft->BeginRound();
  for (const int other : Others(group)) {
    draft->Recv(group.ranks[At(other)], pieces[At(other)]);
  }
  for (const int other : Others(group)) {
    draft->Send(group.ranks[At(other)], pieces[At(group.me)]);
  }
  draft->Settle(pieces[At(group.me)]);
}

void AllReduce(Draft* draft, const Group& group, const Parts& parts) {
  if (group.size() == 1) {
    return;
  }
  draft->BeginRound();
  std::vector<Contribution> from;
  for (const int other : Others(group)) {
    from.push_back(draft->RecvContribution(group.ranks[At(other)], other, parts));
  }
  for (const int other : Others(group)) {
    draft->Send(group.ranks[At(other)], parts);
  }
  draft->Combine(parts, group.me, from, /*last=*/true);
}

void Reduce(Draft* draft, const Group& group, int root, const Parts& parts) {
  if (group.size() == 1) {
    return;
  }
  draft->BeginRound();
  if (group.me != root) {
    draft->Send(group.ranks[At(root)], parts);
    return;
  }
  std::vector<Contribution> from;
  for (const int other : Others(group)) {
    from.push_back(draft->RecvContribution(group.ranks[At(other)], other, parts));
  }
  draft->Combine(parts, group.me, from, /*last=*/true);
}

void Gather(Draft* draft, const Group& group, int root, const Pieces& pieces) {
  draft->BeginRound();
  if (group.me != root) {
    draft->Send(group.ranks[At(root)], pieces[At(group.me)]);
    return;
  }
  for (const int other : Others(group)) {
    draft->Recv(group.ranks[At(other)], pieces[At(other)]);
  }
  draft->Settle(pieces[At(group.me)]);
}

void Scatter(Draft* draft, const Group& group, int root, const Pieces& pieces) {
  draft->BeginRound();
  if (group.me != root) {
    draft->Recv(group.ranks[At(root)], pieces[At(group.me)]);
    return;
  }
  for (const int other : Others(group)) {
    draft->Send(group.ranks[At(other)], pieces[At(other)]);
  }
  draft->Settle(pieces[At(group.me)]);
}

void Barrier(Draft* draft, const Group& group) {
  draft->BeginRound();
  for (const int other : Others(group)) {
    draft->AwaitSignal(group.ranks[At(other)]);
    draft->Signal(group.ranks[At(other)]);
  }
}

}  // namespace entrain::direct
