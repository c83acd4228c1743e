// Replicas that join others which train with EDiT (option admit), in a virtual world
// (tests/comm/growth_simulation_test.cc). Ranks crash whenever one of their threads blocks, and lose
// their way to the store for a while. Members finish their steps whatever happens to newcomers, and
// all that count in an exchange have equal bits after it.

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "lib/comm/mesh.h"
#include "lib/train/edit/layer_sync.h"
#include "tests/sim/virtual_job.h"
#include "tests/train/replicas.h"
#include "tests/train/rounds.h"

namespace entrain {
namespace {

constexpr int64_t kStartNs = 2 * kSecond, kTimeoutNs = 4 * kSecond, kEndNs = 300 * kSecond;
constexpr int64_t kWaitNs =
    60 * kSecond;  // of a newcomer; the members finish sooner without faults
constexpr int kSteps = 40, kInterval = 2;

// Two members admit three newcomers, which have all applied when the members begin to train.
struct Death {
  std::set<int> victims;  // 0 and 1 are the members, 2 to 4 the newcomers
  int64_t call = 0;       // the blocking call, counted from the first step or from the application
  bool notice = true;     // false: their hosts die, and nobody is told
};

class AdmissionJob : private VirtualJob {
 public:
  explicit AdmissionJob(uint64_t seed)
      : VirtualJob(seed, 8),
        silence_(seed % 2 == 0 ? 0 : 1),
        shards_(Chance(0.3) ? 2 : 1),
        members_(static_cast<int>(Between(2, shards_ == 1 ? 4 : 2))),
        newcomers_(static_cast<int>(Between(1, shards_ == 1 ? 3 : 2))),
        quorum_(Chance(0.5) ? static_cast<int>(Between(1, members_)) : 0),
        late_(quorum_ > 0 ? static_cast<Late>(Between(0, 2)) : Late::kDrop),
        fragments_(quorum_ > 0 && Chance(0.5) ? static_cast<int>(Between(1, 4)) : 0) {
    for (int newcomer = 0; newcomer < newcomers_; ++newcomer) {
      comes_at_.push_back(kStartNs + Between(0, 2000) * kMillisecond);
    }
    if (Chance(0.8)) {
      for (int64_t victims = Chance(0.8) ? 1 : 2; victims > 0; --victims) {
        crash_at_[static_cast<int>(Between(0, processes() - 1))] =
            Chance(0.5) ? Between(1, 100) : Between(1, 1000);
      }
    }
    if (Chance(0.1)) {
      StallStore(kStartNs + Between(0, 2000) * kMillisecond, Between(1, 1500) * kMillisecond);
    }
    Play();
  }
  AdmissionJob(uint64_t seed, const Death& death)
      : VirtualJob(seed, 8, {kMicrosecond, kMillisecond}),
        silence_(1),
        shards_(1),
        members_(2),
        newcomers_(3),
        quorum_(0),
        late_(Late::kDrop),
        fragments_(0),
        comes_at_(3, kStartNs - kSecond),
        told_(death.notice) {
    for (const int victim : death.victims) {
      crash_at_[victim] = death.call;
    }
    Play();
  }

  using VirtualJob::Report;
  enum What { kCrashes, kJoined, kShort, kLate, kQuiet };
  static constexpr const char* kReached[] = {"crashes", "joined", "finished with fewer", "was late",
                                             "runs without a fault"};
  const std::array<uint64_t, std::size(kReached)>& reached() const { return reached_; }

 private:
  struct Finished {
    absl::Status joined, status;
    int replicas = 0;
    std::map<int64_t, uint64_t> after;  // by number of exchanges: the checksum of the anchors
  };
  int processes() const { return (members_ + newcomers_) * shards_; }
  bool Joins(int process) const { return process >= members_ * shards_; }
  bool Quiet() const { return touched_.empty() && !store_touched_; }

  void Play() {
    for (int process = 0; process < processes(); ++process) {
      world_.Start(process, 0, [this, process] { BeRank(process); });
    }
    CheckEnd(kEndNs);
    for (int process = 0; process < processes(); ++process) {
      CheckProcess(process);
    }
    reached_[kQuiet] += Quiet() ? 1 : 0;
  }

  void BeRank(int process) {
    const int of_members = members_ * shards_;
    const int newcomer = (process - of_members) / shards_;
    CommOptions comm_options =
        Joins(process) ? OptionsOf((process - of_members) % shards_, shards_, kTimeoutNs)
                       : OptionsOf(process, of_members, kTimeoutNs);
    comm_options.name = Joins(process) ? absl::StrCat("newcomer", newcomer) : "members";
    const MaybeComm comm = Communicator::Create(comm_options);
    MeshConfig shape;
    shape.lengths[static_cast<size_t>(Axis::kShard)] = shards_;
    const auto mesh = comm.ok() ? Mesh::Create(*comm, shape) : comm.status();
    if (!mesh.ok()) {
      Wrong("process ", process, " has no mesh: ", mesh.status().message());
      return;
    }
    Replica replica(*mesh, FourLayers());
    EditOptions options = Weighed();
    options.timeout_ns = kTimeoutNs;
    options.on_loss = OnLoss::kFinish;
    options.silence = silence_;
    options.admit = Admit::kExchange;
    options.most_replicas = members_ + newcomers_;
    options.local_sgd_sync_interval = kInterval;
    options.quorum = quorum_;
    options.late = late_;
    if (fragments_ > 0) {  // rounds of fragments, for which nobody waits
      options.fragments = fragments_;
      options.overlap_steps = 1;
    }
    options.admit_store = [store = comm_options.store](const Stop&) { return store; };
    Finished& mine = finished_[process];
    const int64_t start = Joins(process) ? comes_at_[static_cast<size_t>(newcomer)] : kStartNs;
    if (Joins(process)) {
      // The values that the newcomer has before it joins do not matter.
      replica.ForEach(replica.params(), [](int, int64_t, float& value) { value = 7; });
    } else {
      replica.Edit(options);
    }
    world_.Sleep(std::max<int64_t>(start - now(), 0));
    if (const auto crash = crash_at_.find(process); crash != crash_at_.end()) {
      ++reached_[kCrashes];
      if (told_.has_value()) {
        touched_.insert(process);
        world_.CrashAtCall(process, crash->second, *told_);
      } else {
        Crash(process, crash->second);
      }
      sure_ &= world_.notices(process);
    }
    if (Joins(process)) {
      mine.joined =
          Timed("join", kWaitNs + kTimeoutNs, [&] { return replica.Join(options, kWaitNs); });
      if (world_.isolated(process)) {
        return;
      }
      Tell("newcomer ", process, ": ", mine.joined.ToString());
      if (!mine.joined.ok()) {
        return;
      }
      ++reached_[kJoined];
    }
    mine.status = Train(replica, &mine);
    if (!world_.isolated(process)) {
      const EditInfo info = replica.edit().info();
      Tell("process ", process, " ends as replica ", info.replica, ": ", mine.status.ToString(),
           "; ", info.rendezvous, " exchanges, ", info.missed, " missed, ", info.replicas,
           " replicas");
      mine.replicas = info.replicas;
      admitted_ |= info.replicas > members_;
      reached_[kLate] += info.missed > 0 ? 1 : 0;
    }
  }

  absl::Status Train(Replica& r, Finished* mine) {
    LayerSync& edit = r.edit();
    while (true) {
      ENTRAIN_RETURN_IF_ERROR(
          Timed("forward", 8 * kTimeoutNs, [&] { return ForwardFourLayers(edit); }));
      const EditInfo info = edit.info();
      admitted_ |= info.replicas > members_;
      if (!world_.isolated(world_.process())) {
        mine->after[info.syncs] = info.anchor_checksum;
      }
      if (info.steps >= kSteps) {
        return edit.Leave();
      }
      world_.Sleep(Between(0, 150) * kMillisecond);
      r.ForEach(r.params(), [&](int layer, int64_t i, float& value) {
        value += Noise(info.replica, info.steps, layer, i) / 4;
      });
      ENTRAIN_RETURN_IF_ERROR(edit.EndStep());
    }
  }

  void CheckProcess(int process) {
    const Finished& mine = finished_[process];
    if (!IsSpared(process / shards_ * shards_, shards_)) {
      return;
    }
    if (!mine.joined.ok()) {
      // For a fault of its own, or although nothing has happened to anybody.
      const bool of_others =
          absl::IsDeadlineExceeded(mine.joined) || absl::IsUnavailable(mine.joined);
      if (Quiet() || (!of_others && !store_touched_)) {
        Wrong("newcomer ", process, " is refused: ", mine.joined.message());
      }
      return;
    }
    if (!mine.status.ok()) {
      // A newcomer that nobody has admitted must not count in the majority of the members.
      const bool of_newcomers =
          told_.has_value() && crash_at_.lower_bound(members_) == crash_at_.begin() && !admitted_;
      if (sure_ || of_newcomers) {
        Wrong("process ", process, " has not finished: ", mine.status.message());
      }
      return;
    }
    reached_[kShort] += mine.replicas < members_ + newcomers_ ? 1 : 0;
    for (int other = process % shards_; other < process; other += shards_) {
      for (const auto& [exchange, checksum] : finished_[other].after) {
        const auto here = mine.after.find(exchange);
        if (IsSpared(other / shards_ * shards_, shards_) && here != mine.after.end() &&
            here->second != checksum) {
          Wrong("processes ", other, ", ", process, " differ after exchange ", exchange);
        }
      }
    }
  }

  const double silence_;  // seconds, less than the time limit of calls; 0: the default
  const int shards_, members_, newcomers_, quorum_;
  const Late late_;
  const int fragments_;            // 0: callers wait for rounds
  std::vector<int64_t> comes_at_;  // by newcomer
  std::optional<bool> told_;       // whether the others are told of crashes; none: by chance
  bool sure_ = true;               // the others are told of every crash
  bool admitted_ = false;          // a member had more replicas than at first
  std::map<int, Finished> finished_;
  std::array<uint64_t, std::size(kReached)> reached_{};
};

TEST(AdmissionSimulation, WhateverHappensToNewcomersMembersFinish) {
  RunSeeds<AdmissionJob>(200, {780, 520994, 800072});
}

// Kills at each step of an admission: a member, a newcomer, or all newcomers. Steps are numbered by
// the blocking calls of the victim. docs/elastic-grow.md has the steps.
TEST(AdmissionSimulation, ADeathAtAnyStepLeavesTheMembersTogether) {
  const auto keep = KeepProcess();
  for (const bool notice : {true, false}) {
    for (const std::set<int>& victims :
         {std::set{0}, std::set{1}, std::set{2}, std::set{2, 3, 4}}) {
      // A newcomer that waits blocks more often.
      const int64_t calls = victims.contains(2) ? 300 : 100;
      int joined = 0;
      for (int64_t call = 1; call <= calls; ++call) {
        const auto job = std::make_unique<AdmissionJob>(call, Death{victims, call, notice});
        EXPECT_EQ(job->Report(), "")
            << "notice " << notice << ", " << absl::StrJoin(victims, ",") << " at " << call;
        joined += static_cast<int>(job->reached()[AdmissionJob::kJoined]);
      }
      printf("victims %s, notice %d: %d of %d joined\n", absl::StrJoin(victims, ",").c_str(),
             notice, joined, static_cast<int>(3 * calls));
      // Some die before they count, and some after it.
      EXPECT_TRUE(!victims.contains(2) || (joined > 0 && joined < 3 * calls));
    }
  }
}

}  // namespace
}  // namespace entrain
