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

Anchors::Anchors(const Slab& slab, DeviceRoom* room, bool offload)
    : slab_(slab), room_(room), offload_(offload), offsets_(static_cast<size_t>(slab.layers())) {
  for (const int l : slab_.training()) {
    offsets_[static_cast<size_t>(l)] = count_;
    count_ += slab_.layer(l).shard;
  }
}

absl::StatusOr<Anchors::Array> Anchors::Make() const {
  const int64_t bytes = count_ * static_cast<int64_t>(sizeof(float));
  Array array;
  if (room_ != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(array.data, offload_ ? room_->KeepPinned(bytes) : room_->Keep(bytes));
  } else {
    ENTRAIN_ASSIGN_OR_RETURN(array.host, OwnedBuffer::Allocate(bytes));
    array.data = array.host.data();
  }
  return array;
}

absl::Status Anchors::Reserve(int outer_arrays) {
  while (static_cast<int>(reserved_.size()) < 1 + outer_arrays) {
    ENTRAIN_ASSIGN_OR_RETURN(Array array, Make());
    reserved_.push_back(std::move(array));
  }
  return absl::OkStatus();
}

absl::Status Anchors::Create(const LayerArrays& live, int outer_arrays) {
  ENTRAIN_RETURN_IF_ERROR(Reserve(outer_arrays));
  for (Array& array : reserved_) {
    ZeroArray(array.data, count_ * static_cast<int64_t>(sizeof(float)));
    (anchor_.data == nullptr ? anchor_ : outer_.emplace_back()) = std::move(array);
  }
  reserved_.clear();
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

float* Anchors::Part(const Array& array, int layer) const {
  return array.data == nullptr
             ? nullptr
             : reinterpret_cast<float*>(array.data) + offsets_[static_cast<size_t>(layer)];
}

uint64_t Anchors::HashOf(int layer) const {
  const int64_t count = slab_.layer(layer).shard;
  if (room_ == nullptr) {
    return HashArray(anchor(layer), count);
  }
  KernelStream& on = *KernelStream::Current();
  if (!on.status().ok()) {
    return 0;
  }
  const auto hash = on.device().Hash(anchor(layer), count, on.stream(), on.limit());
  on.Note(hash.status());
  return hash.value_or(0);
}

void Anchors::Seal(int layer) {
  seals_[static_cast<size_t>(layer)] = HashOf(layer);
}

void Anchors::Drop() {
  exist_ = false;
  if (room_ != nullptr && anchor_.data != nullptr) {  // reuses device memory, which is never freed
    reserved_.push_back(std::move(anchor_));
    std::move(outer_.begin(), outer_.end(), std::back_inserter(reserved_));
  }
  anchor_ = Array();
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
