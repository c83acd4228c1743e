// Down a tree and up again: binomial broadcast from any root, and the dissemination barrier.
//
// broadcast on four ranks from root 0 (others: counted from the root on). The data goes down, one
// child a round, the largest subtree first; then messages of no bytes come back up, so that the
// root is done only when all have the data, and a rank that called something else fails the call
// everywhere:
//
//          0            data: 0 -> 2, then 0 -> 1 and 2 -> 3
//         / \           back: 3 -> 2 -> 0 and 1 -> 0
//        2   1
//        |
//        3
//
// n ranks, S bytes: at most ceil(log2 n) + 1 rounds a rank, 2 ceil(log2 n) messages one after
// another; S ceil(log2 n) bytes sent by the root, S (n-1) by all together.
//
// barrier on four ranks; a signal is a message of no bytes:
//
//   round   0     1     2     3
//     0     -> 1  -> 2  -> 3  -> 0        after round k everybody knows of 2^(k+1) ranks
//     1     -> 2  -> 3  -> 0  -> 1        n ranks: ceil(log2 n) rounds
#pragma once

#include <vector>

#include "collectives/draft.h"

namespace entrain::tree {

// One rank's place in a tree.
struct Branch {
  int parent = -1;            // rank; -1: the root
  std::vector<int> children;  // ranks, in the order they are served
  bool at_once = false;       // all children in one round
};

// `root`: a position in the group.
Branch Binomial(const Group& group, int root);
Branch Star(const Group& group, int root);
// root, the one behind it, and so on around.
Branch Chain(const Group& group, int root);

// All parts, from the root's kIn to everybody else's kOut, and acknowledged.
void Broadcast(Draft* draft, const Branch& branch);
// Nobody passes before all have come.
void Barrier(Draft* draft, const Group& group);

}  // namespace entrain::tree
