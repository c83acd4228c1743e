// The participants: the communicator of the ranks that begin together, the mesh of shard and sync
// groups, and the few scalars that the trainer itself exchanges. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "examples/trainer/api.h"
#include "examples/trainer/lives.h"

namespace trainer {

// Returns this process's rank from the launcher's variables, or 0 without a launcher. This number
// decides which process prints an error before there is a communicator.
int LauncherRank();

// No rank is left that this rank could join. The process must make a new Session: all ranks meet in
// the next life of the run.
class AllLost final : public Error {
 public:
  AllLost() : Error("all ranks are lost") {}
};

class Session {
 public:
  // Joins the ranks that the launcher started (entrain-run, torchrun, mpirun, srun). If no
  // launcher's variable is set, this process is a world of one rank. If `admit` is true, a launcher
  // may have restarted the processes of a replica of `shard_size` ranks. Restarted processes are a
  // world of their own at first, and join the other ranks later. On them joins() returns true. If
  // no rank is left that they could join, all ranks meet again, and revives() returns true. Throws
  // Error with exit code 0 if the run is over. `saves`: the run saves checkpoints.
  Session(bool admit, int shard_size, bool saves);

  // Divides the world into replicas. Collective.
  void MakeMesh();

  // A reduction over the ranks of the method's object that are not lost, as entrain_edit_reduce.
  using Reduce =
      std::function<entrain_status_t(const void* in, void* out, size_t count, entrain_dtype_t dtype,
                                     entrain_op_t op, int32_t* rank, int32_t* ranks)>;
  // After this call, the functions below that are collective over all ranks are collective over
  // those of the method's object, and legal where `reduce` is.
  void RunOver(Reduce reduce) { reduce_ = std::move(reduce); }
  // Finds out which ranks remain. Collective.
  void LookAround();

  bool joins() const { return joins_; }
  // Returns true if all ranks of the run were lost before, so this run must continue from its last
  // checkpoint. revived_steps: also if steps were made then.
  bool revives() const { return lives_ != nullptr && lives_->number() > 0; }
  bool revives_steps() const { return revives() && lives_->Stepped(); }
  // Calls `join`, which waits for a time and returns a status, until the other ranks have taken this
  // rank in. Throws Error if it fails, and AllLost if no rank is left that it could join.
  void Join(const std::function<entrain_status_t(int64_t wait_ns)>& join);
  // Returns the name under which newcomers of this life apply (admit_name), given the first one.
  std::string AdmitName(const std::string& first) const;
  // Must be called at each exchange, and at the end of the run.
  void NoteExchange();
  void NoteEnd();
  // For a rank that joins: sets the replica of this rank.
  void BecomeReplica(int replica);

  // Runs `work`, which may throw Error. Collective. If `work` fails on one rank, all ranks throw.
  // Only the Error of the lowest failed rank has a line to print.
  void Agree(const std::function<void()>& work);

  // Sum over the ranks of this replica, and over all ranks. Collective over these ranks. Every rank
  // gets the same bits.
  void SumOverReplica(double* values, int count);
  void SumOverAll(double* values, int count);
  double LargestOfAll(double value);
  // Combines one number per rank of the replica; the order matters. Two results are equal exactly
  // if all numbers are equal.
  uint64_t CombineOverReplica(uint64_t value);
  // Throws Error if the values of a replica, combined, differ from those of another replica.
  // Collective over all ranks.
  void CheckSameInReplicas(uint64_t value, const char* what);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // Returns the number of remaining ranks, and this rank's number among them, as of the last
  // collective over all ranks.
  int ranks_left() const { return ranks_left_; }
  int rank_left() const { return rank_left_; }
  int shard() const { return shard_; }  // this rank's number in its replica
  int replica() const { return replica_; }
  int replicas() const { return replicas_; }
  entrain_mesh_t* mesh() const { return mesh_.get(); }
  entrain_comm_t* world() const { return world_.get(); }
  // Returns the payload bytes that this object's sums have sent within the replica.
  uint64_t bytes_sent() const;

 private:
  void OverAll(const void* in, void* out, int count, entrain_dtype_t dtype, entrain_op_t op);
  void StandAlone();
  void Meet(bool last);

  const int shard_size_;
  bool joins_ = false;
  std::unique_ptr<Lives> lives_;  // null: no newcomers, or no store
  Reduce reduce_;                 // null: over world_
  CommHandle world_;        // of the ranks that begin together; of a rank that joins, its replica
  CommHandle own_replica_;  // not the mesh's, so that its traffic is counted separately
  MeshHandle mesh_;
  int rank_ = 0, ranks_ = 1, shard_ = 0, replica_ = 0, replicas_ = 1;
  int32_t rank_left_ = 0, ranks_left_ = 1;
};

}  // namespace trainer
