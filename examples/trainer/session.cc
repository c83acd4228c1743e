#include "examples/trainer/session.h"

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "examples/trainer/random.h"

namespace trainer {
namespace {

// The largest number of meetings that a rank of a restarted replica tries. Each restart of one of
// the ranks uses up at most one meeting.
constexpr int kMostMeetings = 1000;
// The largest number of lives that a process begins one after the other. Each rank that is lost
// during a meeting uses up one.
constexpr int kMostLives = 50;
// A rank that joins the others looks after this time whether any are left.
constexpr int64_t kJoinNs = 30'000'000'000;

// The variables of torchrun and entrain-run, Open MPI, MPICH, and Slurm.
using Variables = std::array<const char*, 4>;
constexpr Variables kRankVariables = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};

// Returns the value of the first variable that is set; 0 if no variable is set.
int FirstOf(const Variables& variables) {
  for (const char* name : variables) {
    if (const char* value = std::getenv(name)) {
      return std::atoi(value);
    }
  }
  return 0;
}

// Returns the number of ranks of the job.
int LauncherRanks() {
  return FirstOf({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
}

void AllReduce(entrain_comm_t* comm, void* values, int count, entrain_dtype_t dtype,
               entrain_op_t op) {
  Check(entrain_all_reduce(comm, values, values, static_cast<size_t>(count), dtype, op, nullptr,
                           nullptr));
}

}  // namespace

int LauncherRank() {
  return FirstOf(kRankVariables);
}

Session::Session(bool admit, int shard_size, bool saves) : shard_size_(shard_size) {
  const char* const restarts = std::getenv("ENTRAIN_RESTARTS");
  const bool restarted = admit && restarts != nullptr && std::atoi(restarts) > 0;
  if (admit) {
    lives_ = Lives::Open(LauncherRank(), LauncherRanks(), saves);
  }
  Lives::Way way = restarted ? Lives::Way::kJoin : Lives::Way::kMeet;
  for (int meeting = 1; world_ == nullptr; ++meeting) {
    if (lives_ != nullptr) {
      way = lives_->Arrive(restarted || lives_->number() > 0);
    }
    if (way == Lives::Way::kOver) {
      throw Error("the other ranks have finished the run", /*exit_code=*/0);
    }
    joins_ = way == Lives::Way::kJoin;
    if (joins_) {
      StandAlone();
      return;
    }
    Meet(/*last=*/meeting == kMostLives);
  }
  int32_t value = 0;
  Check(entrain_comm_rank(world_.get(), &value));
  rank_ = value;
  Check(entrain_comm_size(world_.get(), &value));
  ranks_ = value;
  rank_left_ = rank_;
  ranks_left_ = ranks_;
}

// Makes the communicator of all ranks. If a rank was lost meanwhile and this meeting is not the last
// one, begins the next life, in which all ranks meet again.
void Session::Meet(bool last) {
  entrain_comm_t* comm = nullptr;
  entrain_status_t status = ENTRAIN_OK;
  if (!revives()) {
    status = entrain_comm_create_from_env(nullptr, &comm);
  } else {
    const std::string name = "world-" + std::to_string(lives_->number());
    entrain_comm_config_t config;
    entrain_comm_config_init(&config);
    config.store = lives_->store();
    config.name = name.c_str();
    config.rank = LauncherRank();
    config.world_size = LauncherRanks();
    status = entrain_comm_create(&config, &comm);
  }
  if (lives_ != nullptr && !last &&
      (status == ENTRAIN_PEER_LOST || (status == ENTRAIN_FAILED_PRECONDITION && revives()))) {
    lives_->Fail();
    return;
  }
  Check(status);
  world_.reset(comm);
  if (lives_ != nullptr) {
    lives_->Met();
  }
}

void Session::Join(const std::function<entrain_status_t(int64_t wait_ns)>& join) {
  entrain_status_t status = ENTRAIN_TIMED_OUT;
  while (status == ENTRAIN_TIMED_OUT) {
    if (lives_ != nullptr && !lives_->HasMembers()) {
      lives_->Fail();
      throw AllLost();
    }
    status = join(lives_ == nullptr ? 0 : kJoinNs);
    if (lives_ == nullptr) {
      break;
    }
  }
  Check(status);
  if (lives_ != nullptr) {
    lives_->Joined();
  }
}

std::string Session::AdmitName(const std::string& first) const {
  return revives() ? first + "-" + std::to_string(lives_->number()) : first;
}

void Session::NoteExchange() {
  if (lives_ != nullptr) {
    lives_->Exchanged();
  }
}

void Session::NoteEnd() {
  if (lives_ != nullptr) {
    lives_->Over();
  }
}

// Makes a communicator of the ranks of a restarted replica. The ranks find each other in the job's
// store. They are restarted one by one, and each may be killed again meanwhile. So a rank does not
// know in which meeting all of them will be present, and tries one meeting after the other. A
// meeting that is over, or that a rank has left, is refused at once.
void Session::StandAlone() {
  rank_ = LauncherRank();
  ranks_ = LauncherRanks();
  StoreHandle opened;  // of rank 0, if ENTRAIN_STORE is not set
  if (lives_ == nullptr) {
    entrain_store_t* store = nullptr;
    Check(entrain_store_open("env:", 0, &store));
    opened.reset(store);
  }
  const std::string name =
      AdmitName("replica of rank " + std::to_string(rank_ - rank_ % shard_size_));
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.store = lives_ != nullptr ? lives_->store() : opened.get();
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
  Check(entrain_comm_split(world_.get(), replica_, shard_, &part, nullptr));
  own_replica_.reset(part);
}

// An all-reduce over all ranks. Does not change `in`.
void Session::OverAll(const void* in, void* out, int count, entrain_dtype_t dtype,
                      entrain_op_t op) {
  const auto elements = static_cast<size_t>(count);
  Check(reduce_ ? reduce_(in, out, elements, dtype, op, &rank_left_, &ranks_left_)
                : entrain_all_reduce(world_.get(), in, out, elements, dtype, op, nullptr, nullptr));
}

void Session::LookAround() {
  OverAll(nullptr, nullptr, 0, ENTRAIN_F64, ENTRAIN_SUM);
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
  OverAll(&mine, &first, 1, ENTRAIN_I64, ENTRAIN_MIN);
  if (first < ranks_) {
    throw Error(first == rank_ ? failure : "");
  }
}

void Session::SumOverReplica(double* values, int count) {
  AllReduce(own_replica_.get(), values, count, ENTRAIN_F64, ENTRAIN_SUM);
}

void Session::SumOverAll(double* values, int count) {
  const std::vector<double> mine(values, values + count);
  OverAll(mine.data(), values, count, ENTRAIN_F64, ENTRAIN_SUM);
}

double Session::LargestOfAll(double value) {
  double largest = 0.0;
  OverAll(&value, &largest, 1, ENTRAIN_F64, ENTRAIN_MAX);
  return largest;
}

uint64_t Session::CombineOverReplica(uint64_t value) {
  uint64_t mixed = Mix(value, static_cast<uint64_t>(shard_));
  AllReduce(own_replica_.get(), &mixed, 1, ENTRAIN_U64, ENTRAIN_SUM);
  return mixed;
}

void Session::CheckSameInReplicas(uint64_t value, const char* what) {
  const uint64_t mine = CombineOverReplica(value);
  uint64_t least = 0, most = 0;
  OverAll(&mine, &least, 1, ENTRAIN_U64, ENTRAIN_MIN);
  OverAll(&mine, &most, 1, ENTRAIN_U64, ENTRAIN_MAX);
  if (least != most) {
    throw Error(std::string(what) + " differ between replicas (" + std::to_string(least) + " and " +
                std::to_string(most) + ")");
  }
}

uint64_t Session::bytes_sent() const {
  entrain_comm_stats_t stats;
  entrain_comm_stats_init(&stats);
  Check(entrain_comm_stats(own_replica_.get(), &stats));
  return stats.bytes_sent;
}

}  // namespace trainer
