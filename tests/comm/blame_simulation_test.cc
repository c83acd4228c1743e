// Ranks whose calls fail because of one of them, in a virtual world (growth_simulation_test.cc). A rank
// crashes, stops, loses the path to another one, or does not make its call. All others must name it in
// time. This includes ranks that wait for a rank that waits for the guilty rank in another
// communicator.

#include <algorithm>
#include <array>
#include <string>

#include "gtest/gtest.h"

#include "tests/sim/virtual_job.h"

namespace entrain {
namespace {

constexpr int64_t kTimeoutNs = 1500 * kMillisecond;
constexpr int64_t kFaultNs = 2 * kSecond, kFaultsEndNs = 3 * kSecond;
constexpr int64_t kCallsNs = 4 * kSecond, kEndNs = 60 * kSecond;

class BlameJob : private VirtualJob {
 public:
  explicit BlameJob(uint64_t seed)
      : VirtualJob(seed, 6), size_(static_cast<int>(Between(2, 6))), pairs_(Chance(0.6)) {
    guilty_ = static_cast<int>(Between(0, size_ - 1));
    for (int rank = 0; rank < size_; ++rank) {
      world_.Start(rank, 0, [this, rank] { BeRank(rank); });
    }
    PickFault();
    CheckEnd(kEndNs);
    for (int rank = 0; rank < size_; ++rank) {
      if (fault_ == Fault::kNone && !well_.contains(rank)) {
        Wrong("nothing has failed, and rank ", rank, " has an error");
      }
    }
  }

  using VirtualJob::Report;
  enum What { kCrashed, kStopped, kCut, kAbsent, kBlamed, kQuiet };
  static constexpr const char* kReached[] = {"crashed", "stopped", "paths cut",
                                             "absent",  "blamed",  "runs without a fault"};
  const std::array<uint64_t, std::size(kReached)>& reached() const { return reached_; }

 private:
  enum class Fault { kNone, kCrash, kStop, kCut, kAbsent };

  void PickFault() {
    const int64_t at = Between(kFaultNs, kFaultsEndNs);
    fault_ = static_cast<Fault>(Between(0, 4));
    if (fault_ == Fault::kStop) {
      WillStop(guilty_, at, 20 * kSecond);
    } else if (fault_ == Fault::kCut) {
      CutPath(guilty_, (guilty_ + 1) % size_, at);
    } else if (fault_ == Fault::kAbsent) {
      touched_.insert(guilty_);
      absent_at_ = at;
      Tell("rank ", guilty_, " will not make its call at ", at / kMillisecond, " ms");
    }
    constexpr What kCounts[] = {kQuiet, kCrashed, kStopped, kCut, kAbsent};
    ++reached_[kCounts[static_cast<size_t>(fault_)]];
  }

  void BeRank(int rank) {
    const CommOptions options = OptionsOf(rank, size_, kTimeoutNs);
    const MaybeComm all = Communicator::Create(options);
    const MaybeComm pair = all.ok() && pairs_ ? (*all)->Split(rank / 2, rank) : all;
    if (!all.ok() || !pair.ok()) {
      Wrong("rank ", rank, " has no communicator: ", all.status().message());
      return;
    }
    world_.Sleep(std::max<int64_t>(kFaultNs - now(), 0));
    if (rank == guilty_ && fault_ == Fault::kCrash) {
      Crash(rank, Between(1, 60));
    }
    const absl::Status status = MakeCalls(rank, **all, **pair);
    if (world_.isolated(world_.process())) {
      return;
    }
    if (status.ok()) {
      well_.insert(rank);
    } else {
      CheckBlame(rank, **all, status);
      // The others may still ask this rank.
      world_.Sleep(4 * kTimeoutNs);
    }
  }

  absl::Status MakeCalls(int rank, Communicator& all, Communicator& pair) {
    for (int64_t over = 0; over == 0;) {
      if (rank == guilty_ && absent_at_ > 0 && now() >= absent_at_) {
        world_.Sleep(20 * kSecond);
        return absl::OkStatus();
      }
      world_.Sleep(Between(0, 100) * kMillisecond);
      over = now() >= kCallsNs ? 1 : 0;
      int64_t sum = 1;
      for (auto [comm, value, op] :
           {std::tuple(&pair, &sum, ReduceOp::kSum), std::tuple(&all, &over, ReduceOp::kMax)}) {
        const absl::Status status = Timed(
            "all_reduce", kTimeoutNs,
            [&, c = comm, v = value, o = op] { return c->AllReduce(v, v, 1, DType::kI64, o); });
        ENTRAIN_RETURN_IF_ERROR(status);
      }
    }
    return absl::OkStatus();
  }

  void CheckBlame(int rank, Communicator& all, const absl::Status& why) {
    Tell("rank ", rank, ": ", why.ToString());
    if (touched(rank)) {
      return;
    }
    const int named = ProcessOf(BlameOf(why).peer_id);
    reached_[kBlamed] += named >= 0 ? 1 : 0;
    // A network that loses messages without notice is noticed late. Then the error may name no
    // rank, but it must not name a wrong one.
    const bool unknown = fault_ == Fault::kCut && named < 0;
    if (fault_ == Fault::kNone || (!touched(named) && !unknown)) {
      Wrong("rank ", rank, " of ", all.size(), " blames ", named, " and not rank ", guilty_, ": ",
            why.message());
    }
  }

  const int size_;
  const bool pairs_;  // every second call is in a communicator of two
  int guilty_ = 0;
  Fault fault_ = Fault::kNone;
  int64_t absent_at_ = 0;
  std::set<int> well_;
  std::array<uint64_t, std::size(kReached)> reached_{};
};

TEST(BlameSimulation, TheGuiltyRankIsNamedInTime) {
  RunSeeds<BlameJob>(1000, {});
}

}  // namespace
}  // namespace entrain
