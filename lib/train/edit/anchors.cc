#include "lib/train/edit/anchors.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"

namespace entrain {

Anchors::Anchors(const Slab& slab) : slab_(slab), offsets_(static_cast<size_t>(slab.layers())) {
  for (const int l : slab_.training()) {
    offsets_[static_cast<size_t>(l)] = count_;
    count_ += slab_.layer(l).shard;
  }
}

absl::Status Anchors::Create(const LayerArrays& live, int outer_arrays) {
  std::vector<OwnedBuffer> arrays(static_cast<size_t>(1 + outer_arrays));
  for (OwnedBuffer& array : arrays) {
    ENTRAIN_ASSIGN_OR_RETURN(array,
                             OwnedBuffer::Allocate(count_ * static_cast<int64_t>(sizeof(float))));
    ZeroShared(array.data(), array.size());
  }
  anchor_ = std::move(arrays[0]);
  outer_.assign(std::make_move_iterator(arrays.begin() + 1), std::make_move_iterator(arrays.end()));
  exist_ = true;
  seals_.assign(static_cast<size_t>(slab_.layers()), 0);
  for (const int l : slab_.training()) {
    live.Read(l, anchor(l), slab_.layer(l).valid);
  }
  return absl::OkStatus();
}

void Anchors::SealAll() {
  for (const int l : slab_.training()) {
    Seal(l);
  }
}

float* Anchors::Part(const OwnedBuffer& array, int layer) const {
  return array.data() == nullptr
             ? nullptr
             : reinterpret_cast<float*>(array.data()) + offsets_[static_cast<size_t>(layer)];
}

uint64_t Anchors::HashOf(int layer) const {
  return HashArray(anchor(layer), slab_.layer(layer).shard);
}

void Anchors::Seal(int layer) {
  seals_[static_cast<size_t>(layer)] = HashOf(layer);
}

void Anchors::Drop() {
  exist_ = false;
  anchor_ = OwnedBuffer();
  outer_.clear();
}

void Anchors::VisitState(StateVisitor& visitor) {
  if (!exist()) {
    return;
  }
  for (const int l : slab_.training()) {
    visitor.Layer("anchor", l, anchor(l));
    for (int array = 0; array < outer_arrays(); ++array) {
      visitor.Layer(absl::StrCat("outer/", array), l, outer(array, l));
    }
  }
}

uint64_t Anchors::checksum() const {
  return exist() ? CombineHashes(seals_) : 0;
}

}  // namespace entrain
