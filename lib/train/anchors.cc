#include "lib/train/anchors.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

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

void ArrayHash::Add(const float* values, int64_t count) {
  // Uses local variables, so that the loop stores nothing to memory.
  uint64_t a = chains_[0], b = chains_[1], c = chains_[2], d = chains_[3];
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t words[4];
    std::memcpy(words, values + i, sizeof(words));
    a = Mix(a, words[0]);
    b = Mix(b, words[1]);
    c = Mix(c, words[2]);
    d = Mix(d, words[3]);
  }
  for (; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, values + i, sizeof(word));
    a = Mix(a, word);
  }
  chains_[0] = a;
  chains_[1] = b;
  chains_[2] = c;
  chains_[3] = d;
  count_ += static_cast<uint64_t>(count);
}

uint64_t ArrayHash::Total() const {
  uint64_t hash = count_;
  for (const uint64_t chain : chains_) {
    hash = Mix(hash, Spread(chain));
  }
  return Spread(hash);
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
    ArrayHash hash;
    hash.Add(anchor(layer), count);
    return hash.Total();
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

void Anchors::Seal(int layer, const ArrayHash& hash) {
  seals_[static_cast<size_t>(layer)] = hash.Total();
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
