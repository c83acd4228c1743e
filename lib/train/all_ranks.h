// The collective operations of a checkpoint over all ranks of a mesh: agree on a status, send rank
// 0's data to all ranks, and bring data to rank 0. They use the two groups that every mesh has, the
// model group and the sync group:
//
//              sync ->                  rank = replica x ranks of a replica + place in the replica
//          0    2    4                  rank 0 is first; messages of 3 and 5 pass through rank 1
//  model   1    3    5
//
// One deadline covers all operations of an object. If a call has failed in the network, its group
// has ended, and broken() returns true. An error on which all ranks agreed does not break the
// object.
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
  // A null communicator stands for a group of one rank. If `timeout_ns` is 0, the longer default
  // timeout of the two communicators applies.
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

  // Collective. Returns OK if all ranks bring OK. Otherwise returns on all ranks the error of the
  // lowest rank that brings one, with the number of that rank.
  absl::Status Agree(const absl::Status& mine);
  // Gives rank 0's text to all ranks.
  absl::Status Tell(std::string* text);
  // Gives rank 0's bytes to all ranks. All ranks must know the number of bytes beforehand.
  absl::Status Tell(Bytes bytes);

  // Compares values between the ranks of a replica (`in_replica`), between the ranks with the same
  // place in all replicas (`across_replicas`), or both. All compared ranks must bring equally many
  // values. Returns the first index at which the values differ, or -1.
  absl::StatusOr<int64_t> FirstDifference(const std::vector<int64_t>& values, bool in_replica,
                                          bool across_replicas);

  // Every rank but 0 sends its messages to rank 0, then calls EndSend. In EndSend the ranks of
  // replica 0 also pass on the messages that travel through them.
  absl::Status Send(ConstBytes message);
  absl::Status EndSend();
  // On rank 0: receives the next message of `from` in pieces and calls `take` with each piece;
  // `take` must not fail. Messages must be received from the lowest rank upwards, and all messages
  // of one rank before any message of the next rank. Within replica 0 any order of ranks is
  // allowed.
  absl::Status Receive(int from, absl::FunctionRef<void(ConstBytes piece)> take);
  // Receives the end of the messages of `from`.
  absl::Status ReceiveEnd(int from);

  // Records that this rank cannot continue, although the network works. Afterwards broken() returns
  // true. Returns `why`.
  absl::Status GiveUp(const absl::Status& why) { return Note(why); }
  bool broken() const { return broken_; }

 private:
  absl::Status Note(absl::Status status);
  absl::Status Move(Communicator& comm, CallKind kind, int peer, void* data, int64_t bytes);
  absl::Status Min(int64_t* value);
  absl::Status Spread(int root, void* data, int64_t bytes);
  // Out returns the communicator in which this rank sends its messages. Rank 0 receives the
  // messages of rank `from` in the communicator In(from), from the peer PeerOf(from).
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
