// Ranks that join a gradient channel (option admit), in a virtual world (tests/comm/growth_simulation_test.cc):
// the simulation of admission_simulation_test.cc for ACCO and zero1. Two members admit three newcomers, which have
// all applied when the members begin.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "lib/optim/optimizer.h"
#include "lib/train/acco/gradient_channel.h"
#include "tests/sim/virtual_job.h"

namespace entrain {
namespace {

constexpr int kMembers = 2, kProcesses = 5;
constexpr int64_t kStartNs = 2 * kSecond, kTimeoutNs = 4 * kSecond, kWaitNs = 30 * kSecond;
constexpr int64_t kEndNs = 200 * kSecond;
constexpr int64_t kCount = 61, kCommits = 24;

class ChannelAdmissionJob : private VirtualJob {
 public:
  // `victims` die in their `call`-th blocking call after the first round or the application. `notice` false: their
  // hosts die, and nobody is told.
  ChannelAdmissionJob(DelayMethod method, std::set<int> victims, int64_t call, bool notice)
      : VirtualJob(static_cast<uint64_t>(call), kProcesses, {kMicrosecond, kMillisecond}),
        method_(method),
        victims_(std::move(victims)),
        call_(call),
        notice_(notice) {
    for (int process = 0; process < kProcesses; ++process) {
      world_.Start(process, 0, [this, process] { BeRank(process); });
    }
    CheckEnd(kEndNs);
    for (int process = 0; process < kProcesses; ++process) {
      CheckProcess(process);
    }
  }

  using VirtualJob::Report;
  bool admitted() const { return admitted_; }

 private:
  void BeRank(int process) {
    const bool joins = process >= kMembers;
    CommOptions comm_options =
        joins ? OptionsOf(0, 1, kTimeoutNs) : OptionsOf(process, kMembers, kTimeoutNs);
    comm_options.name = joins ? absl::StrCat("newcomer", process) : "members";
    const MaybeComm comm = Communicator::Create(comm_options);
    ASSERT_TRUE(comm.ok()) << comm.status();
    std::vector<float> params(kCount, joins ? 7 : 1);  // a newcomer's own values do not matter
    ChannelOptions options;
    options.method = method_;
    options.count = kCount;
    options.params = params.data();
    OptimizerConfig adamw;
    adamw.kind = OptimizerKind::kAdamw;
    options.optimizer = *MakeOptimizer(adamw);
    options.lr = 0.01;
    options.limit = kCommits;
    options.timeout_ns = options.limit_ns = kTimeoutNs;
    options.on_loss = OnLoss::kFinish;
    options.silence = 1;
    options.admit = Admit::kExchange;
    options.admit_store = [store = comm_options.store](const Stop&) { return store; };
    std::shared_ptr<GradientChannel> channel;
    if (!joins) {
      channel = *GradientChannel::Create(**comm, options);
    }
    world_.Sleep(std::max<int64_t>(kStartNs - (joins ? kSecond : 0) - now(), 0));
    if (victims_.contains(process)) {
      touched_.insert(process);
      world_.CrashAtCall(process, call_, notice_);
    }
    if (joins) {
      auto joined = Timed("join", kWaitNs + kTimeoutNs,
                          [&] { return GradientChannel::Join(**comm, options, kWaitNs); });
      if (world_.isolated(process) || !joined.ok()) {
        Tell("newcomer ", process, ": ", joined.status().ToString());
        return;
      }
      channel = *std::move(joined);
    }
    const absl::Status status = Train(process, *channel, params);
    if (!world_.isolated(process)) {
      // The round that admits them may fail at once: the loss is then one of five ranks.
      admitted_ |= absl::StrContains(status.message(), "of 5 ranks") ||
                   absl::StrContains(status.message(), "which had the copy of its shard");
      Tell("process ", process, " ends: ", status.ToString());
      ended_[process] = status;
    }
  }

  absl::Status Train(int process, GradientChannel& channel, const std::vector<float>& params) {
    while (!channel.info().finished) {
      world_.Sleep(Between(0, 20) * kMillisecond);
      auto* const sums = static_cast<float*>(channel.gradients());
      for (int64_t i = 0; i < kCount; ++i) {
        sums[i] += static_cast<float>((3 * i + 5 * process) % 32 - 16) / 64;
      }
      ENTRAIN_RETURN_IF_ERROR(channel.Add(1, 2));
      ENTRAIN_RETURN_IF_ERROR(
          Timed("install", 4 * kTimeoutNs, [&channel] { return channel.Install(); }));
      const ChannelInfo info = channel.info();
      if (!world_.isolated(process)) {
        admitted_ |= info.ranks > kMembers;
        after_[process][info.rounds] = params;
      }
    }
    return absl::OkStatus();
  }

  void CheckProcess(int process) {
    const auto ended = ended_.find(process);
    if (process < kMembers && !victims_.contains(process)) {
      // A shard has one copy, so ranks that count must not die together. Nor may most of them vanish.
      const bool one = victims_.size() == 1 && notice_;
      const bool never_counted = *victims_.begin() >= kMembers && !admitted_;
      if ((one || never_counted) && (ended == ended_.end() || !ended->second.ok())) {
        Wrong("process ", process,
              " has not finished: ", ended == ended_.end() ? "no end" : ended->second.message());
      }
    }
    if (ended == ended_.end() || !ended->second.ok()) {
      return;
    }
    // Estimates may differ: after a loss they are made again without the lost gradients.
    for (int other = 0; other < process; ++other) {
      const auto there = ended_.find(other);
      if (there != ended_.end() && there->second.ok() &&
          after_[other].rbegin()->second != after_[process].rbegin()->second) {
        Wrong("processes ", other, ", ", process, " end with different parameters");
      }
    }
  }

  const DelayMethod method_;
  const std::set<int> victims_;
  const int64_t call_;
  const bool notice_;
  std::map<int, absl::Status> ended_;
  std::map<int, std::map<int64_t, std::vector<float>>> after_;  // by process and round
  bool admitted_ = false;  // a rank counted more than the members
};

// Kills at each step of an admission: a member, a newcomer, or all newcomers. docs/elastic-grow.md has the steps.
TEST(ChannelAdmissionSimulation, ADeathAtAnyStepLeavesTheMembersTogether) {
  const auto keep = KeepProcess();
  for (const DelayMethod method : {DelayMethod::kAcco, DelayMethod::kZero1}) {
    for (const bool notice : {true, false}) {
      for (const std::set<int>& victims :
           {std::set{0}, std::set{1}, std::set{2}, std::set{2, 3, 4}}) {
        // A newcomer that waits blocks more often.
        const int64_t calls = victims.contains(2) ? 300 : 100;
        int admitted = 0;
        for (int64_t call = 1; call <= calls; ++call) {
          const auto job = std::make_unique<ChannelAdmissionJob>(method, victims, call, notice);
          EXPECT_EQ(job->Report(), "")
              << "method " << static_cast<int>(method) << ", notice " << notice << ", "
              << absl::StrJoin(victims, ",") << " at " << call;
          admitted += job->admitted() ? 1 : 0;
        }
        printf("method %d, victims %s, notice %d: newcomers counted in %d of %d\n",
               static_cast<int>(method), absl::StrJoin(victims, ",").c_str(), notice, admitted,
               static_cast<int>(calls));
        // Some die before they count, and some after it.
        EXPECT_TRUE(!victims.contains(2) || (admitted > 0 && admitted < calls));
      }
    }
  }
}

}  // namespace
}  // namespace entrain
