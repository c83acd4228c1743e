#include "examples/trainer/session.h"

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "examples/trainer/random.h"

namespace trainer {
namespace {

// Number of attempts to take newcomers in. Afterwards the run goes on without them, for example if
// the store in which they wait has ended.
constexpr int kMostAttempts = 3;
// The largest number of meetings that a rank of a restarted replica tries. Each restart of one of
// the ranks uses up at most one meeting.
constexpr int kMostMeetings = 1000;

// The variables of torchrun and entrain-run, Open MPI, MPICH, and Slurm.
using Variables = std::array<const char*, 4>;
constexpr Variables kRankVariables = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
constexpr Variables kLocalRankVariables = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "MPI_LOCALRANKID", "SLURM_LOCALID"};

// Returns the value of the first variable that is set; 0 if no variable is set.
int FirstOf(const Variables& variables) {
  for (const char* name : variables) {
    if (const char* value = std::getenv(name)) {
      return std::atoi(value);
    }
  }
  return 0;
}

void AllReduce(entrain_comm_t* comm, void* values, int count, entrain_dtype_t dtype,
               entrain_op_t op) {
  Check(entrain_all_reduce(comm, values, values, static_cast<size_t>(count), dtype, op, nullptr,
                           nullptr));
}

// Returns an all-reduce that does not change `in`, so that it can be repeated.
std::function<entrain_status_t(entrain_comm_t*)> AllReduceOf(const void* in, void* out, int count,
                                                             entrain_dtype_t dtype,
                                                             entrain_op_t op) {
  return [=](entrain_comm_t* comm) {
    return entrain_all_reduce(comm, in, out, static_cast<size_t>(count), dtype, op, nullptr,
                              nullptr);
  };
}

entrain_comm_t* MeshComm(entrain_mesh_t* mesh, int32_t axis) {
  entrain_comm_t* comm = nullptr;
  Check(entrain_mesh_comm(mesh, axis, &comm));
  return comm;
}

}  // namespace

int LauncherRank() {
  return FirstOf(kRankVariables);
}

int LauncherLocalRank() {
  return FirstOf(kLocalRankVariables);
}

Session::Session(bool admit, int shard_size) : shard_size_(shard_size) {
  const char* const restarts = std::getenv("ENTRAIN_RESTARTS");
  joins_ = admit && restarts != nullptr && std::atoi(restarts) > 0;
  if (joins_) {
    StandAlone();
    return;
  }
  entrain_comm_t* comm = nullptr;
  Check(entrain_comm_create_from_env(nullptr, &comm));
  world_.reset(comm);
  int32_t value = 0;
  Check(entrain_comm_rank(world_.get(), &value));
  rank_ = value;
  Check(entrain_comm_size(world_.get(), &value));
  ranks_ = value;
}

// Makes a communicator of the ranks of a restarted replica. The ranks find each other in the job's
// store. They are restarted one by one, and each may be killed again meanwhile. So a rank does not
// know in which meeting all of them will be present, and tries one meeting after the other. A
// meeting that is over, or that a rank has left, is refused at once.
void Session::StandAlone() {
  rank_ = LauncherRank();
  ranks_ = FirstOf({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
  const char* const url = std::getenv("ENTRAIN_STORE");
  if (url == nullptr) {
    throw Error("ENTRAIN_STORE is not set, and a rank that joins others needs their store");
  }
  entrain_store_t* store = nullptr;
  Check(entrain_store_open(url, 0, &store));
  const std::string name = "replica of rank " + std::to_string(rank_ - rank_ % shard_size_);
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.store = store;
  config.name = name.c_str();
  config.rank = rank_ % shard_size_;
  config.world_size = shard_size_;
  entrain_comm_t* comm = nullptr;
  entrain_status_t status = ENTRAIN_PEER_LOST;
  for (int meeting = 0; meeting < kMostMeetings &&
                        (status == ENTRAIN_PEER_LOST || status == ENTRAIN_FAILED_PRECONDITION);
       ++meeting) {
    status = entrain_comm_create(&config, &comm);
  }
  entrain_store_destroy(store);
  Check(status);
  world_.reset(comm);
}

void Session::BecomeReplica(int replica) {
  if (replica >= replicas_) {
    throw Error("this replica would be number " + std::to_string(replica) + " of " +
                std::to_string(replicas_) + "; a run replaces lost replicas only");
  }
  replica_ = replica;
  rank_ = replica * shard_size_ + shard_;
}

void Session::JoinWorld() {
  entrain_comm_t* comm = nullptr;
  Check(entrain_comm_create_from_env(nullptr, &comm));
  world_.reset(comm);
  joins_ = false;
}

void Session::TakeIn(int newcomers) {
  entrain_grow_config_t config;
  entrain_grow_config_init(&config);
  config.min_newcomers = newcomers * shard_size_;
  config.wait_ns = int64_t{20} * 1000 * 1000 * 1000;
  LookAround();
  entrain_comm_t* grown = nullptr;
  int attempts = 0;
  OverAll([&](entrain_comm_t* comm) {
    entrain_comm_destroy(grown);  // made by an attempt in which a rank was lost
    grown = nullptr;
    return ++attempts > kMostAttempts ? ENTRAIN_OK : entrain_comm_grow(comm, &config, &grown);
  });
  if (grown != nullptr) {
    world_.reset(grown);
  }
}

void Session::MakeMesh() {
  Agree([&] {
    if (ranks_ % shard_size_ != 0) {
      throw Error("--shard-size " + std::to_string(shard_size_) + " does not divide the " +
                  std::to_string(ranks_) + (ranks_ == 1 ? " rank" : " ranks"));
    }
  });
  entrain_mesh_config_t config;
  entrain_mesh_config_init(&config);
  config.shard = shard_size_;
  entrain_mesh_t* mesh = nullptr;
  Check(entrain_mesh_create(world_.get(), &config, &mesh));
  mesh_.reset(mesh);
  int32_t at = 0;
  int32_t length = 0;
  Check(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_SHARD, &at, &length));
  shard_ = at;
  Check(entrain_mesh_coordinate(mesh, ENTRAIN_AXIS_SYNC, &at, &length));
  replica_ = at;
  replicas_ = length;
  if (joins_) {  // the mesh contains only this replica
    replica_ = rank_ / shard_size_;
    replicas_ = ranks_ / shard_size_;
  }
  entrain_comm_t* part = nullptr;
  Check(entrain_comm_split(world_.get(), replica_, shard_, &part));
  own_replica_.reset(part);
}

void Session::OverAll(const std::function<entrain_status_t(entrain_comm_t*)>& call) {
  if (!goes_on_) {
    Check(call(world_.get()));
    return;
  }
  while (true) {
    // If a rank is lost, the call may succeed on some ranks only. Either all ranks repeat it, or
    // none does.
    uint32_t done = call(world_.get()) == ENTRAIN_OK ? 1 : 0;
    Check(entrain_comm_agree(world_.get(), &done));
    if (done != 0) {
      return;
    }
    entrain_comm_t* smaller = nullptr;
    Check(entrain_comm_shrink(world_.get(), nullptr, &smaller));
    world_.reset(smaller);
  }
}

void Session::LookAround() {
  OverAll([](entrain_comm_t* comm) { return entrain_barrier(comm, nullptr, nullptr); });
}

int Session::ranks_left() const {
  int32_t size = 0;
  Check(entrain_comm_size(world_.get(), &size));
  return size;
}

int Session::rank_left() const {
  int32_t rank = 0;
  Check(entrain_comm_rank(world_.get(), &rank));
  return rank;
}

void Session::Agree(const std::function<void()>& work) {
  std::string failure;
  try {
    work();
  } catch (const Error& error) {
    failure = error.what();
  }
  const int64_t mine = failure.empty() ? ranks_ : rank_;
  int64_t first = 0;
  OverAll(AllReduceOf(&mine, &first, 1, ENTRAIN_I64, ENTRAIN_MIN));
  if (first < ranks_) {
    throw Error(first == rank_ ? failure : "");
  }
}

void Session::SumOverReplica(double* values, int count) {
  AllReduce(own_replica_.get(), values, count, ENTRAIN_F64, ENTRAIN_SUM);
}

void Session::SumOverAll(double* values, int count) {
  const std::vector<double> mine(values, values + count);
  OverAll(AllReduceOf(mine.data(), values, count, ENTRAIN_F64, ENTRAIN_SUM));
}

double Session::LargestOfAll(double value) {
  double largest = 0.0;
  OverAll(AllReduceOf(&value, &largest, 1, ENTRAIN_F64, ENTRAIN_MAX));
  return largest;
}

uint64_t Session::CombineOverReplica(uint64_t value) {
  uint64_t mixed = Mix(value, static_cast<uint64_t>(shard_));
  AllReduce(own_replica_.get(), &mixed, 1, ENTRAIN_U64, ENTRAIN_SUM);
  return mixed;
}

void Session::CheckSameInReplicas(uint64_t value, const char* what) {
  if (goes_on_) {  // the mesh may have lost ranks
    const uint64_t mine = CombineOverReplica(value);
    uint64_t least = 0, most = 0;
    OverAll(AllReduceOf(&mine, &least, 1, ENTRAIN_U64, ENTRAIN_MIN));
    OverAll(AllReduceOf(&mine, &most, 1, ENTRAIN_U64, ENTRAIN_MAX));
    if (least != most) {
      throw Error(std::string(what) + " differ between replicas (" + std::to_string(least) +
                  " and " + std::to_string(most) + ")");
    }
    return;
  }
  std::vector<uint64_t> all(static_cast<size_t>(replicas_));
  Check(entrain_all_gather(MeshComm(mesh_.get(), ENTRAIN_AXIS_SYNC), &value, all.data(), 1,
                           ENTRAIN_U64, nullptr, nullptr));
  for (size_t n = 0; n < all.size(); ++n) {
    if (all[n] != all[0]) {
      throw Error(std::string(what) + " differ between replica 0 (" + std::to_string(all[0]) +
                  ") and replica " + std::to_string(n) + " (" + std::to_string(all[n]) + ")");
    }
  }
}

uint64_t Session::bytes_sent() const {
  entrain_comm_stats_t stats;
  entrain_comm_stats_init(&stats);
  Check(entrain_comm_stats(own_replica_.get(), &stats));
  return stats.bytes_sent;
}

}  // namespace trainer
