// Decides which ranks of a communicator go on after a failure. All of these ranks make the same
// decision. Survivors is a pure state machine, (state, event, time) -> messages, without I/O and
// clock. On each rank, one machine serves all agreements of a communicator (entrain_comm_agree and
// entrain_comm_shrink), one after the other. The agreements are numbered from 1.
//
// For each other rank, a rank knows whether the other rank is gone or cut. These states are
// permanent:
//   gone   It is proven that the process of the rank has ended, that the rank has left the
//          communicator, or that the rank has given up. A gone rank decides nothing any more.
//   cut    This rank and the other rank do not reach each other: the path was lost, or one of the
//          two ranks was silent for longer than the other rank allows. This rank ignores all
//          messages from a cut rank, except a decision that leaves this rank out. A gone rank is
//          also cut.
// The `base` is the set of ranks on which the previous agreement has decided. At first it contains
// all ranks.
//
// When the caller of a rank makes the call, the rank sends a report to all ranks. The report
// contains the rank's knowledge, and the arguments of its caller (Wish). The rank sends a new
// report when its knowledge grows, and after each quarter of the allowed silence. If a report asks
// for an answer, the receiver answers at once, even if its own caller has not made the call. So
// silence means that the library of that rank does not run. A slow application does not cause
// silence. If the caller of a rank has not made the call, the agreement waits for this rank until
// the deadline.
//
// Each rank follows its leader: the lowest rank of the base that it has not cut. A rank that
// follows itself is a leader. A leader waits until every rank that it has not cut has made the call
// and follows this leader.
//   1 The leader chooses a decision. Reports may contain decisions that ranks accepted from leaders
//     with a lower rank than this leader. If so, it chooses the decision of the highest of those
//     leaders. Otherwise it chooses a set of ranks that all reach each other, their contexts, and
//     the AND of their flags. To find the set, the leader repeatedly drops the rank with the most
//     broken paths, until no broken path is left. (The reports show the broken paths. If several
//     ranks have the most broken paths, the leader drops the highest of these ranks.)
//   2 The leader proposes this decision to every rank that it has not cut. A rank accepts only
//     proposals from its leader. Its later reports contain the accepted decision. If a report
//     changes the proposal, the leader begins a new attempt.
//   3 If all ranks that got the proposal have accepted it, and they are a quorum, the leader has
//     decided. The leader sends the decision to all ranks. Each rank that learns the decision also
//     sends it to all ranks. From then on, these ranks answer every message about this agreement
//     with the decision.
//
//     rank 0 (leader)    rank 1            rank 2            rank 3 is gone
//       report  ───────────>  ───────────────>                        all to all
//       <──────────── report  <──────── report
//       proposal ──────────>  ───────────────>                        {0, 1, 2}, contexts, flags
//       <──────── acceptance  <──── acceptance
//       decision ──────────>  ───────────────>  ...                   and from all to all
//
// With kMajority, a quorum is one of these sets: all ranks of the base that are not gone, however
// few they are; more than half of the base; exactly half of the base, including its lowest rank.
// With kAny, every set is a quorum.
//
// A rank gives up for ever in one of these cases: a decision leaves it out, another rank excludes
// it, another rank counts it as gone, or the ranks that it reaches are not a quorum. A rank that is
// excluded proposes and accepts nothing, and obeys after a moment, unless its excluder has cut it.
// So a process that was stopped, and finds an old exclusion when it wakes up, reads on: if its
// excluder has cut it, and perhaps given up as a minority, it is no longer excluded but cut off,
// and may be the quorum. A rank also gives up if there is a larger quorum without it, and all ranks
// of that quorum reach each other.
//
// Why two live ranks never decide differently (kMajority). Let L be a leader that has decided v.
// Let Q be the set of ranks that accepted v from L. Let M be a leader with a higher rank that
// decides w. Let P be the set of ranks that accepted w from M. Each rank of P has cut L before it
// reported to M, and accepts nothing from L afterwards.
//   Case 1: a rank x is in Q and in P. x accepted v before it reported to M. So M has seen v, or a
//   value that a leader between L and M has proposed. By induction that value is also v. So w = v.
//   (A leader may propose another value in a later attempt, but only if it has not decided. No
//   other rank decides in its place.)
//   Case 2: no rank is in Q and in P. Two quorums of the last two kinds have a common rank. So Q or
//   P has all ranks of the base that are not gone. Suppose that it is P. Then all ranks of Q are
//   gone, and L is gone. L has not left the communicator: before a rank learns that L has left, it
//   gets L's decision. Such a rank has adopted the decision, or has given up, or is in the decided
//   set and has accepted the proposal. L has not given up, because it has decided. So the process
//   of L has ended. The process of each rank that L's decision reached in time has ended too. M's
//   proposal names the gone ranks. A rank that accepts M's proposal has cut all gone ranks and has
//   decided nothing. It will adopt no decision from a gone rank.
//   If Q has all ranks that are not gone, then all ranks of P are gone. The same argument holds
//   with P and Q exchanged.
// A majority of the ranks that are not proven dead would not be a safe quorum. Example: the base
// has the ranks 0 to 3. Ranks 0 and 3 have cut ranks 1 and 2, and decide without them. Then rank 0
// dies, and ranks 1 and 2 learn this. Ranks 1 and 2 would be 2 of 3 ranks, and could decide again.
//
// With kAny, two ranks that do not reach each other may decide differently, even if each of them is
// in the set that the other has chosen.
//
// The machine has three parts. SurvivorKnowledge (survivor_knowledge.h) holds the reports of all
// ranks and evaluates them. PeerSilence (peer_silence.h) decides which rank is silent. Survivors
// exchanges the messages (survivor_messages.h) and decides.
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
#include "lib/comm/failure/peer_silence.h"
#include "lib/comm/failure/survivor_knowledge.h"
#include "lib/comm/failure/survivor_messages.h"

namespace entrain {

class Survivors {
 public:
  // With more ranks, a message of this machine would not fit into a control message.
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

  // The reason why this rank has given up.
  enum class End : uint8_t {
    kNone,
    kLeftOut,    // a decision leaves this rank out or came too late; see those_who_went_on
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
  // Must be called when the caller makes the next call, or repeats the undecided call. If the call
  // is repeated, `wish.exclude` is added to the ranks excluded before, and the rest of `wish` is
  // not used. `silence_ns`: the allowed silence. If a rank sends nothing for this time, this rank
  // cuts it.
  void Call(const Wish& wish, int64_t now_ns, int64_t silence_ns);
  void OnMessage(int from, absl::string_view text, int64_t now_ns);
  // Must be called when bytes of the rank have come.
  void OnHeard(int rank, int64_t now_ns) { silence_.OnHeard(rank, now_ns); }
  // Must be called when it is proven that the rank is gone (see the top of this file).
  void OnGone(int rank, int64_t now_ns);
  void OnCut(int rank, int64_t now_ns);
  void OnTick(int64_t now_ns);
  Deadline next_tick() const;

  // ---- Results
  // Returns the messages that the caller must send, in this order.
  std::vector<Message> TakeMessages() { return std::exchange(out_, {}); }
  // Returns the number of the call under way, or of the next call if no call is under way.
  uint32_t number() const { return number_; }
  // Returns true if the caller has made call number(), and the call is not decided.
  bool pending() const { return knows_.own().called && end_ == End::kNone; }
  Kind pending_kind() const { return knows_.own().kind; }
  // Returns the decision about call number() - 1. This rank is in the decided set.
  const std::optional<Decision>& last() const { return last_; }
  End end() const { return end_; }
  int by() const { return by_; }
  // Returns the ranks that went on without this rank. Empty: not known.
  const RankSet& those_who_went_on() const { return went_on_; }
  // Returns this rank's knowledge about call number().
  const SurvivorKnowledge& knowledge() const { return knows_; }

 private:
  // A proposal of this rank as a leader.
  struct Attempt {
    SurvivorProposal proposal;
    RankSet to, accepted_by;
  };

  // Begins a new agreement of these ranks. Discards the state of the previous agreement.
  void Begin(RankSet base);

  // Messages.
  void Send(int to, std::string text);
  std::string ReportText(bool asks) const;
  void SendReport(int to) { Send(to, ReportText(/*asks=*/false)); }
  void TellAll(bool asks);
  void OnReport(int from, SurvivorReport report, int64_t now_ns);
  void Obey(int64_t now_ns);
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
  // Returns the decision to propose. nullopt: this rank has given up.
  std::optional<Decision> Choose();
  void Propose(Decision decision);
  void CountAcceptances();
  void Decide(const Decision& decision);

  const int rank_, size_;
  uint32_t number_ = 1;
  SurvivorKnowledge knows_;
  PeerSilence silence_;
  AcceptedDecision recovered_;  // the accepted decision with the highest ballot of a lower leader
  std::optional<Attempt> attempt_;
  uint32_t attempts_ = 0;
  std::vector<int> excluders_;  // ranks that exclude this rank, in the order of their reports
  Deadline obeys_at_ = Deadline::Never();  // this rank then gives up because of its excluders

  std::optional<Decision> last_;
  End end_ = End::kNone;
  int by_ = -1;
  RankSet went_on_;
  std::vector<Message> out_;
};

}  // namespace entrain
