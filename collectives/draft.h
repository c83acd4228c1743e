// A draft is one lane of one call while an algorithm writes the lane's schedule. Most algorithms
// (ring, direct, ...) are written as fragments. A fragment is a function that adds rounds to a
// draft, for the ranks of a Group. Fragments name the data by *parts*, one for each rank of the
// communicator. For each part, the draft knows the part's block of the vector D (spec.h) in this
// lane. It also knows the place of this rank's current value of the part.
//
// Because the draft knows the place of each value, one fragment can continue where another has
// ended. The value of a part starts in kIn. It moves to scratch or kOut when contributions are
// combined into it, or when the complete part is received. Fragments never name slots.
//
// Parts that are contiguous in D are sent in one message. Every other part is sent in a message of
// its own. (With several lanes, the parts of one lane are not contiguous in reduce_scatter and
// all_gather.) Sender and receiver cut the parts into the same messages, because the cut depends
// only on D.
#pragma once

#include <vector>

#include "collectives/schedule.h"
#include "collectives/spec.h"

namespace entrain {

// A list of parts, in ascending order. Each part is named by its rank. In a lane, a part is one
// block.
using Parts = std::vector<int>;
// Pieces[position]: the parts that the group's member at that position owns, or will own. No part
// has two owners.
using Pieces = std::vector<Parts>;

// Returns all parts of pieces first .. last-1.
Parts Join(const Pieces& pieces, int first, int last);

// The contribution that one member of a group has sent.
struct Contribution {
  int order = 0;  // contributions are combined in this order
  Parts parts;
  int scratch = 0;  // the first scratch block; each part has one block
};

class Draft {
 public:
  // Begins a lane, in which only the blocks of kIn have values.
  Draft(ScheduleBuilder* builder, int lane);
  const Spec& spec() const { return builder_->spec(); }

  void BeginRound() { builder_->BeginRound(); }
  // Sends the current values of `parts`.
  void Send(int peer, const Parts& parts);
  // Receives complete values of `parts`. They are the current values from the next round on. Parts
  // that are contiguous in D go to kOut if this rank's kOut has all of them, else to scratch.
  void Recv(int peer, const Parts& parts);
  // Sends a message of no bytes.
  void Signal(int peer) { builder_->Send(peer, {}); }
  void AwaitSignal(int peer) { builder_->Recv(peer, {}); }

  // Receives a contribution, to be combined in this round or in a later one.
  Contribution RecvContribution(int peer, int order, const Parts& parts);
  // Combines this rank's own values of `parts` with the contributions in `from`. `my_order` is the
  // own values' place in the order (Contribution::order). If kOut has no place for a result
  // (partial sums in reduce_scatter), the result replaces from[0]. In this case from[0] must have
  // all the parts. `last` is as in LocalOp.
  void Combine(const Parts& parts, int my_order, const std::vector<Contribution>& from, bool last);
  // Reserves contiguous scratch for `parts`, so that a later round can send them in one message.
  // Recv puts a part there if kOut has no place for it. In the current round, copies there the
  // parts that this rank already has. Must be called at most once per draft.
  void Assemble(const Parts& parts);
  // Copies the `parts` that are not yet in kOut to kOut. Must be the last step for the parts of the
  // result. It may be called earlier only if no later round sends a value from kIn.
  void Settle(const Parts& parts);

 private:
  // The place of a value: one block of a slot. index -1: no place yet.
  struct Place {
    Slot slot = Slot::kIn;
    int index = -1;
  };
  // Returns true if `next` lies `distance` blocks after `place`.
  static bool Follows(const Place& next, const Place& place, int distance);
  int BlockOfPart(int part) const { return BlockOf(spec(), part, lane_); }
  // Returns the number of parts, from parts[begin] on, that are contiguous in D.
  int RunAt(const Parts& parts, int begin) const;
  Place HomeOf(const Parts& parts, int begin, int length);
  // Adds contiguous scratch for `length` parts from parts[begin] on. Returns the first block.
  int AddScratch(const Parts& parts, int begin, int length);
  std::vector<Place> Operands(int part, int my_order, const std::vector<Contribution>& from) const;

  ScheduleBuilder* builder_;
  const int lane_;
  std::vector<Place> place_;  // by part
  std::vector<int> homes_;    // by part: its scratch block from Assemble, or -1; at first empty
};

// Returns the group of all ranks in order.
Group Everyone(const Spec& spec);
// Returns the pieces in which every rank owns its own part.
Pieces OwnParts(const Spec& spec);
Parts AllParts(const Spec& spec);

}  // namespace entrain
