// Replicas that exchange with EDiT in a virtual world (tests/comm/growth_simulation_test.cc). Ranks crash
// whenever one of their threads blocks, and the others finish their rounds with equal bits (on_loss).

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

constexpr int64_t kStartNs = 2 * kSecond, kTimeoutNs = 4 * kSecond, kEndNs = 200 * kSecond;
constexpr int kSteps = 6;

class ExchangeJob : private VirtualJob {
 public:
  explicit ExchangeJob(uint64_t seed)
      : VirtualJob(seed, 6),
        silence_(seed % 2 == 0 ? 0 : 1),
        shards_(Chance(0.3) ? 2 : 1),
        replicas_(static_cast<int>(Between(2, shards_ == 1 ? 5 : 3))) {
    for (int rank = 0; rank < size(); ++rank) {
      world_.Start(rank, 0, [this, rank] { BeRank(rank); });
    }
    if (Chance(0.9)) {
      for (int64_t victims = Chance(0.8) ? 1 : 2; victims > 0; --victims) {
        crash_at_[static_cast<int>(Between(0, size() - 1))] = Between(1, 200);
      }
    }
    CheckEnd(kEndNs);
    for (int rank = 0; rank < size(); ++rank) {
      CheckRank(rank);
    }
    reached_[kQuiet] += touched_.empty() ? 1 : 0;
  }

  using VirtualJob::Report;
  enum What { kCrashes, kFinished, kWithout, kQuiet };
  static constexpr const char* kReached[] = {"crashes", "finished", "finished without another",
                                             "runs without a fault"};
  const std::array<uint64_t, std::size(kReached)>& reached() const { return reached_; }

 private:
  struct Finished {
    absl::Status status;
    int replicas = 0;
    std::map<int64_t, std::vector<float>> after;  // the parameters after each round
    std::vector<float> last;                      // the parameters at the end
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
    EditOptions options = Weighed();
    options.timeout_ns = kTimeoutNs;
    options.on_loss = OnLoss::kFinish;
    options.silence = silence_;
    replica.Edit(options);
    replica.Forward();
    world_.Sleep(std::max<int64_t>(kStartNs - now(), 0));
    if (const auto crash = crash_at_.find(rank); crash != crash_at_.end()) {
      ++reached_[kCrashes];
      Crash(rank, crash->second);
      sure_ &= world_.notices(rank);
    }
    Finished& mine = finished_[rank];
    mine.status = Train(replica, &mine);
    if (!world_.isolated(world_.process())) {
      const EditInfo info = replica.edit().info();
      Tell("rank ", rank, " ends: ", mine.status.ToString(), "; ", info.syncs, " exchanges");
      mine.replicas = info.replicas;
      mine.last = replica.params();
    }
  }

  absl::Status Train(Replica& r, Finished* mine) {
    LayerSync& edit = r.edit();
    for (int step = 0; step <= kSteps; ++step) {
      world_.Sleep(Between(0, 20) * kMillisecond);
      r.ForEach(r.params(), [&](int layer, int64_t i, float& value) {
        value += Noise(r.replica(), step, layer, i) / 4;
      });
      ENTRAIN_RETURN_IF_ERROR(edit.EndStep());
      ENTRAIN_RETURN_IF_ERROR(edit.RequestSync());
      ENTRAIN_RETURN_IF_ERROR(
          Timed("forward", 6 * kTimeoutNs, [&] { return ForwardFourLayers(edit); }));
      if (!world_.isolated(world_.process())) {
        mine->after[step] = r.params();
      }
    }
    return edit.Leave();
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
    ++reached_[kFinished];
    reached_[kWithout] += mine.replicas < replicas_ ? 1 : 0;
    for (int other = rank % shards_; other < rank; other += shards_) {
      const Finished& theirs = finished_[other];
      if (IsSpared(other / shards_ * shards_, shards_) && theirs.status.ok() &&
          theirs.last != mine.last) {
        Wrong("ranks ", other, ", ", rank, " differ at the end");
      }
      for (const auto& [step, params] : finished_[other].after) {
        const auto here = mine.after.find(step);
        if (IsSpared(other / shards_ * shards_, shards_) && here != mine.after.end() &&
            here->second != params) {
          Wrong("ranks ", other, ", ", rank, " differ after step ", step);
        }
      }
    }
  }

  const double silence_;  // seconds, less than the time limit of calls; 0: the default
  const int shards_, replicas_;
  bool sure_ = true;  // the others are told of every crash
  std::map<int, Finished> finished_;
  std::array<uint64_t, std::size(kReached)> reached_{};
};

TEST(ExchangeSimulation, TheReplicasThatAreLeftFinishAlike) {
  RunSeeds<ExchangeJob>(200, {500995});
}

}  // namespace
}  // namespace entrain
