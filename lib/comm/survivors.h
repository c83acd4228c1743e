// Decides which ranks of a communicator go on after a failure. All of these ranks make the same
// decision. Survivors is a pure state machine, (state, event, time) -> messages, without I/O and
// clock. On each rank, one machine serves all agreements of a communicator (entrain_comm_agree and
// entrain_comm_shrink), one after the other. The agreements are numbered from 1.
//
// The knowledge that a rank has of another rank only grows:
//   gone   It is proven that the rank's process has ended, or that the rank has left the
//          communicator or has given up. The rank decides nothing any more.
//   cut    This rank and the other rank do not reach each other: the path was lost, or one of the
//          two was silent for longer than its peer allows. A rank ignores everything that a cut
//          rank sends, except a decision that leaves this rank out. A rank that is gone is also
//          cut.
// The `base` is the set of ranks on which the previous agreement has decided. At first it contains
// all ranks.
//
// A rank that has made the call sends a report (its knowledge and its wish) to all ranks. It sends
// a new report when it learns more, and after every quarter of the silence that it allows. A rank
// answers a report at once, even if its caller has not made the call. So silence means that the
// rank's library does not run. A slow application does not cause silence. If the caller of a rank
// has not made the call, the agreement waits for this rank until the deadline.
//
// Each rank follows the lowest rank of the base that it has not cut: its leader. A rank that
// follows itself is a leader. A leader waits until every rank that it has not cut has made the call
// and follows this leader.
//   1 The leader chooses a decision. If reports contain decisions that ranks accepted from earlier
//     leaders, it chooses the decision of the highest of these leaders. Otherwise it chooses a set
//     of ranks that all reach each other, their contexts, and the AND of their flags. To find the
//     set, the leader drops the rank with the most broken paths, again and again until no broken
//     path is left. (The reports show which paths are broken. If several ranks have the most broken
//     paths, the leader drops the highest of them.)
//   2 The leader proposes this decision to every rank that it has not cut. A rank accepts only
//     proposals of its leader, and its later reports contain the decision that it has accepted. If
//     a report brings something new, the leader begins a new attempt.
//   3 If all ranks that got the proposal have accepted it, and they are a quorum, the leader has
//     decided. The leader tells the decision to all ranks, and so does each rank that learns it.
//     From then on a rank that knows the decision answers every message with it.
//
//     rank 0 (leader)    rank 1            rank 2            rank 3 is gone
//       report  ───────────>  ───────────────>                        all to all
//       <──────────── report  <──────── report
//       proposal ──────────>  ───────────────>                        {0, 1, 2}, contexts, flags
//       <──────── acceptance  <──── acceptance
//       decision ──────────>  ───────────────>  ...                   and from all to all
//
// A quorum (kMajority) is one of these: all ranks of the base that are not gone, however few they
// are; more than half of the base; half of the base with the lowest rank of the base. With kAny
// every set is a quorum.
//
// A rank gives up for ever in one of these cases: a decision leaves it out, a rank excludes it, it
// belongs to no quorum, or a set without it is larger and all ranks of that set reach each other.
//
// Why two live ranks never decide differently (kMajority). Let the leader L have decided v. Q are
// the ranks that accepted v from L. Let M be a leader with a higher rank that decides w. P are the
// ranks that accepted w from M. Each rank of P has cut L before it reported to M, and accepts
// nothing from L afterwards.
//   Case 1: a rank x is in Q and in P. x accepted v before it reported to M. So M has seen v, or a
//   value that a leader between L and M has proposed. By induction that value is v too. So w = v.
//   (A leader proposes another value at a later attempt only if it has not decided, and no other
//   rank decides for it.)
//   Case 2: no rank is in Q and in P. Then Q and P do not both have half of the base or more,
//   because two such quorums have a common rank. So one of them has all ranks that are not gone.
//   If this is P, then all ranks of Q are gone, and so is L. L has not left the communicator: a
//   rank that learns that L has left has got L's decision before. Such a rank has adopted the
//   decision, or has given up, or is in the decided set and has accepted the proposal. L has not
//   given up, because it has decided. So L is dead, and so is each rank that L's decision reached
//   in time: M's proposal names the ranks that are gone. A rank that accepts this proposal has cut
//   all of them, has decided nothing, and will adopt no decision of theirs.
//   If Q has all ranks that are not gone, then P is gone, and the same argument holds with P and Q
//   exchanged.
// A majority of only those ranks that are not proven dead would not be a safe quorum. Example: of
// the ranks 0 to 3, 0 and 3 have cut 1 and 2, and decide without them. Then 0 dies, and 1 and 2
// learn that. They would be 2 of 3 ranks, and could decide again.
//
// With kAny, ranks that do not reach each other may decide differently, even if each of them is in
// the set of the other.
//
// The machine consists of three parts. SurvivorKnowledge (survivor_knowledge.h) has the reports of
// all ranks, and answers what follows from them. PeerSilence (peer_silence.h) decides which rank is
// silent. Survivors exchanges the messages (survivor_messages.h) and decides.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/comm/peer_silence.h"
#include "lib/comm/rank_set.h"
#include "lib/comm/survivor_knowledge.h"
#include "lib/comm/survivor_messages.h"

namespace entrain {

class Survivors {
 public:
  // In a larger communicator, a message of this machine would not fit into a control message.
  static constexpr int kMostRanks = 1500;

  using Kind = SurvivorCallKind;
  using Decision = SurvivorDecision;
  using Error = Decision::Error;
  // The contribution of this rank's caller to an agreement.
  struct Wish {
    Kind kind = Kind::kAgree;
    bool any = false;     // Partition::kAny
    uint32_t flag = ~0u;  // for kAgree
    // For kShrink: this rank's context number for the new communicator. 0: no number is left.
    uint16_t context = 0;
    std::vector<int> exclude = {};
  };

  // Why this rank has given up.
  enum class End : uint8_t {
    kNone,
    kLeftOut,    // a decision leaves this rank out, or reached it too late; see those_who_went_on
    kExcluded,   // the rank `by` excludes this rank
    kMinority,   // too few ranks reach each other
    kTakenGone,  // the rank `by` counts this rank as gone
  };

  struct Message {
    int to;
    std::string text;
  };

  Survivors(int rank, int size);

  // ---- Events
  // Must be called when the caller makes the next call, or repeats the call that is still
  // undecided. In a repeated call only `wish.exclude` is used; its ranks are added to those of the
  // first attempt. `silence_ns`: this rank cuts a rank that sends nothing for this time.
  void Call(const Wish& wish, int64_t now_ns, int64_t silence_ns);
  void OnMessage(int from, absl::string_view text, int64_t now_ns);
  // Must be called when it is proven that the rank is gone (see the head of this file).
  void OnGone(int rank, int64_t now_ns);
  void OnCut(int rank, int64_t now_ns);
  void OnTick(int64_t now_ns);
  Deadline next_tick() const;

  // ---- Results
  // Returns the messages to be sent, in this order.
  std::vector<Message> TakeMessages() { return std::exchange(out_, {}); }
  // Returns the number of the call that is under way. If there is none, returns the number of the
  // next call.
  uint32_t number() const { return number_; }
  // Returns true if the caller has made the call number(), and the call is not decided.
  bool pending() const { return knows_.own().called && end_ == End::kNone; }
  Kind pending_kind() const { return knows_.own().kind; }
  // Returns the decision about the call number() - 1, if it contains this rank.
  const std::optional<Decision>& last() const { return last_; }
  End end() const { return end_; }
  int by() const { return by_; }
  // Returns the ranks that went on without this rank. Empty: this rank does not know them.
  const RankSet& those_who_went_on() const { return went_on_; }
  // Returns what this rank knows about the call number().
  const SurvivorKnowledge& knowledge() const { return knows_; }

 private:
  // A proposal of this rank, which is a leader.
  struct Attempt {
    SurvivorProposal proposal;
    RankSet to, accepted_by;
  };

  // Begins a new agreement of these ranks: forgets everything about the one before.
  void Begin(RankSet base);

  // Messages.
  void Send(int to, std::string text);
  std::string ReportText(bool asks) const;
  void SendReport(int to) { Send(to, ReportText(/*asks=*/false)); }
  void TellAll(bool asks);
  void OnReport(int from, SurvivorReport report);
  void OnProposal(int from, Reader* in);
  void OnAcceptance(int from, Reader* in);
  void OnDecision(int from, uint32_t number, Reader* in);

  bool AddCut(int rank);
  // Must be called when the knowledge of this rank has changed. Sends a new report to all ranks and
  // calls Step.
  void Changed();
  void GiveUp(End end, int by);
  // [leader]
  void Step();
  // Returns the value to propose. nullopt: this rank has given up.
  std::optional<Decision> Choose();
  void Propose(Decision decision);
  void CountAcceptances();
  void Decide(const Decision& decision);

  const int rank_, size_;
  uint32_t number_ = 1;
  SurvivorKnowledge knows_;
  PeerSilence silence_;
  AcceptedDecision recovered_;  // the best decision of an earlier leader that this leader has seen
  std::optional<Attempt> attempt_;
  uint32_t attempts_ = 0;

  std::optional<Decision> last_;
  End end_ = End::kNone;
  int by_ = -1;
  RankSet went_on_;
  std::vector<Message> out_;
};

}  // namespace entrain
