// The messages by which ranks agree on the remaining ranks (survivors.h), their wire format, and
// the sets of ranks in them. Every message begins with the number of the call (u32) and the type
// (u8). The fields of this type follow.
//
// Thread safety: the same as for other values.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/bytes.h"

namespace entrain {

// A set of ranks, stored as one bit per rank.
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

enum class SurvivorMessageType : uint8_t {
  kReport = 1,
  kProposal = 2,
  kAcceptance = 3,
  kDecision = 4,
};

enum class SurvivorCallKind : uint8_t { kAgree = 1, kShrink = 2 };

// The result of an agreement.
struct SurvivorDecision {
  enum class Error : uint8_t {
    kNone = 0,
    kKinds = 1,     // the call of `culprit` differs from the call of the leader
    kPolicies = 2,  // the partition policy of `culprit` differs
    kContexts = 3,  // `culprit` has no context number left
  };
  SurvivorCallKind kind = SurvivorCallKind::kAgree;
  Error error = Error::kNone;
  bool any = false;
  int culprit = -1;
  uint32_t flag = 0;
  RankSet members;
  std::vector<uint16_t> contexts;  // of the members, in rank order
  friend bool operator==(const SurvivorDecision&, const SurvivorDecision&) = default;

  // Returns the message that tells the decision.
  std::string ToText(uint32_t number) const;
  // The decision is the last field of several messages. Read must be called on an empty decision.
  // Read returns false if the fields are malformed. The caller must check that no bytes follow the
  // decision.
  void WriteTo(Writer* out) const;
  bool Read(Reader* in, int size);
};

// A ballot identifies a proposal. Ballots are ordered by leader, and then by attempt.
struct SurvivorBallot {
  int32_t leader = -1;  // -1: none
  uint32_t attempt = 0;
  friend auto operator<=>(const SurvivorBallot&, const SurvivorBallot&) = default;
};

// A decision that a rank has accepted, and its ballot.
struct AcceptedDecision {
  SurvivorBallot ballot;
  SurvivorDecision decision;
};

// A message in which a rank describes itself: whether its caller has made the call, the caller's
// wish, the rank's knowledge of other ranks, and the decision that the rank has accepted.
struct SurvivorReport {
  bool called = false, given_up = false;
  bool asks = false;  // the receiver must answer with its own report
  // The wish (Survivors::Wish).
  bool any = false;
  SurvivorCallKind kind = SurvivorCallKind::kAgree;
  uint32_t flag = ~0u;
  uint16_t context = 0;
  RankSet cut, gone, exclude;
  AcceptedDecision accepted;

  std::string ToText(uint32_t number) const;
  // Reads the fields after the type, up to the end of the message. Returns false if the fields are
  // malformed. SurvivorProposal::Read and SurvivorAcceptance::Read do so too.
  bool Read(Reader* in, int size);
};

// A leader's proposal. The leader is the sender.
struct SurvivorProposal {
  uint32_t attempt = 0;
  RankSet gone;  // the ranks that are gone for the leader
  SurvivorDecision decision;

  std::string ToText(uint32_t number) const;
  bool Read(Reader* in, int size);
};

// Tells a leader that its proposal is accepted.
struct SurvivorAcceptance {
  uint32_t attempt = 0;

  std::string ToText(uint32_t number) const;
  bool Read(Reader* in);
};

}  // namespace entrain
