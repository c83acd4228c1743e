// The communicator of the ranks of all replicas, and its replacements after losses. A replica is
// complete or gone: if one of its ranks is lost, its other ranks leave too.
//
//              sync ->                place of a rank: its replica, and its slot in the replica
//          0    2    4
//  model   1   (3)   5                3 is lost, so 2 leaves: 0, 1, 4, 5 go on
//
// Thread safety: one thread at a time, except comm.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"

namespace entrain {

struct ReplicaPlace {
  int replica = 0;  // number in the mesh
  int slot = 0;     // rank in the model group
  friend bool operator==(const ReplicaPlace&, const ReplicaPlace&) = default;
};

// Returns the ranks of those replicas that have fewer than `slots` ranks.
std::vector<int> OfBrokenReplicas(absl::Span<const ReplicaPlace> places, int slots);
// Returns the numbers of the replicas in ascending order.
std::vector<int> ReplicasOf(absl::Span<const ReplicaPlace> places);

// If the communicator has ended because another rank was lost, late or gave up, returns the error
// with which it has ended. Otherwise returns OK. `comm` may be null.
absl::Status LossOf(const Communicator* comm);
// If a loss has ended one of `comms`, ends the others with the same error. So no rank waits in them,
// and calls under way fail. Returns the losses, one of each communicator that a loss has ended.
// Entries of `comms` may be null.
std::vector<absl::Status> EndAfterLoss(absl::Span<const std::shared_ptr<Communicator>> comms);

// The replicas without which the others go on after a loss.
struct LostReplicas {
  std::vector<int> replicas;
  std::string why;  // the loss
};

class ReplicaWorld {
 public:
  // Collective over `comm`. Nothing else may use `comm`. There is one exception: if each replica
  // has one rank, `comm` may also be the sync group. `slots` is the number of ranks of a replica.
  // `timeout_ns` limits each step of Shrink; 0: the communicator's default.
  static absl::StatusOr<std::unique_ptr<ReplicaWorld>> Make(std::shared_ptr<Communicator> comm,
                                                            ReplicaPlace mine, int slots,
                                                            int64_t timeout_ns);
  // Makes the object of a newcomer. `places` is indexed by rank of `comm`.
  static std::unique_ptr<ReplicaWorld> Of(std::shared_ptr<Communicator> comm, int slots,
                                          int64_t timeout_ns, std::vector<ReplicaPlace> places);

  // Replaces the communicator by a new communicator that contains only the ranks of complete
  // replicas. Collective over the remaining ranks. `causes` are the errors after which Shrink is
  // called. If one of these errors blames a rank for being late, this rank is left out.
  // Returns kOutOfRange if the other ranks have continued without this rank. Returns kUnavailable
  // if this rank's own replica is not complete. After an error this rank cannot continue.
  absl::Status Shrink(absl::Span<const absl::Status> causes);

  // EndAfterLoss, then Shrink. `comms` are the communicators in which ranks may wait, among them
  // comm(). Calls `lost` with the replicas that have gone. Returns the loss if all replicas remain:
  // the network is too slow for the time limit.
  absl::Status RemoveLost(absl::Span<const std::shared_ptr<Communicator>> comms,
                          absl::FunctionRef<void(const LostReplicas&)> lost);
  // Gathers the progress of each rank of comm(). A Place is a struct of int64_t.
  template <typename Place>
  absl::StatusOr<std::vector<Place>> GatherPlaces(const Place& mine) {
    static_assert(std::is_trivially_copyable_v<Place> && sizeof(Place) % sizeof(int64_t) == 0);
    const std::shared_ptr<Communicator> all = comm();
    std::vector<Place> places(static_cast<size_t>(all->size()));
    const absl::Status status = Gather(*all, &mine, places.data(), sizeof(Place) / sizeof(int64_t));
    return status.ok() ? std::move(places) : absl::StatusOr<std::vector<Place>>(status);
  }

  // Replaces the communicator by `other`, which contains newcomers or lacks lost ranks. `places`
  // has the place of each rank of `other`.
  void Adopt(std::shared_ptr<Communicator> other, std::vector<ReplicaPlace> places)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the communicator with the error `why` and leaves it. So Shrink on other ranks does not
  // wait for this rank. Does the same with the communicator that Consider has set. May be called
  // from any thread.
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the communicator that an admission may soon pass to Adopt; null: none. End ends this
  // communicator too.
  void Consider(std::shared_ptr<Communicator> larger) ABSL_LOCKS_EXCLUDED(mutex_);

  // May be called from any thread.
  std::shared_ptr<Communicator> comm() const ABSL_LOCKS_EXCLUDED(mutex_);
  const ReplicaPlace& mine() const { return mine_; }
  int slots() const { return slots_; }
  // Returns true if comm() can be used as the sync group: each replica has one rank, and the ranks
  // are in ascending order of the replicas' numbers.
  bool IsSyncGroup() const;
  // Returns the places, indexed by rank of comm().
  const std::vector<ReplicaPlace>& places() const { return places_; }
  // Returns the payload bytes that this rank has sent in the communicators before comm(). May be
  // called from any thread.
  uint64_t bytes_before() const { return bytes_before_.load(std::memory_order_relaxed); }

 private:
  ReplicaWorld(std::shared_ptr<Communicator> comm, ReplicaPlace mine, int slots, int64_t timeout_ns,
               std::vector<ReplicaPlace> places)
      : mine_(mine),
        slots_(slots),
        timeout_ns_(timeout_ns),
        places_(std::move(places)),
        comm_(std::move(comm)) {}
  absl::Status Gather(Communicator& all, const void* mine, void* places, int64_t numbers) const;
  absl::Status ShrinkWithout(std::vector<int> exclude);
  absl::Status Left(const std::vector<ReplicaPlace>& before, const absl::Status& why) const;

  const ReplicaPlace mine_;
  const int slots_;
  const int64_t timeout_ns_;
  std::vector<ReplicaPlace> places_;
  std::atomic<uint64_t> bytes_before_{0};
  mutable absl::Mutex mutex_;
  std::shared_ptr<Communicator> comm_ ABSL_GUARDED_BY(mutex_);
  // The communicator before the last Adopt. It is kept because another rank may still ask there
  // whether the admission has succeeded.
  std::shared_ptr<Communicator> former_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Communicator> considered_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // End was called
};

}  // namespace entrain
