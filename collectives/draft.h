// One lane of one call while its schedule is being drawn up. Families of algorithms (ring, direct,
// ...) are fragments: functions that add rounds to a draft for a Group. They speak of *parts*, one
// for each rank of the communicator; the draft knows which block of D a part has in this lane and
// where this rank's current value of it lies.
//
// That place is what lets fragments follow each other: a part starts in kIn, moves to scratch or
// kOut when contributions are combined into it, and to kOut when it is received whole. Fragments
// never name slots.
//
// Parts that lie side by side in D travel in one message, others in one each (reduce_scatter and
// all_gather with several lanes: the parts of one lane are apart). Both sides cut alike, because
// the cut depends on D only.
#pragma once

#include <vector>

#include "collectives/schedule.h"
#include "collectives/spec.h"

namespace entrain {

// Ranks, ascending, standing for the blocks of this lane that are their parts.
using Parts = std::vector<int>;
// Pieces[position]: what the group's member at that position is to own, or owns. Disjoint.
using Pieces = std::vector<Parts>;

// All parts of pieces first .. last-1.
Parts Join(const Pieces& pieces, int first, int last);

// What one member of a group has sent to be combined.
struct Contribution {
  int order = 0;  // contributions are combined in this order
  Parts parts;
  int scratch = 0;  // first block; one for each of the parts
};

class Draft {
 public:
  // Begins a lane. Everything that kIn holds is in place, nothing else.
  Draft(ScheduleBuilder* builder, int lane);
  const Spec& spec() const { return builder_->spec(); }

  void BeginRound() { builder_->BeginRound(); }
  // The current values of `parts`.
  void Send(int peer, const Parts& parts);
  // Whole values; they are current from the next round on. In scratch when this rank's kOut lacks them.
  void Recv(int peer, const Parts& parts);
  // A message of no bytes.
  void Signal(int peer) { builder_->Send(peer, {}); }
  void AwaitSignal(int peer) { builder_->Recv(peer, {}); }

  // To be combined in this round, or a later one.
  Contribution RecvContribution(int peer, int order, const Parts& parts);
  // Own values of `parts`, which come `my_order`-th, and what is in `from` for them. A result that
  // kOut cannot take (reduce_scatter's partial sums) replaces from[0], which must then have all the
  // parts. `last`: as in LocalOp.
  void Combine(const Parts& parts, int my_order, const std::vector<Contribution>& from, bool last);
  // Gives parts, most of which are still to be received, places side by side in scratch, so that they can be sent on
  // in one message; what is here already is copied there in this round. Once a draft.
  void Assemble(const Parts& parts);
  // Copies what is not in kOut there. The last step for the parts of the result; earlier only when
  // kIn's values are not sent any more.
  void Settle(const Parts& parts);

 private:
  // Where a value lies: one block of a slot. index -1: nowhere yet.
  struct Place {
    Slot slot = Slot::kIn;
    int index = -1;
  };
  // Whether `next` lies `distance` blocks behind `place`.
  static bool Follows(const Place& next, const Place& place, int distance);
  int BlockOfPart(int part) const { return BlockOf(spec(), part, lane_); }
  // How many of the parts from parts[begin] on lie side by side in D.
  int RunAt(const Parts& parts, int begin) const;
  Place HomeOf(const Parts& parts, int begin, int length);
  // Scratch for `length` parts from parts[begin] on, side by side; the first block.
  int AddScratch(const Parts& parts, int begin, int length);
  std::vector<Place> Operands(int part, int my_order, const std::vector<Contribution>& from) const;

  ScheduleBuilder* builder_;
  const int lane_;
  std::vector<Place> place_;  // by part
  std::vector<int> homes_;    // by part, of Assemble: scratch blocks, -1: none; empty: not called
};

// Every rank in order.
Group Everyone(const Spec& spec);
// Every rank owns its own part.
Pieces OwnParts(const Spec& spec);
// Every part.
Parts AllParts(const Spec& spec);

}  // namespace entrain
