// What is asked of an algorithm, and where blocks of the data lie.
//
// The data of one call is one vector D, cut into blocks 0 .. blocks-1. For all_reduce, reduce, broadcast and the scans
// D is the buffer; for reduce_scatter, all_gather, gather and scatter it is the concatenation of every rank's part, in
// rank order; for all_to_all there are two of them, one of what goes to each rank and one of what came from each. Each
// slot of a rank holds all of D, its own part, or nothing (InputWindow, OutputWindow). Schedules speak of blocks only;
// a Layout (block -> first element, elements) is bound when a call starts, so one schedule serves every count. Uneven
// parts (the v-forms) are another Layout, not another schedule.
//
//   lanes  independent straight-line pieces of the work; lane l of rank r's part is
//     one buffer       block l * ranks + r     (lane-major: a lane is contiguous in memory)
//     a part a rank    block r * lanes + l     (rank-major: a rank's part is contiguous in memory)
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "lib/base/call.h"

namespace entrain {

// kind: any collective. Sends and receives need no schedule.
struct Spec {
  CallKind kind = CallKind::kAllReduce;
  int rank = 0;
  int size = 1;
  int root = 0;   // where HasRoot(kind)
  int lanes = 1;  // >= 1
  // kGather, kScatter, kAllToAll: parts differ in length, and a rank knows only those it sends or receives.
  bool uneven = false;
  // kAllToAll: in and out are one memory. The others are right either way.
  bool in_place = false;
  friend bool operator==(const Spec&, const Spec&) = default;
};

// Blocks of D: size * lanes (kBarrier: 0).
int BlockCount(const Spec& spec);
// The block of `rank`'s part in `lane`.
int BlockOf(const Spec& spec, int rank, int lane);

// Blocks [first, last).
struct BlockRange {
  int first = 0, last = 0;
  bool Has(int block) const { return block >= first && block < last; }
  int blocks() const { return last - first; }
};
// What this rank's input and output hold of D.
BlockRange InputWindow(const Spec& spec);
BlockRange OutputWindow(const Spec& spec);

// Element ranges of D's blocks: block b holds elements [first[b], first[b + 1]).
struct Layout {
  std::vector<int64_t> first;  // blocks + 1 entries, ascending
  int blocks() const { return static_cast<int>(first.size()) - 1; }
  int64_t elements(int block) const {
    return first[static_cast<size_t>(block) + 1] - first[static_cast<size_t>(block)];
  }
};

// The layout of a call with `count` elements (as in Call::count): as even as can be, every lane of a part alike.
// HasParts(kind): D has size * count elements; else count.
Layout UniformLayout(const Spec& spec, int64_t count);
// HasParts(kind) only: rank r's part has counts[r] elements.
Layout UnevenLayout(const Spec& spec, absl::Span<const int64_t> counts);

// A subset of the ranks in an order of its own, and which of them I am. Fragments of schedules speak of group
// positions; `ranks[position]` is the communicator's rank.
struct Group {
  std::vector<int> ranks;
  int me = 0;
  int size() const { return static_cast<int>(ranks.size()); }
};

}  // namespace entrain
