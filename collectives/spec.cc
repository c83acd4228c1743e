#include "collectives/spec.h"

#include <algorithm>
#include <cstddef>

namespace entrain {
namespace {

bool IsLaneMajor(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kBroadcast;
}

// Where part `index` of `parts` begins when `count` elements are cut evenly; the longer parts
// first.
int64_t CutAt(int64_t count, int parts, int index) {
  return count / parts * index + std::min<int64_t>(index, count % parts);
}

}  // namespace

int BlockCount(const Spec& spec) {
  return spec.kind == CallKind::kBarrier ? 0 : spec.size * spec.lanes;
}

int BlockOf(const Spec& spec, int rank, int lane) {
  return IsLaneMajor(spec.kind) ? lane * spec.size + rank : rank * spec.lanes + lane;
}

Layout UniformLayout(const Spec& spec, int64_t count) {
  const int blocks = BlockCount(spec);
  Layout layout;
  layout.first.resize(static_cast<size_t>(blocks) + 1);
  for (int b = 0; b <= blocks; ++b) {
    layout.first[static_cast<size_t>(b)] =
        blocks == 0 ? 0
        : IsLaneMajor(spec.kind)
            ? CutAt(count, blocks, b)
            : b / spec.lanes * count + CutAt(count, spec.lanes, b % spec.lanes);
  }
  return layout;
}

}  // namespace entrain
