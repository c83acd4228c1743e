// What all ranks of a mesh do together for a checkpoint: agree, learn from rank 0, and bring things
// to it. Made of the two groups that every mesh has:
//
//              sync ->                  rank = replica x ranks of a replica + place in the replica
//          0    2    4                  here 0 is first; what 3 and 5 send goes by way of 1
//  model   1    3    5
//
// One deadline for all that is done. A call that fails in the network has ended a group, and
// broken() says so; a refusal that all agreed on has not.
//
// Thread safety: one thread at a time, the same calls in the same order on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/base/call.h"
#include "lib/comm/communicator.h"

namespace entrain {

class AllRanks {
 public:
  // Null: a group of one. `timeout_ns` 0: the longer default of the two.
  AllRanks(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
           int64_t timeout_ns);

  int rank() const { return replica_ * places_ + place_; }
  int size() const { return replicas_ * places_; }
  int replica() const { return replica_; }
  int place() const { return place_; }    // in the replica
  int places() const { return places_; }  // ranks of a replica
  int replicas() const { return replicas_; }
  bool first() const { return rank() == 0; }
  Deadline deadline() const { return options_.deadline; }

  // OK when all bring OK; otherwise the error of the lowest rank that has one, on all of them, with
  // its number.
  absl::Status Agree(const absl::Status& mine);
  // Rank 0's text, to all.
  absl::Status Tell(std::string* text);
  // Rank 0's bytes, to all; all know how many.
  absl::Status Tell(Bytes bytes);

  // Where numbers differ between the ranks of a replica, between those of one place in all replicas, or both; each of them
  // brings as many. The first index; -1: nowhere.
  absl::StatusOr<int64_t> FirstDifference(const std::vector<int64_t>& values, bool in_replica,
                                          bool across_replicas);

  // Messages to rank 0, from every other rank; EndSend after the last. Those who sit in replica 0
  // then carry on what comes through them.
  absl::Status Send(ConstBytes message);
  absl::Status EndSend();
  // On rank 0: the next message of `from`, in pieces; what take does with a piece cannot fail.
  // Messages are to be received from the lowest rank upwards, all of one before any of the next;
  // within replica 0, in any order.
  absl::Status Receive(int from, absl::FunctionRef<void(ConstBytes piece)> take);
  // The end of what `from` sends.
  absl::Status ReceiveEnd(int from);

  // This rank cannot go on, though the network is well: gives back the error.
  absl::Status GiveUp(const absl::Status& why) { return Note(why); }
  bool broken() const { return broken_; }

 private:
  absl::Status Note(absl::Status status);
  absl::Status Move(Communicator& comm, CallKind kind, int peer, void* data, int64_t bytes);
  absl::Status Min(int64_t* value);
  absl::Status Spread(int root, void* data, int64_t bytes);
  // The communicator and the peer by which messages leave this rank, and reach rank 0.
  Communicator& Out() const { return place_ == 0 || replica_ > 0 ? *sync_ : *model_; }
  Communicator& In(int from) const { return from % places_ == 0 ? *sync_ : *model_; }
  int PeerOf(int from) const { return from % places_ == 0 ? from / places_ : from % places_; }
  absl::Status CarryOn();

  const std::shared_ptr<Communicator> model_, sync_;
  const int place_, places_, replica_, replicas_;
  const CallOptions options_;
  bool broken_ = false;
};

}  // namespace entrain
