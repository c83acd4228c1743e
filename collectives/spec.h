// The description of a call from which an algorithm builds a schedule (Spec), and the places of the
// blocks of its data (Layout).
//
// The data of one call is one vector D, cut into blocks 0 .. blocks-1. For all_reduce, reduce,
// broadcast and the scans, D is the buffer. For reduce_scatter, all_gather, gather and scatter, D
// has the parts of all ranks, in rank order. all_to_all has two such vectors: the input has the
// parts that go to each rank, and the output has the parts that come from each rank. Each slot of a
// rank holds all of D, the rank's own part, or nothing (InputWindow, OutputWindow). Schedules name
// blocks only. A Layout gives each block its first element and its number of elements. A schedule
// gets a Layout when a call starts, so one schedule serves every count. Uneven parts (MPI's
// v-variants) need another Layout, but no other schedule.
//
//   lanes  independent pieces of the work. Rank r's part in lane l is
//     if D is the buffer:     block l * ranks + r  (lane-major: a lane is contiguous in memory)
//     if D has ranks' parts:  block r * lanes + l  (rank-major: a rank's part is contiguous)
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "lib/base/call.h"

namespace entrain {

// `kind` may be any collective. Sends and receives need no schedule.
struct Spec {
  CallKind kind = CallKind::kAllReduce;
  int rank = 0;
  int size = 1;
  int root = 0;   // used only if HasRoot(kind)
  int lanes = 1;  // >= 1
  // kGather, kScatter, kAllToAll: parts have different lengths, and a rank knows only the lengths
  // of the parts that it sends or receives.
  bool uneven = false;
  // kAllToAll: kIn and kOut are the same memory. The schedules of all other kinds work in place.
  bool in_place = false;
  friend bool operator==(const Spec&, const Spec&) = default;
};

// Returns the number of blocks of D: size * lanes (kBarrier: 0).
int BlockCount(const Spec& spec);
// Returns the block of `rank`'s part in `lane`.
int BlockOf(const Spec& spec, int rank, int lane);

// Blocks [first, last).
struct BlockRange {
  int first = 0, last = 0;
  bool Has(int block) const { return block >= first && block < last; }
  int blocks() const { return last - first; }
};
// Return the blocks of D that this rank's input and output hold.
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

// Returns the layout of a call with `count` elements (as in Call::count). The elements are cut as
// evenly as possible. If HasParts(kind), D has size * count elements, and every part is cut into
// lanes in the same way. Otherwise D has count elements.
Layout UniformLayout(const Spec& spec, int64_t count);
// Returns the layout in which rank r's part has counts[r] elements. Requires HasParts(kind).
Layout UnevenLayout(const Spec& spec, absl::Span<const int64_t> counts);

// A subset of the ranks in any order, and this rank's position in it. Fragments (draft.h) name
// members by their positions in the group. `ranks[position]` is the member's rank in the
// communicator.
struct Group {
  std::vector<int> ranks;
  int me = 0;
  int size() const { return static_cast<int>(ranks.size()); }
};

}  // namespace entrain
