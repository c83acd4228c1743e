// A set of ranks, stored as one bit per rank.
//
// Thread safety: the same as for a std::vector.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/bytes.h"

namespace entrain {

class RankSet {
 public:
  RankSet() = default;
  // Makes an empty set that can hold the ranks 0 to size - 1.
  explicit RankSet(int size)
      : size_(size), bytes_((static_cast<size_t>(size) + 7) / 8, uint8_t{0}) {}
  static RankSet All(int size) {
    RankSet all(size);
    for (int r = 0; r < size; ++r) {
      all.Add(r);
    }
    return all;
  }

  bool Has(int rank) const { return (bytes_[Byte(rank)] & Bit(rank)) != 0; }
  // Adds the rank. Returns true if the rank was not in the set before.
  bool Add(int rank) {
    const bool added = !Has(rank);
    bytes_[Byte(rank)] = static_cast<uint8_t>(bytes_[Byte(rank)] | Bit(rank));
    return added;
  }
  void Remove(int rank) {
    bytes_[Byte(rank)] = static_cast<uint8_t>(bytes_[Byte(rank)] & ~Bit(rank));
  }
  bool Contains(const RankSet& other) const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if ((other.bytes_[i] & ~bytes_[i]) != 0) {
        return false;
      }
    }
    return true;
  }
  RankSet Without(const RankSet& other) const {
    RankSet rest = *this;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      rest.bytes_[i] = static_cast<uint8_t>(rest.bytes_[i] & ~other.bytes_[i]);
    }
    return rest;
  }
  void Merge(const RankSet& other) {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<uint8_t>(bytes_[i] | other.bytes_[i]);
    }
  }
  bool empty() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](uint8_t byte) { return byte == 0; });
  }
  int count() const { return static_cast<int>(ranks().size()); }
  // Returns the lowest rank of the set, or -1 if the set is empty.
  int lowest() const {
    for (int r = 0; r < size_; ++r) {
      if (Has(r)) {
        return r;
      }
    }
    return -1;
  }
  // Returns the ranks of the set in ascending order.
  std::vector<int> ranks() const {
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r) {
      if (Has(r)) {
        ranks.push_back(r);
      }
    }
    return ranks;
  }
  friend bool operator==(const RankSet&, const RankSet&) = default;

  void WriteTo(Writer* out) const { out->PutRaw(bytes_.data(), bytes_.size()); }
  // Reads a set of the ranks 0 to size - 1, written by WriteTo. Clears the bits of other ranks.
  static RankSet ReadFrom(Reader* in, int size) {
    RankSet set(size);
    const absl::string_view raw = in->GetRaw(set.bytes_.size());
    std::copy(raw.begin(), raw.end(), set.bytes_.begin());
    if (size % 8 != 0) {
      set.bytes_.back() = static_cast<uint8_t>(set.bytes_.back() & ((1u << (size % 8)) - 1));
    }
    return set;
  }

 private:
  static size_t Byte(int rank) { return static_cast<size_t>(rank) / 8; }
  static uint8_t Bit(int rank) { return static_cast<uint8_t>(1u << (rank % 8)); }

  int size_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace entrain
