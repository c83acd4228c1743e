#include "collectives/spec.h"

#include <algorithm>
#include <cstddef>

namespace entrain {
namespace {

// Cuts `count` elements evenly into `parts` parts, the longer parts first. Returns the first
// element of part `index`.
int64_t CutAt(int64_t count, int parts, int index) {
  return count / parts * index + std::min<int64_t>(index, count % parts);
}

}  // namespace

int BlockCount(const Spec& spec) {
  return spec.kind == CallKind::kBarrier ? 0 : spec.size * spec.lanes;
}

int BlockOf(const Spec& spec, int rank, int lane) {
  return HasParts(spec.kind) ? rank * spec.lanes + lane : lane * spec.size + rank;
}

BlockRange InputWindow(const Spec& spec) {
  switch (spec.kind) {
    case CallKind::kAllGather:
    case CallKind::kGather:
      return {spec.rank * spec.lanes, (spec.rank + 1) * spec.lanes};
    case CallKind::kBroadcast:
    case CallKind::kScatter:
      return {0, spec.rank == spec.root ? BlockCount(spec) : 0};
    default:
      return {0, BlockCount(spec)};
  }
}

BlockRange OutputWindow(const Spec& spec) {
  switch (spec.kind) {
    case CallKind::kReduceScatter:
    case CallKind::kScatter:
      return {spec.rank * spec.lanes, (spec.rank + 1) * spec.lanes};
    case CallKind::kReduce:
    case CallKind::kGather:
      return {0, spec.rank == spec.root ? BlockCount(spec) : 0};
    default:
      return {0, BlockCount(spec)};
  }
}

Layout UniformLayout(const Spec& spec, int64_t count) {
  const int blocks = BlockCount(spec);
  Layout layout;
  layout.first.resize(static_cast<size_t>(blocks) + 1);
  for (int b = 0; b <= blocks; ++b) {
    layout.first[static_cast<size_t>(b)] =
        blocks == 0           ? 0
        : HasParts(spec.kind) ? b / spec.lanes * count + CutAt(count, spec.lanes, b % spec.lanes)
                              : CutAt(count, blocks, b);
  }
  return layout;
}

Layout UnevenLayout(const Spec& spec, absl::Span<const int64_t> counts) {
  Layout layout;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    for (int lane = 0; lane < spec.lanes; ++lane) {
      layout.first.push_back(begin + CutAt(count, spec.lanes, lane));
    }
    begin += count;
  }
  layout.first.push_back(begin);
  return layout;
}

}  // namespace entrain
