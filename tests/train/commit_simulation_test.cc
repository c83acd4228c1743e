// Ranks of a gradient channel (ACCO and its baselines) that crash, stop or lose each other, in a virtual
// world (tests/comm/growth_simulation_test.cc): callers, workers and engines are fibers, and a rank may
// crash whenever one of them blocks. The others finish with the bits of a reference. The reference
// steps all parameters at once, with the micro-batches of the ranks that each round has counted.

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "lib/optim/optimizer.h"
#include "lib/train/acco/gradient_channel.h"
#include "tests/sim/virtual_job.h"

namespace entrain {
namespace {

constexpr int64_t kStartNs = kSecond;
constexpr int64_t kTimeoutNs = 4 * kSecond, kEndNs = 200 * kSecond;
constexpr int64_t kCount = 61;  // no multiple of the ranks
constexpr int64_t kCommits = 4;

float InitialOf(int64_t i) {
  return 0.125f * static_cast<float>(i % 17) - 1;
}
// Sums of these are exact in any order.
float GradientOf(int rank, int64_t round, int64_t i) {
  return static_cast<float>((7 * round + 3 * i + 5 * rank) % 32 - 16) / 64;
}
std::shared_ptr<const Optimizer> MakeRule() {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdamw;
  config.weight_decay = 0.1;
  return *MakeOptimizer(config);
}

// The state of a rank after an install.
struct Landed {
  int64_t ranks = 0, microbatches = 0;
  std::vector<float> params;
};

class CommitJob : private VirtualJob {
 public:
  explicit CommitJob(uint64_t seed)
      : VirtualJob(seed, 6),
        silence_(seed % 2 == 0 ? 0 : 1),
        size_(static_cast<int>(Between(2, 6))),
        method_(static_cast<DelayMethod>(Chance(0.6) ? 0 : Between(1, 3))) {
    for (int rank = 0; rank < size_; ++rank) {
      world_.Start(rank, 0, [this, rank] { BeRank(rank); });
    }
    PickFaults();
    CheckEnd(kEndNs);
    for (int rank = 0; rank < size_; ++rank) {
      if (!touched(rank) || ended_.contains(rank)) {
        CheckRank(rank);
      }
    }
  }

  using VirtualJob::Report;
  enum What { kCrashes, kSeveral, kFinished, kFailed, kCounted, kQuiet };
  static constexpr const char* kReached[] = {"crashes",        "runs with several",
                                             "finished",       "failed",
                                             "losses counted", "runs without a fault"};
  const std::array<uint64_t, std::size(kReached)>& reached() const { return reached_; }

 private:
  void PickFaults() {
    const int64_t kind = Between(0, 9);
    const auto some = [&] { return static_cast<int>(Between(0, size_ - 1)); };
    if (kind == 0) {
      ++reached_[kQuiet];
    } else if (kind == 1) {
      sure_ = false;
      WillStop(some(), kStartNs + Between(0, 500) * kMillisecond,
               Between(1, 10'000) * kMillisecond);
    } else if (kind == 2) {
      sure_ = false;
      const int a = some();
      CutPath(a, (a + static_cast<int>(Between(1, size_ - 1))) % size_,
              kStartNs + Between(0, 500) * kMillisecond);
    } else {
      for (int64_t victims = kind <= 7 ? 1 : 2; victims > 0; --victims) {
        crash_at_[some()] = Between(1, 150);
      }
    }
    reached_[kSeveral] += crash_at_.size() > 1 ? 1 : 0;
  }

  void BeRank(int rank) {
    const CommOptions options = OptionsOf(rank, size_, kTimeoutNs);
    const MaybeComm comm = Communicator::Create(options);
    if (!comm.ok()) {
      Wrong("rank ", rank, " has no communicator: ", comm.status().message());
      return;
    }
    std::vector<float> params(kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      params[static_cast<size_t>(i)] = InitialOf(i);
    }
    ChannelOptions channel_options;
    channel_options.method = method_;
    channel_options.count = kCount;
    channel_options.params = params.data();
    channel_options.optimizer = MakeRule();
    channel_options.lr = 0.01;
    channel_options.limit = kCommits;
    channel_options.on_loss = OnLoss::kFinish;
    channel_options.silence = silence_;
    const auto channel = GradientChannel::Create(**comm, channel_options);
    if (!channel.ok()) {
      Wrong("rank ", rank, " has no channel: ", channel.status().message());
      return;
    }
    world_.Sleep(std::max<int64_t>(kStartNs - now(), 0));
    if (const auto crash = crash_at_.find(rank); crash != crash_at_.end()) {
      ++reached_[kCrashes];
      Crash(rank, crash->second);
      sure_ &= world_.notices(rank);
    }
    const absl::Status status = Train(rank, **channel, params);
    if (!world_.isolated(world_.process())) {
      Tell("rank ", rank, " ends: ", status.ToString());
      ended_[rank] = status;
      for (const ChannelLoss& loss : (*channel)->losses()) {
        lost_[rank].push_back(loss.rank);
      }
    }
  }

  absl::Status Train(int rank, GradientChannel& channel, const std::vector<float>& params) {
    for (int64_t install = 0; !channel.info().finished; ++install) {
      world_.Sleep(Between(0, 20) * kMillisecond);
      auto* const sums = static_cast<float*>(channel.gradients());
      for (int64_t i = 0; i < kCount; ++i) {
        sums[i] += GradientOf(rank, install, i);
      }
      ENTRAIN_RETURN_IF_ERROR(channel.Add(1, 2));
      ENTRAIN_RETURN_IF_ERROR(
          Timed("install", 4 * kTimeoutNs, [&channel] { return channel.Install(); }));
      const ChannelInfo info = channel.info();
      if (info.rounds > 0 && !world_.isolated(world_.process())) {
        landed_[rank][info.rounds] = {info.ranks, info.microbatches, params};
      }
    }
    return absl::OkStatus();
  }

  void CheckRank(int rank) {
    const bool finished = Finished(rank);
    ++reached_[finished ? kFinished : kFailed];
    if (!finished) {
      if (!touched(rank) && sure_ && !NeighboursDied()) {
        Wrong("rank ", rank, " has not finished, though no two neighbours have died");
      }
      return;
    }
    reached_[kCounted] += lost_[rank].empty() ? 0 : 1;
    Reference want(method_);
    for (const auto& [round, landed] : landed_[rank]) {
      const std::vector<int> counted = Without(lost_[rank], landed.ranks);
      const std::vector<float>* const params = want.Round(counted, round - 1);
      if (params != nullptr && round == landed_[rank].rbegin()->first && *params != landed.params) {
        Wrong("rank ", rank, ", round ", round, ": the parameters are not those of ranks {",
              absl::StrJoin(counted, ","), "}");
      }
      CompareWithOthers(rank, round, landed);
    }
  }

  bool Finished(int rank) const {
    const auto ended = ended_.find(rank);
    return ended != ended_.end() && ended->second.ok();
  }
  // Ranks that have died, or were left out, have made the same commits. They may have seen another preview: those that
  // are left make it again, without their gradients.
  void CompareWithOthers(int rank, int64_t round, const Landed& landed) {
    const bool preview = method_ == DelayMethod::kWp || Estimates(round - 1);
    for (const auto& [other, rounds] : landed_) {
      const auto same = rounds.find(round);
      if (same == rounds.end() || (preview && !Finished(other))) {
        continue;
      }
      if (same->second.params != landed.params ||
          same->second.microbatches != landed.microbatches) {
        Wrong("ranks ", rank, ", ", other, " differ after round ", round);
      }
    }
  }
  bool Estimates(int64_t round) const { return method_ == DelayMethod::kAcco && round % 2 == 0; }

  // Returns the ranks of a round that has counted this number of ranks.
  std::vector<int> Without(const std::vector<int>& lost, int64_t ranks) const {
    std::vector<int> counted;
    const auto end = lost.begin() + std::min<int64_t>(size_ - ranks, std::ssize(lost));
    for (int rank = 0; rank < size_; ++rank) {
      if (std::find(lost.begin(), end, rank) == end) {
        counted.push_back(rank);
      }
    }
    return counted;
  }

  bool NeighboursDied() const {
    return std::any_of(crash_at_.begin(), crash_at_.end(), [this](const auto& one) {
      return crash_at_.contains((one.first + 1) % size_);
    });
  }

  // Steps all parameters at once, in plain sequence.
  class Reference {
   public:
    explicit Reference(DelayMethod method)
        : method_(method),
          rule_(MakeRule()),
          state_(static_cast<size_t>(rule_->state_arrays()), std::vector<float>(kCount)) {
      for (int64_t i = 0; i < kCount; ++i) {
        masters_.push_back(InitialOf(i));
      }
    }
    // Returns the parameters after round `round`, counted from 0. Null: the round is an estimate, or a
    // prediction.
    const std::vector<float>* Round(const std::vector<int>& ranks, int64_t round) {
      if (method_ == DelayMethod::kAcco && round % 2 == 0) {
        return nullptr;
      }
      const int64_t first = method_ == DelayMethod::kAcco ? round - 1 : round;
      std::vector<float> mean(kCount);
      for (const int rank : ranks) {
        for (int64_t r = first; r <= round; ++r) {
          for (int64_t i = 0; i < kCount; ++i) {
            mean[static_cast<size_t>(i)] += GradientOf(rank, r, i);
          }
        }
      }
      const double n = static_cast<double>(ranks.size()) * static_cast<double>(round - first + 1);
      BestKernels().scale_any(DType::kF32, mean.data(), mean.data(), kCount, 1 / n);
      std::vector<float*> state;
      for (std::vector<float>& array : state_) {
        state.push_back(array.data());
      }
      rule_->Step({.count = kCount,
                   .master = masters_.data(),
                   .grads = mean.data(),
                   .state = state,
                   .step = ++commits_,
                   .lr = 0.01},
                  Apply::kCommit);
      return method_ == DelayMethod::kWp ? nullptr : &masters_;
    }

   private:
    const DelayMethod method_;
    const std::shared_ptr<const Optimizer> rule_;
    std::vector<float> masters_;
    std::vector<std::vector<float>> state_;
    int64_t commits_ = 0;
  };

  const double silence_;  // seconds, less than the time limit of calls; 0: the default
  const int size_;
  const DelayMethod method_;
  bool sure_ = true;  // every fault is the death of a process, which the others are told of
  std::map<int, absl::Status> ended_;
  std::map<int, std::vector<int>> lost_;             // by rank
  std::map<int, std::map<int64_t, Landed>> landed_;  // by rank and round
  std::array<uint64_t, std::size(kReached)> reached_{};
};

TEST(CommitSimulation, TheRanksThatAreLeftStepAlike) {
  RunSeeds<CommitJob>(400, {});
}

}  // namespace
}  // namespace entrain
