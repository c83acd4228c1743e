// A job of virtual processes: its faults, the log of events that is printed for a failing seed, and
// the observations that its processes report. Tests derive their scenarios from this class.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "tests/sim/seeds.h"
#include "tests/sim/virtual_store.h"
#include "tests/sim/virtual_world.h"

namespace entrain {

// Returns a communicator that keeps the objects of the real process alive outside of virtual
// worlds: the thread of flight recorders, and the log. The log does not report the errors that
// seeds cause.
std::shared_ptr<Communicator> KeepProcess();

class VirtualJob {
 public:
  using Comm = std::shared_ptr<Communicator>;
  using MaybeComm = absl::StatusOr<Comm>;

  // The seed determines the delays of the network and of the store, the hosts, and the errors of
  // the clocks.
  VirtualJob(uint64_t seed, int processes);
  // Each process is on a host of its own, with a right clock, and messages take these times. The
  // store is quick.
  VirtualJob(uint64_t seed, int processes, VirtualNetwork::Delays delays);

 protected:
  // ---- Faults. Each is added to the printed log. Its processes count as touched from then on.
  void Crash(int process, int64_t at_call);
  void WillStop(int process, int64_t at_ns, int64_t for_ns);
  void CutPath(int a, int b, int64_t at_ns);
  void CutFromStore(int process, int64_t at_ns);
  void StallStore(int64_t at_ns, int64_t for_ns);

  // ---- For the fiber of a process
  CommOptions OptionsOf(int rank, int size, int64_t timeout_ns);
  // Runs a call and checks that it ends within `limit_ns` of the process's clock.
  template <typename Call>
  auto Timed(const char* name, int64_t limit_ns, Call call) {
    const int64_t start = world_.LocalNow(world_.process());
    auto result = call();
    Check(name, world_.LocalNow(world_.process()) - start, limit_ns);
    return result;
  }
  // Records that the process of the running fiber has this communicator.
  void Saw(const Communicator& comm);
  template <typename... Words>
  void Tell(const Words&... words) {
    story_.push_back(absl::StrFormat("%10.3f ms: ", static_cast<double>(now()) * 1e-6) +
                     absl::StrCat(words...));
    if (Seeds::Traced()) {
      printf("%s\n", story_.back().c_str());
    }
  }
  template <typename... Words>
  void Wrong(const Words&... words) {
    Tell("WRONG: ", words...);
    absl::StrAppend(&wrong_, words..., "\n");
  }

  // ---- Afterwards
  // Checks that communicators of one generation have the same members in all processes.
  void CheckViews();
  void CheckEnd(int64_t until_ns);
  int ProcessOf(const PeerId& id) const;  // -1: unknown
  std::string Report() const;
  uint64_t fingerprint() const { return world_.fingerprint(); }

  bool touched(int process) const { return touched_.contains(process); }
  // Returns true if none of `count` processes from `first` on was to crash (crash_at_).
  bool IsSpared(int first, int count) const {
    return crash_at_.lower_bound(first) == crash_at_.lower_bound(first + count);
  }
  int64_t now() { return world_.network().now(); }
  int64_t Between(int64_t least, int64_t most) { return world_.network().Between(least, most); }
  bool Chance(double probability) { return world_.network().Chance(probability); }

  VirtualWorld world_;
  VirtualStore store_;
  // Of every call: 250 ms and two round trips (Vote::kLateNs), and its thread wakes late.
  int64_t slack_ns_ = 260 * kMillisecond;
  std::map<int, int64_t> crash_at_;  // by process: the blocking call; set by the scenario
  std::set<int> touched_;
  std::set<std::pair<int, int>> cut_;
  bool store_touched_ = false;
  bool one_host_ = true;

 private:
  void Check(const char* name, int64_t took_ns, int64_t limit_ns);
  static VirtualNetwork::Delays PickDelays(uint64_t seed);
  static VirtualStore::Times PickTimes(uint64_t seed);

  std::map<uint64_t, std::map<int, std::vector<int>>> views_;  // by generation and process
  std::map<PeerId, int> process_of_;
  std::vector<std::string> story_;
  std::string wrong_;
};

// Runs a job for every seed, and first for `known`: seeds that have found faults. Job::Report
// returns the failures, and Job::kReached names the counters of reached().
template <typename Job>
void RunSeeds(uint64_t usual, const std::vector<uint64_t>& known) {
  const auto keep = KeepProcess();
  const Seeds seeds(usual);
  std::vector<uint64_t> all = Seeds::Chosen() ? std::vector<uint64_t>() : known;
  std::vector<uint64_t> reached(std::size(Job::kReached));
  int failed = 0;
  for (uint64_t i = 0; i < all.size() + seeds.count && failed < 5; ++i) {
    const uint64_t seed = i < all.size() ? all[i] : seeds.first + i - all.size();
    const auto job = std::make_unique<Job>(seed);
    if (const std::string wrong = job->Report(); !wrong.empty()) {
      ++failed;
      ADD_FAILURE() << "seed " << seed << ": " << wrong;
    }
    for (size_t k = 0; k < reached.size(); ++k) {
      reached[k] += job->reached()[k];
    }
  }
  std::string counts = absl::StrCat(seeds.count, " seeds");
  for (size_t k = 0; k < reached.size(); ++k) {
    absl::StrAppend(&counts, ", ", Job::kReached[k], " ", reached[k]);
    EXPECT_TRUE(Seeds::Chosen() || reached[k] > seeds.count / 100) << Job::kReached[k];
  }
  testing::Test::RecordProperty("reached", counts);
  printf("%s\n", counts.c_str());
}

}  // namespace entrain
