// Who takes part: the communicator of all ranks, the mesh of shard and sync groups, and the few
// scalars that the trainer itself exchanges. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "examples/trainer/api.h"

namespace trainer {

// This process's rank as the launcher's variables have it; 0 without a launcher. For deciding who
// prints an error before there is a communicator.
int LauncherRank();
// Likewise, which of its host's processes this one is.
int LauncherLocalRank();

class Session {
 public:
  // Joins the ranks that the launcher started (entrain-run, torchrun, mpirun, srun), or is a world
  // of one when no launcher's variable is set.
  Session();

  // Cuts the world into replicas of `shard_size` ranks. Collective.
  void MakeMesh(int shard_size);

  // Does `work`, which may throw Error. Collective: when one rank failed, all throw; only the
  // lowest that failed has a line to print.
  void Agree(const std::function<void()>& work);

  // Sums over the ranks of this replica, and over all ranks. Collective over those; every rank gets
  // the same bits.
  void SumOverReplica(double* values, int count);
  void SumOverAll(double* values, int count);
  double LargestOfAll(double value);
  // One number for the replica from one per rank (order matters): the same exactly when all are.
  uint64_t CombineOverReplica(uint64_t value);
  // Throws Error naming both when `value` differs between this rank and the same slot of another
  // replica.
  void CheckSameInReplicas(uint64_t value, const char* what);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int shard() const { return shard_; }  // this rank's slot in its replica
  int replica() const { return replica_; }
  int replicas() const { return replicas_; }
  entrain_mesh_t* mesh() const { return mesh_.get(); }
  entrain_comm_t* world() const { return world_.get(); }
  // Payload bytes that this object's sums have sent within the replica.
  uint64_t bytes_sent() const;

 private:
  CommHandle world_;
  CommHandle own_replica_;  // apart from the mesh's, so that its traffic can be told apart
  MeshHandle mesh_;
  int rank_ = 0, ranks_ = 1, shard_ = 0, replica_ = 0, replicas_ = 1;
};

}  // namespace trainer
