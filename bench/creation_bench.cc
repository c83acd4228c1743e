// Measures the time to create a communicator, and the time of a small all_reduce on it. Runs as a
// rank of any launcher, or of cluster.sh. Each round makes a new runtime, so no connection is
// reused. Rank 0 writes one line per round. The line has two times of the slowest rank, in
// milliseconds: of entrain_comm_create_from_env, and of the all_reduce.
//
//     creation-bench [ROUNDS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "include/entrain/entrain.h"

namespace {

void Check(entrain_status_t status, const char* what) {
  if (status != ENTRAIN_OK) {
    std::fprintf(stderr, "creation-bench: %s: %s\n", what, entrain_last_error());
    std::exit(1);
  }
}

double NowMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

entrain_comm_t* Create(entrain_runtime_t* runtime, const std::string& name) {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime;
  config.name = name.c_str();
  entrain_comm_t* comm = nullptr;
  Check(entrain_comm_create_from_env(&config, &comm), "creating");
  return comm;
}

double Slowest(entrain_comm_t* comm, double mine) {
  double slowest = 0;
  Check(entrain_all_reduce(comm, &mine, &slowest, 1, ENTRAIN_F64, ENTRAIN_MAX, nullptr, nullptr),
        "all_reduce");
  return slowest;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  // Ranks and the store start at different times. A barrier on this communicator makes all ranks
  // begin each round together.
  entrain_comm_t* const first = Create(nullptr, "first");
  int32_t rank = 0;
  Check(entrain_comm_rank(first, &rank), "rank");
  for (int round = 0; round < rounds; ++round) {
    entrain_runtime_config_t config;
    entrain_runtime_config_init(&config);
    entrain_runtime_t* runtime = nullptr;
    Check(entrain_runtime_create(&config, &runtime), "runtime");
    Check(entrain_barrier(first, nullptr, nullptr), "barrier");
    const double begun = NowMs();
    entrain_comm_t* const comm = Create(runtime, "round" + std::to_string(round));
    const double created = NowMs() - begun;
    const double reducing = NowMs();
    Slowest(comm, created);
    const double reduced = NowMs() - reducing;
    const double slowest = Slowest(first, created), slowest_reduce = Slowest(first, reduced);
    if (rank == 0) {
      std::printf("created in %.1f ms, all_reduce of 8 bytes in %.1f ms\n", slowest,
                  slowest_reduce);
      std::fflush(stdout);
    }
    entrain_comm_destroy(comm);
    entrain_runtime_destroy(runtime);
  }
  entrain_comm_destroy(first);
  return 0;
}
