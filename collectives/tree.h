// Trees: broadcast, reduce, gather and scatter with any root, and the dissemination barrier.
//
// broadcast on four ranks from root 0. (For another root, the ranks are counted from the root on.)
// A rank sends the data to one child per round, to the child with the largest subtree first:
//
//          0            first 0 -> 2,
//         / \           then 0 -> 1 and 2 -> 3
//        2   1
//        |
//        3
//
// n ranks, S bytes: a rank has at most ceil(log2 n) rounds. The longest chain of messages has at
// most ceil(log2 n) messages. The root sends S ceil(log2 n) bytes. All ranks together send S (n-1)
// bytes.
//
// barrier on four ranks; a signal is a message of no bytes:
//
//   round   0     1     2     3
//     0     -> 1  -> 2  -> 3  -> 0        after round k a rank knows that 2^(k+1) ranks have come
//     1     -> 2  -> 3  -> 0  -> 1        n ranks: ceil(log2 n) rounds
//
// reduce: the same tree upwards. A rank combines its own value and the values of all its children
// in one operation. gather: the same tree upwards. A rank sends the parts of its subtree to its
// parent in one message. (If the subtree contains both the last rank and rank 0, the rank sends two
// messages.) scatter: the messages of gather in the other direction.
#pragma once

#include <vector>

#include "collectives/draft.h"

namespace entrain::tree {

// One rank's place in a tree.
struct Branch {
  int parent = -1;            // rank; -1: the root
  std::vector<int> children;  // ranks, in the order in which this rank sends to them
  bool at_once = false;       // all children in one round
  // A subtree. `begin`: the distance of its first rank from the root. `length`: its number of
  // ranks. `own` is the subtree of this rank, and spans[i] is the subtree of child i. Only Binomial
  // and Knomial set `own` and `spans`.
  struct Span {
    int begin = 0, length = 0;
  };
  Span own;
  std::vector<Span> spans;
};

// Return this rank's branch of a tree. `root` is a position in the group.
Branch Binomial(const Group& group, int root);
// Returns a branch of a tree of radix 4. A rank has up to three children with subtrees of each
// size. The tree has half as many levels as the binomial tree.
Branch Knomial(const Group& group, int root);
Branch Star(const Group& group, int root);
// Returns a chain: the root, the rank after it, and so on around the group.
Branch Chain(const Group& group, int root);

// Sends all parts from the root's kIn to every other rank's kOut.
void Broadcast(Draft* draft, const Branch& branch);
// Combines all parts on the root, in the order of the tree.
void Reduce(Draft* draft, const Branch& branch);
// Gather sends every rank's own part to the root, along a binomial tree. Scatter does the reverse.
void Gather(Draft* draft, const Group& group, int root);
void Scatter(Draft* draft, const Group& group, int root);
// No rank continues before all ranks have entered the barrier.
void Barrier(Draft* draft, const Group& group);

}  // namespace entrain::tree
