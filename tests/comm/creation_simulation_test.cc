// Ranks that make a communicator over a store, in a virtual world (growth_simulation_test.cc). Some
// come late, crash at any blocking call and are started again, stop, lose each other or lose the
// store.

#include <algorithm>
#include <array>
#include <string>

#include "gtest/gtest.h"

#include "tests/sim/virtual_job.h"

namespace entrain {
namespace {

constexpr int64_t kTimeoutNs = 3 * kSecond;
constexpr int64_t kEndNs = 90 * kSecond;

class CreationJob : private VirtualJob {
 public:
  explicit CreationJob(uint64_t seed)
      : VirtualJob(seed, 8), size_(static_cast<int>(Between(2, 6))) {
    if (Chance(0.9)) {
      AddFault();
      if (Chance(0.3)) {
        AddFault();
      }
    }
    for (int rank = 0; rank < size_; ++rank) {
      world_.Start(rank, Between(0, 300) * kMillisecond, [this, rank] { Create(rank); });
    }
    CheckEnd(kEndNs);
    CheckViews();
    for (int rank = 0; rank < size_ && touched_.empty() && !store_touched_; ++rank) {
      ++reached_[kQuiet];
      if (!made_.contains(rank)) {
        Wrong("nothing has failed, and rank ", rank, " has no communicator");
      }
    }
  }

  using VirtualJob::Report;
  enum What { kMade, kFailed, kBlamed, kQuiet };
  static constexpr const char* kReached[] = {"made", "failed", "blamed", "ranks without a fault"};
  const std::array<uint64_t, std::size(kReached)>& reached() const { return reached_; }

 private:
  void AddFault() {
    const auto some = [&] { return static_cast<int>(Between(0, size_ - 1)); };
    const int64_t at = Between(0, 600 * kMillisecond), kind = Between(0, 9);
    if (kind <= 4) {
      const int victim = some();
      Crash(victim, Between(1, 40));
      if (Chance(0.4)) {  // a launcher starts the rank again
        Tell("rank ", victim, " will be started again");
        world_.Start(size_, at + kSecond, [this, victim] { Create(victim); });
        touched_.insert(size_);
      }
    } else if (kind == 5) {
      WillStop(some(), at, Between(1, 5000) * kMillisecond);
    } else if (kind == 6) {
      StallStore(at, Between(1, 1500) * kMillisecond);
    } else if (kind == 7 && size_ > 1) {
      const int a = some();
      CutPath(a, (a + static_cast<int>(Between(1, size_ - 1))) % size_, at);
    } else {
      CutFromStore(some(), at);
    }
  }

  void Create(int rank) {
    const int process = world_.process();
    const CommOptions options = OptionsOf(rank, size_, kTimeoutNs);
    const MaybeComm comm =
        Timed("create", kTimeoutNs, [&] { return Communicator::Create(options); });
    if (world_.isolated(process)) {
      return;
    }
    if (comm.ok()) {
      ++reached_[kMade];
      made_.insert(process);
      Saw(**comm);
      // The others may still read this rank's messages.
      world_.Sleep(kTimeoutNs);
      return;
    }
    ++reached_[kFailed];
    Tell("rank ", rank, ": ", comm.status().ToString());
    const int guilty = BlameOf(comm.status()).rank;
    reached_[kBlamed] += guilty >= 0 ? 1 : 0;
    if (guilty >= 0 && !touched(guilty) && !touched(process) && !store_touched_) {
      Wrong("rank ", rank, " blames rank ", guilty,
            ", which did nothing: ", comm.status().message());
    }
  }

  const int size_;
  std::set<int> made_;
  std::array<uint64_t, std::size(kReached)> reached_{};
};

TEST(CreationSimulation, RanksMeetOrNameTheRankThatIsToBlame) {
  // 2: two processes claimed a rank, and the rank that found it was blamed.
  // 488: a rank lost the store while the ranks connected, and another one was blamed.
  RunSeeds<CreationJob>(1500, {2, 488});
}

}  // namespace
}  // namespace entrain
