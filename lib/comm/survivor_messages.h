// The messages by which ranks agree on the remaining ranks (survivors.h), and their wire format.
// Every message begins with the number of the call (u32) and the type (u8). The fields of this type
// follow.
//
// Thread safety: the same as for other values.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/comm/rank_set.h"

namespace entrain {

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
