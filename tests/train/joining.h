// Jobs whose replicas are killed while others join them (option admit). Ranks are processes, as in a
// real job. Their results lie in memory that they share with the test.
//
// Each rank trains until `rounds_after` rendezvous have had the number of replicas that the test
// expects at the end. It logs every rendezvous, so that the test can compute the expected result.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/processes.h"
#include "tests/train/replicas.h"

namespace entrain::joining {

constexpr int kLayerCount = 5;
constexpr int kMostRanks = 8, kMostRounds = 4000;
constexpr int64_t kElements = 8000;
constexpr int64_t kMost = kLayerCount * kElements;

struct Met {
  int32_t replica = -1;  // -1: the end of the row
  int64_t steps = 0, since = 0;
};

// The results of a rank.
struct Shown {
  std::atomic<int64_t> rounds;  // number of rendezvous in `log`
  std::array<std::array<Met, kMostRanks>, kMostRounds> log;
  int replica;
  size_t replicas;
  int64_t joins, losses, short_rounds, first_round;
  int64_t began_joining_at, joined_at, counted_at;
  char error[512];
  float params[kMost];
};
struct Shared {
  std::array<Shown, kMostRanks> ranks;
  std::atomic<int> gone;     // ranks that have killed themselves, or are about to
  std::atomic<int> joining;  // newcomers that have begun to join
  std::atomic<int> ended;    // ranks that have come to the end
  // With Job::leaves: the step at which all leave; 0: not known yet.
  std::atomic<int64_t> last_step;
};

class SharedMemory : public SharedWithChildren<Shared> {
 public:
  Shown& operator[](int rank) const { return (*this)->ranks[static_cast<size_t>(rank)]; }
};

// Returns the options with on_loss finish, newcomers, and an exchange every 4 steps.
EditOptions Open(EditOptions options);

// A job. Process p is a rank of the members' mesh if p < members * shards. The others join.
struct Job {
  int members = 3, newcomers = 1, shards = 1;
  int shards_of_newcomers = 0;  // 0: shards, as it must be; otherwise they are refused
  const char* transports = "shm";
  EditOptions options = Open(Weighed());
  EditOptions options_of_newcomers = Open(Weighed());
  std::vector<int> expected = {0, 2, 3};  // replicas (process / shards) in the last rendezvous
  int rounds_after = 3;                   // number of rendezvous of the expected replicas
  int ends = 3;                           // processes that come to the end
  int64_t timeout_ns = 30 * kSecond, wait_ns = 30 * kSecond;
  // A newcomer begins to join when this number of ranks is gone.
  std::function<int(int process)> comes_after = [](int) { return 0; };
  std::function<int(int process)> step_us = [](int) { return 500; };
  // The host of a process. Empty: all are on this host.
  std::function<std::string(int process)> host = {};
  // Called by each rank after each exchange, with the number of exchanges that it has seen.
  std::function<void(int process, int64_t seen)> at = {};
  std::function<void(int process)> at_joining = {};
  std::function<void(int process, EditOptions* options)> tweak = {};
  // True: the job ends with Leave, which all replicas call at the same step, as fragments need it.
  // Process 0 must live.
  bool leaves = false;
  std::string
      saves_to;  // the directory to which all replicas save after each exchange; empty: none

  int processes() const { return (members + newcomers) * shards; }
  bool joins(int process) const { return process >= members * shards; }
  int shards_of(int process) const {
    return joins(process) && shards_of_newcomers > 0 ? shards_of_newcomers : shards;
  }
};

// Kills this process, and counts it in Shared::gone.
void Die(const SharedMemory& shared);

// Runs the job. Returns the status of each process as waitpid gives it.
std::vector<int> RunJob(const Job& job, const SharedMemory& shared);

// Expects that these processes have come to the end, with equal bits on all processes of a slot.
void ExpectAlike(const Job& job, const SharedMemory& shared, const std::vector<int>& processes);

// Compares with a reference that makes the exchanges in the log of `process`, which has seen all.
void ExpectReference(const Job& job, const SharedMemory& shared, int process);

}  // namespace entrain::joining
