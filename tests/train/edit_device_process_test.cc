// EDiT on device memory between processes: replicas that read each other's memory, and one that is
// killed. On the fake driver, or, where TEST_GPU=1 is set, with one device for all.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/comm/runtime.h"
#include "lib/store/store.h"
#include "tests/cuda/on_device.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using Body = std::function<void(const std::shared_ptr<Mesh>& mesh)>;

void RunRank(const std::string& url, int rank, const Grid& grid, const Body& body) {
  auto store = OpenStore(url, "", {Deadline::After(5 * kSecond)});
  RuntimeOptions runtime_options;
  runtime_options.transports = "shm,cuda";
  auto runtime = Runtime::Create(runtime_options);
  ASSERT_TRUE(store.ok() && runtime.ok());
  CommOptions options;
  options.runtime = *runtime;
  options.store = *store;
  options.rank = rank;
  options.size = grid.ranks();
  options.timeout_ns = 30 * kSecond;
  const auto comm = Communicator::Create(options);
  ASSERT_TRUE(comm.ok()) << comm.status();
  MeshConfig config;
  config.lengths[static_cast<size_t>(Axis::kShard)] = grid.shards;
  const auto mesh = Mesh::Create(*comm, config);
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  body(*mesh);
}

// Every rank a process that has not known the driver before: it does not survive a fork. What became
// of each, as waitpid says.
std::vector<int> RunProcesses(const Grid& grid, const Body& body) {
  char directory[] = "/tmp/entrain_edit_device_XXXXXX";
  EXPECT_NE(mkdtemp(directory), nullptr);
  const std::string url = absl::StrCat("file:", directory);
  std::vector<pid_t> children;
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      RunRank(url, rank, grid, body);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    ends.emplace_back();
    EXPECT_EQ(waitpid(child, &ends.back(), 0), child);
  }
  EXPECT_EQ(std::system(absl::StrCat("rm -r ", directory).c_str()), 0);  // NOLINT
  return ends;
}

ShardConfig OneLargeLayer() {
  ShardConfig config;
  config.layer_counts = {8, 100'003};  // the second by each other's memory
  return config;
}

TEST(EditOnDeviceProcesses, ReplicasMeetInTheMean) {
  const std::vector<int> ends = RunProcesses({1, 3}, [](const std::shared_ptr<Mesh>& mesh) {
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

// Where allocating waits for the device (FAKE_CUDA_ALLOC_WAITS), couriers that do it would wait for the stream that waits for them.
TEST(EditOnDeviceProcesses, CouriersFindAllTheirMemory) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<int> ends = RunProcesses({2, 2}, [&](const std::shared_ptr<Mesh>& mesh) {
      ShardConfig config = OneLargeLayer();
      config.layer_counts.push_back(2000);
      config.param_dtype = config.grad_dtype = dtype;
      Replica r(mesh, config);
      EditOptions options = Weighed();
      options.local_sgd_warmup_steps = 2;
      r.Edit(options);
      for (int step = 0; step < 6; ++step) {  // nobody waits for the stream
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
  const std::vector<int> ends = RunProcesses({1, 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Replica r(mesh, OneLargeLayer());
    r.Edit(Averaging());
    r.Forward();
    r.EndStep();
    r.MeetAll();
    if (r.replica() == 1) {
      usleep(200'000);  // the other has left the barrier
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
