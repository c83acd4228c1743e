// The collective operations of a checkpoint over all ranks of a mesh: agreement on a status, a
// broadcast of rank 0's data, and a gather of messages on rank 0. They use the two groups that
// every mesh has: the model group and the sync group.
//
//              sync ->                  rank = replica x ranks of a replica + place in the replica
//          0    2    4                  rank 1 forwards the messages of ranks 3 and 5 to rank 0
//  model   1    3    5
//
// One deadline covers all operations of an object. If a call fails in the network, its group ends,
// and broken() returns true from then on. An error on which all ranks have agreed does not have
// this effect.
//
// Thread safety: one thread at a time. All ranks must make the same calls in the same order.
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

// The arguments and results of a reduction over all ranks of a training object
// (entrain_edit_reduce). All ranks pass the same counts, types and operations.
struct JointReduction {
  const void* in = nullptr;  // `count` elements; may be null if count is 0
  void* out = nullptr;       // the same; may equal `in`. Unchanged after an error
  int64_t count = 0;
  DType dtype = DType::kF64;
  ReduceOp op = ReduceOp::kSum;
  int64_t timeout_ns = 0;  // 0: the communicators' default
  // Results, if not null: the number of this rank among those whose values are in `out`, and their
  // number.
  int* rank = nullptr;
  int* ranks = nullptr;
};
// A loss may make ranks keep the result for others, so it is small.
constexpr int64_t kMostReducedBytes = 64 << 10;
// Checks the count, and that the operation suits the type.
absl::Status CheckReduction(const JointReduction& reduction);
// Copies the result of a reduction to `out`.
absl::Status TakeReduced(const std::string& result, const JointReduction& reduction);

class AllRanks {
 public:
  // A null communicator stands for a group of one rank. If `timeout_ns` is 0, the longer default
  // timeout of the two communicators applies.
  AllRanks(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
           int64_t timeout_ns);

  int rank() const { return replica_ * places_ + place_; }
  int size() const { return replicas_ * places_; }
  int replica() const { return replica_; }
  int place() const { return place_; }    // rank in the replica
  int places() const { return places_; }  // ranks of a replica
  int replicas() const { return replicas_; }
  bool first() const { return rank() == 0; }
  Deadline deadline() const { return options_.deadline; }

  // Collective. Returns OK if `mine` is OK on all ranks. Otherwise returns the error of the lowest
  // rank that has one, with the number of this rank. The result is the same on all ranks.
  absl::Status Agree(const absl::Status& mine);
  // Collective. Replaces `*text` on all ranks by rank 0's text.
  absl::Status Tell(std::string* text);
  // Collective. Overwrites `bytes` on all ranks with rank 0's bytes. `bytes` must have the same
  // size on all ranks.
  absl::Status Tell(Bytes bytes);

  // Collective. If `mine` is OK on all ranks, writes the reduced values to `*result`, the same bits on
  // all ranks. If not, returns the error of the lowest rank that has one. Sets the results `rank` and
  // `ranks` of `reduction` in any case.
  absl::Status Reduce(const absl::Status& mine, const JointReduction& reduction,
                      std::string* result);

  // Collective. With `in_replica`, compares values between the ranks of a replica. With
  // `across_replicas`, compares values between the ranks that have the same place in their
  // replicas. All compared ranks must pass the same number of values. Returns the first index at
  // which the values differ, or -1.
  absl::StatusOr<int64_t> FirstDifference(const std::vector<int64_t>& values, bool in_replica,
                                          bool across_replicas);

  // Every rank except rank 0 sends its messages to rank 0, then calls EndSend. In EndSend, ranks of
  // replica 0 also forward the messages of other replicas to rank 0.
  absl::Status Send(ConstBytes message);
  absl::Status EndSend();
  // On rank 0: receives the next message of rank `from` in pieces, and calls `take` with each
  // piece. Ranks of replica 0 can be received in any order. The others must be received by
  // ascending rank, all messages of a rank together.
  absl::Status Receive(int from, absl::FunctionRef<void(ConstBytes piece)> take);
  // On rank 0: receives the end of the messages of rank `from`. Must be called after its last
  // message.
  absl::Status ReceiveEnd(int from);

  // Records that this rank cannot continue, although the network works. From then on broken()
  // returns true. Returns `why`.
  absl::Status GiveUp(const absl::Status& why) { return Note(why); }
  bool broken() const { return broken_; }

 private:
  absl::Status Note(absl::Status status);
  absl::Status Move(Communicator& comm, CallKind kind, int peer, void* data, int64_t bytes);
  absl::Status Min(int64_t* value);
  // Reduces `data` over all ranks, in place.
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op);
  absl::Status AverageIntegers(const JointReduction& reduction, std::string* result);
  absl::Status Spread(int root, void* data, int64_t bytes);
  // Returns the communicator in which this rank sends its messages. Rank 0 receives the messages of
  // rank `from` on the communicator In(from), from that communicator's rank PeerOf(from).
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
