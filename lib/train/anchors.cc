#include "lib/train/anchors.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr uint64_t kBasis = 0xcbf29ce484222325u;

// FNV-1a over 64-bit words: one change of one word always changes the result, since each turn is a
// bijection of the state.
uint64_t Mix(uint64_t state, uint64_t word) {
  return (state ^ word) * 0x100000001b3u;
}

// Brings every bit to bear on every other, before states are mixed with each other.
uint64_t Spread(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

void ArrayHash::Add(const float* values, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t words[4];
    std::memcpy(words, values + i, sizeof(words));
    for (int c = 0; c < 4; ++c) {
      chains_[c] = Mix(chains_[c], words[c]);
    }
  }
  for (; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, values + i, sizeof(word));
    chains_[0] = Mix(chains_[0], word);
  }
  count_ += static_cast<uint64_t>(count);
}

uint64_t ArrayHash::Total() const {
  uint64_t hash = count_;
  for (const uint64_t chain : chains_) {
    hash = Mix(hash, Spread(chain));
  }
  return Spread(hash);
}

Anchors::Anchors(const Slab& slab) : slab_(slab), offsets_(static_cast<size_t>(slab.layers())) {
  for (const int l : slab_.training()) {
    offsets_[static_cast<size_t>(l)] = count_;
    count_ += slab_.layer(l).shard;
  }
}

absl::Status Anchors::Create(const float* params, int outer_arrays) {
  const int64_t bytes = count_ * static_cast<int64_t>(sizeof(float));
  ENTRAIN_ASSIGN_OR_RETURN(anchor_, OwnedBuffer::Allocate(bytes));
  std::memset(anchor_.data(), 0, static_cast<size_t>(bytes));
  for (int array = 0; array < outer_arrays; ++array) {
    ENTRAIN_ASSIGN_OR_RETURN(OwnedBuffer outer, OwnedBuffer::Allocate(bytes));
    std::memset(outer.data(), 0, static_cast<size_t>(bytes));
    outer_.push_back(std::move(outer));
  }
  seals_.assign(static_cast<size_t>(slab_.layers()), 0);
  for (const int l : slab_.training()) {
    const SlabLayer& layer = slab_.layer(l);
    if (layer.valid > 0) {
      std::memcpy(anchor(l), params + layer.offset,
                  static_cast<size_t>(layer.valid) * sizeof(float));
    }
    Seal(l);
  }
  return absl::OkStatus();
}

float* Anchors::Part(const OwnedBuffer& buffer, int layer) const {
  return buffer.size() == 0
             ? nullptr
             : reinterpret_cast<float*>(buffer.data()) + offsets_[static_cast<size_t>(layer)];
}

void Anchors::Seal(int layer) {
  ArrayHash hash;
  hash.Add(anchor(layer), slab_.layer(layer).shard);
  Seal(layer, hash);
}

void Anchors::Seal(int layer, const ArrayHash& hash) {
  seals_[static_cast<size_t>(layer)] = hash.Total();
}

void Anchors::Drop() {
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
  if (!exist()) {
    return 0;
  }
  uint64_t hash = kBasis;
  for (const uint64_t seal : seals_) {
    hash = Mix(hash, seal);
  }
  hash = Spread(hash);
  return hash == 0 ? 1 : hash;
}

}  // namespace entrain
