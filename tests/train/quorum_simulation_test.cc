// Replicas of different speed that close rounds without late ones (quorum), in a virtual world
// (tests/comm/growth_simulation_test.cc). Ranks crash whenever one of their threads blocks. The others go
// on (on_loss) with equal bits, and have made the same decisions about all rounds.

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "lib/comm/mesh.h"
#include "lib/train/edit/layer_sync.h"
#include "tests/sim/virtual_job.h"
#include "tests/train/replicas.h"
#include "tests/train/rounds.h"

namespace entrain {
namespace {

constexpr int64_t kStartNs = 2 * kSecond, kTimeoutNs = 6 * kSecond, kEndNs = 300 * kSecond;

class QuorumJob : private VirtualJob {
 public:
  explicit QuorumJob(uint64_t seed)
      : VirtualJob(seed, 6),
        shards_(Chance(0.3) ? 2 : 1),
        replicas_(static_cast<int>(Between(2, shards_ == 1 ? 5 : 3))),
        steps_(static_cast<int>(Between(3, 9))) {
    options_ = Weighed();
    options_.timeout_ns = kTimeoutNs;
    options_.on_loss = OnLoss::kFinish;
    options_.silence = seed % 2 == 0 ? 0 : 1;
    options_.quorum = static_cast<int32_t>(Between(1, replicas_));
    options_.round_deadline = Chance(0.3) ? 0.1 : 0;
    options_.late = static_cast<Late>(Between(0, 2));
    if (Chance(0.5)) {  // rounds of fragments, for which nobody waits
      options_.local_sgd_sync_interval = Between(1, 3);
      options_.fragments = static_cast<int32_t>(Between(1, 4));
      options_.overlap_steps = 1;
      options_.overlap_merge = Chance(0.5) ? OverlapMerge::kMix : OverlapMerge::kAdd;
    }
    for (int replica = 0; replica < replicas_; ++replica) {
      slowest_ms_.push_back(Chance(0.5) ? 20 : 400);
    }
    for (int rank = 0; rank < size(); ++rank) {
      world_.Start(rank, 0, [this, rank] { BeRank(rank); });
    }
    if (Chance(0.8)) {
      for (int64_t victims = Chance(0.8) ? 1 : 2; victims > 0; --victims) {
        crash_at_[static_cast<int>(Between(0, size() - 1))] = Between(1, 300);
      }
    }
    CheckEnd(kEndNs);
    for (int rank = 0; rank < size(); ++rank) {
      CheckRank(rank);
    }
    reached_[kQuiet] += touched_.empty() ? 1 : 0;
  }

  using VirtualJob::Report;
  enum What { kCrashes, kFinished, kWithout, kLate, kLateWithout, kQuiet };
  static constexpr const char* kReached[] = {"crashes",
                                             "finished",
                                             "finished without another",
                                             "was late",
                                             "was late in a run with a loss",
                                             "runs without a fault"};
  const std::array<uint64_t, std::size(kReached)>& reached() const { return reached_; }

 private:
  struct Finished {
    absl::Status status;
    int replicas = 0;
    bool trained = false;  // made all steps
    int64_t missed = 0;
    std::map<int64_t, uint64_t> checksums;  // of the anchors, by number of exchanges
    std::vector<float> params;              // at the end
  };
  int size() const { return shards_ * replicas_; }

  void BeRank(int rank) {
    const CommOptions comm_options = OptionsOf(rank, size(), kTimeoutNs);
    const MaybeComm comm = Communicator::Create(comm_options);
    MeshConfig shape;
    shape.lengths[static_cast<size_t>(Axis::kShard)] = shards_;
    const auto mesh = comm.ok() ? Mesh::Create(*comm, shape) : comm.status();
    if (!mesh.ok()) {
      Wrong("rank ", rank, " has no mesh: ", mesh.status().message());
      return;
    }
    Replica replica(*mesh, FourLayers());
    replica.Edit(options_);
    replica.Forward();
    world_.Sleep(std::max<int64_t>(kStartNs - now(), 0));
    if (const auto crash = crash_at_.find(rank); crash != crash_at_.end()) {
      ++reached_[kCrashes];
      Crash(rank, crash->second);
      sure_ &= world_.notices(rank);
    }
    Finished& mine = finished_[rank];
    mine.status = Train(replica, &mine);
    world_.Sleep(Between(0, 200) * kMillisecond);  // others destroy their objects meanwhile
    if (!world_.isolated(world_.process())) {
      const EditInfo info = replica.edit().info();
      Tell("rank ", rank, " ends: ", mine.status.ToString(), "; ", info.syncs, " exchanges, ",
           info.missed, " missed");
      mine.replicas = info.replicas;
      mine.missed = info.missed;
      mine.params = replica.params();
    }
  }

  absl::Status Train(Replica& r, Finished* mine) {
    LayerSync& edit = r.edit();
    for (int step = 0; step < steps_; ++step) {
      world_.Sleep(Between(0, slowest_ms_[static_cast<size_t>(r.replica())]) * kMillisecond);
      r.ForEach(r.params(), [&](int layer, int64_t i, float& value) {
        value += Noise(r.replica(), step, layer, i) / 4;
      });
      ENTRAIN_RETURN_IF_ERROR(edit.EndStep());
      ENTRAIN_RETURN_IF_ERROR(
          Timed("forward", 8 * kTimeoutNs, [&] { return ForwardFourLayers(edit); }));
      if (!world_.isolated(world_.process())) {
        const EditInfo info = edit.info();
        mine->checksums[info.syncs] = info.anchor_checksum;
      }
    }
    mine->trained = true;
    return Timed("leave", 8 * kTimeoutNs, [&] { return edit.Leave(); });
  }

  void CheckRank(int rank) {
    const Finished& mine = finished_[rank];
    if (!IsSpared(rank / shards_ * shards_, shards_)) {
      return;
    }
    if (!mine.status.ok()) {
      if (sure_) {
        Wrong("rank ", rank, " has not finished: ", mine.status.message());
      }
      return;
    }
    const bool without = mine.replicas < replicas_;
    if (without && touched_.empty()) {
      Wrong("rank ", rank, " has lost a replica, although nothing has happened");
    }
    ++reached_[kFinished];
    reached_[kWithout] += without ? 1 : 0;
    reached_[kLate] += mine.missed > 0 ? 1 : 0;
    reached_[kLateWithout] += mine.missed > 0 && without ? 1 : 0;
    for (int other = rank % shards_; other < rank; other += shards_) {
      const Finished& theirs = finished_[other];
      if (!IsSpared(other / shards_ * shards_, shards_) || !theirs.status.ok()) {
        continue;
      }
      if (theirs.params != mine.params) {
        Wrong("ranks ", other, ", ", rank, " differ at the end");
      }
      for (const auto& [syncs, checksum] : theirs.checksums) {
        const auto here = mine.checksums.find(syncs);
        if (here != mine.checksums.end() && here->second != checksum) {
          Wrong("ranks ", other, ", ", rank, " differ after ", syncs, " exchanges");
        }
      }
    }
  }

  const int shards_, replicas_, steps_;
  EditOptions options_;
  std::vector<int64_t> slowest_ms_;  // by replica: longest step
  bool sure_ = true;                 // the others are told of every crash
  std::map<int, Finished> finished_;
  std::array<uint64_t, std::size(kReached)> reached_{};
};

TEST(QuorumSimulation, TheReplicasThatAreLeftFinishAlike) {
  RunSeeds<QuorumJob>(200, {6802});
}

}  // namespace
}  // namespace entrain
