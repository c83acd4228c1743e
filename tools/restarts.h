// The decisions of entrain-run --elastic when a rank has failed. They have no side effects: the
// caller restarts ranks and ends the job.
#pragma once

#include <string>
#include <vector>

namespace entrain {

struct ElasticLimits {
  int max_restarts = 3;  // number of restarts of each rank
  int min_ranks = 1;     // number of ranks that must run for the job to go on
};

class Restarts {
 public:
  Restarts(int ranks, const ElasticLimits& limits)
      : limits_(limits), counts_(static_cast<size_t>(ranks)) {}

  // The state of the job when a rank has failed.
  struct State {
    int running = 0;        // number of other ranks that run
    bool members = false;   // one of these has a communicator, so it can take newcomers in
    bool revives = false;   // the program continues from a checkpoint if all ranks were lost
    bool finished = false;  // a rank has exited with 0
    bool joined = false;    // the process that failed had a communicator
  };
  enum class Verdict {
    kRestart,  // start the rank again
    kGoOn,     // go on without the rank
    kEnd,      // the limits do not cover the failure: end the job
  };
  struct Decision {
    Verdict verdict;
    std::string text;  // completes "rank 1 was killed; ..."
  };
  // Returns the decision about a failed rank. Counts a restart.
  Decision OnFailure(int rank, const State& state);
  int count(int rank) const { return counts_[static_cast<size_t>(rank)]; }

 private:
  const ElasticLimits limits_;
  std::vector<int> counts_;
};

}  // namespace entrain
