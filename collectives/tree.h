// Down a tree and up a tree: broadcast, reduce, gather and scatter with any root, and the dissemination barrier.
//
// broadcast on four ranks from root 0 (others: counted from the root on). The data goes down, one
// child a round, the largest subtree first:
//
//          0            first 0 -> 2,
//         / \           then 0 -> 1 and 2 -> 3
//        2   1
//        |
//        3
//
// n ranks, S bytes: at most ceil(log2 n) rounds a rank, as many messages one after another; S ceil(log2 n)
// bytes sent by the root, S (n-1) by all together.
//
// barrier on four ranks; a signal is a message of no bytes:
//
//   round   0     1     2     3
//     0     -> 1  -> 2  -> 3  -> 0        after round k everybody knows of 2^(k+1) ranks
//     1     -> 2  -> 3  -> 0  -> 1        n ranks: ceil(log2 n) rounds
//
// reduce: the same tree upwards, once; a rank combines its own value and those of all its children in one go.
// gather: the same tree upwards; a rank passes on the parts of its subtree in one message (in two, where the subtree goes
// around from the last rank to rank 0). scatter: downwards, likewise.
#pragma once

#include <vector>

#include "collectives/draft.h"

namespace entrain::tree {

// One rank's place in a tree.
struct Branch {
  int parent = -1;            // rank; -1: the root
  std::vector<int> children;  // ranks, in the order they are served
  bool at_once = false;       // all children in one round
  // Of child i, or of this rank: how many places behind the root its subtree begins, and how many it has. Binomial only.
  struct Span {
    int begin = 0, length = 0;
  };
  Span own;
  std::vector<Span> spans;
};

// `root`: a position in the group.
Branch Binomial(const Group& group, int root);
// Of radix 4: a rank has up to three children of each size, and half as many levels are enough.
Branch Knomial(const Group& group, int root);
Branch Star(const Group& group, int root);
// root, the one behind it, and so on around.
Branch Chain(const Group& group, int root);

// All parts, from the root's kIn to everybody else's kOut.
void Broadcast(Draft* draft, const Branch& branch);
// All parts, combined on the root. The order is that of the tree.
void Reduce(Draft* draft, const Branch& branch);
// Everybody's own part to the root, on a binomial tree; and back.
void Gather(Draft* draft, const Group& group, int root);
void Scatter(Draft* draft, const Group& group, int root);
// Nobody passes before all have come.
void Barrier(Draft* draft, const Group& group);

}  // namespace entrain::tree
