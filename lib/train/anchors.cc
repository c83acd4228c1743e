#include "lib/train/anchors.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

constexpr uint64_t kBasis = 0xcbf29ce484222325u;

// FNV-1a over 64-bit words. Each step is a bijection of the state, so a change of one word always
// changes the result.
uint64_t Mix(uint64_t state, uint64_t word) {
  return (state ^ word) * 0x100000001b3u;
}

// Makes every output bit depend on all input bits. Must be applied before one state is mixed into
// another.
uint64_t Spread(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

uint64_t HashBlock(const float* values, int64_t count) {
  uint64_t chains[kHashChains];
  for (uint64_t c = 0; c < kHashChains; ++c) {
    chains[c] = kBasis + c;
  }
  const int64_t whole = count / kHashStep * kHashStep;
  BestKernels().hash(chains, values, whole);
  for (int64_t i = whole; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, values + i, sizeof(word));
    chains[0] = Mix(chains[0], word);
  }
  auto hash = static_cast<uint64_t>(count);
  for (const uint64_t chain : chains) {
    hash = Mix(hash, Spread(chain));
  }
  return Spread(hash);
}

uint64_t HashArray(const float* values, int64_t count) {
  std::vector<uint64_t> blocks(static_cast<size_t>((count + kHashBlock - 1) / kHashBlock));
  ForPieces(count, kHashBlock, [&](int64_t first, int64_t length) {
    for (const int64_t end = first + length; first < end; first += kHashBlock) {
      blocks[static_cast<size_t>(first / kHashBlock)] =
          HashBlock(values + first, std::min(kHashBlock, end - first));
    }
  });
  return CombineHashes(blocks);
}

uint64_t CombineHashes(absl::Span<const uint64_t> hashes) {
  uint64_t combined = kBasis;
  for (const uint64_t hash : hashes) {
    combined = Mix(combined, hash);
  }
  combined = Spread(combined);
  return combined == 0 ? 1 : combined;
}

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
