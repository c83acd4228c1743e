// EDiT on device memory between processes: replicas that read each other's memory, and one that is
// killed. Uses the fake driver, or one device for all if TEST_GPU=1 is set.

#include <csignal>
#include <functional>
#include <memory>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "tests/support/ranks.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

std::vector<int> RunMeshes(const Grid& grid,
                           const std::function<void(const std::shared_ptr<Mesh>& mesh)>& body) {
  RanksOptions options;
  options.transports = "shm,cuda";
  options.timeout_ns = 30 * kSecond;
  return RunRankProcesses(grid.ranks(), options, [&](const std::shared_ptr<Communicator>& comm) {
    MeshConfig config;
    config.lengths[static_cast<size_t>(Axis::kShard)] = grid.shards;
    const auto mesh = Mesh::Create(comm, config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    body(*mesh);
  });
}

ShardConfig OneLargeLayer() {
  ShardConfig config;
  config.layer_counts = {8, 100'003};  // the second by each other's memory
  return config;
}

TEST(EditOnDeviceProcesses, ReplicasMeetInTheMean) {
  const std::vector<int> ends = RunMeshes({1, 3}, [](const std::shared_ptr<Mesh>& mesh) {
    Replica r(mesh, OneLargeLayer());
    r.Edit(Averaging());
    r.Forward();
    for (int round = 1; round <= 3; ++round) {
      r.ForEach(r.params(),
                [&](int, int64_t, float& value) { value += static_cast<float>(r.replica()); });
      r.EndStep();
      EXPECT_TRUE(r.Forward());
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        ASSERT_NEAR(value, Replica::Initial(l, i) + static_cast<float>(round), 1e-4);
      });
    }
    r.MeetAll();
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 0}));
}

// If allocating waits for the device (FAKE_CUDA_ALLOC_WAITS), a worker that allocates would wait
// for a stream that waits for the worker.
TEST(EditOnDeviceProcesses, WorkersFindAllTheirMemory) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<int> ends = RunMeshes({2, 2}, [&](const std::shared_ptr<Mesh>& mesh) {
      ShardConfig config = OneLargeLayer();
      config.layer_counts.push_back(2000);
      config.param_dtype = config.grad_dtype = dtype;
      Replica r(mesh, config);
      EditOptions options = Weighed();
      options.local_sgd_warmup_steps = 2;
      r.Edit(options);
      for (int step = 0; step < 6; ++step) {  // the host does not wait for the stream
        ASSERT_EQ(r.edit().BeginForward(true, true).value(), step > 2);
        ASSERT_EQ(r.shards().BeginPass(Pass::kForward), absl::OkStatus());
        for (int l = 0; l < 3; ++l) {
          ASSERT_EQ(r.edit().WaitLayer(l), absl::OkStatus());
          ASSERT_TRUE(r.shards().Wait(l).ok());
          ASSERT_EQ(r.shards().Release(l), absl::OkStatus());
        }
        for (int l = 2; l >= 0; --l) {
          ASSERT_TRUE(r.shards().Gradients(l).ok());
          ASSERT_EQ(r.shards().ReduceGradients(l), absl::OkStatus());
        }
        ASSERT_EQ(r.shards().FinishGradients(), absl::OkStatus());
        r.EndStep();
      }
      r.FinishStream();
      EXPECT_EQ(r.edit().info().syncs, 3);
      EXPECT_EQ(r.shards().broken(), absl::OkStatus());
      r.MeetAll();
    });
    EXPECT_EQ(ends, (std::vector<int>{0, 0, 0, 0}));
  }
}

TEST(EditOnDeviceProcesses, AKilledReplicaIsNamedAndTheStreamGoesOn) {
  const std::vector<int> ends = RunMeshes({1, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Replica r(mesh, OneLargeLayer());
    r.Edit(Averaging());
    r.Forward();
    r.EndStep();
    r.MeetAll();
    if (r.replica() == 1) {
      usleep(200'000);  // the other rank has left the barrier
      raise(SIGKILL);
    }
    const int64_t begun = Clock::Real().Now();
    absl::Status status = r.edit().BeginForward(true, true).status();
    for (int l = 0; l < 2; ++l) {
      status.Update(r.edit().WaitLayer(l));
    }
    r.FinishStream();
    status.Update(r.edit().RequestSync());
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("rank 1"), absl::string_view::npos) << status;
    EXPECT_LT(Clock::Real().Now() - begun, 10 * kSecond);
  });
  EXPECT_EQ(ends[0], 0);
  EXPECT_TRUE(WIFSIGNALED(ends[1]));
}

}  // namespace
}  // namespace entrain
