// The memory that EDiT adds to its ranks, between exchanges and at most during one. Counts every
// allocation of this process, which holds all ranks.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/allocations.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

constexpr int kLayers = 6;
constexpr int64_t kElements = 512 << 10;             // of a layer
constexpr int64_t kModel = 4 * kLayers * kElements;  // 4 P
constexpr int64_t kModule = 4 * kElements;           // 4 P_l
// Limit of all other memory together: vectors, queues, lists.
constexpr int64_t kRest = 192 << 10;

struct Way {
  std::string name;
  EditOptions options;
  double kept;     // times 4 P / M
  double passing;  // times 4 P_l / M
};

EditOptions Nesterov(int prefetch) {
  EditOptions options;
  options.reducer = ReducerKind::kLinear;
  options.pseudo_gradnorm_reduce = true;
  options.clip_pseudo_grad = 10;
  options.skip_anomaly = true;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_nesterov = true;
  options.prefetch = prefetch;
  return options;
}

std::vector<Way> AllWays() {
  // The anchor and the momentum, and one module in flight, or two when layers run ahead.
  std::vector<Way> ways = {{"EDiT, no prefetch", Nesterov(0), 2, 1},
                           {"EDiT, prefetch 1", Nesterov(1), 2, 2},
                           {"EDiT, prefetch 4", Nesterov(4), 2, 2}};
  Way way = {"plain averaging", {}, 0, 2};
  ways.push_back(way);
  way = {"outer sgd without momentum", Nesterov(1), 1, 2};
  way.options.outer_momentum = 0;
  way.options.outer_nesterov = false;
  ways.push_back(way);
  way = {"outer adamw", Nesterov(1), 3, 2};
  way.options.outer_optimizer = OuterKind::kAdamw;
  way.options.outer_nesterov = false;
  way.options.outer_momentum = EditOptions().outer_momentum;
  ways.push_back(way);
  way = {"behind further steps", Nesterov(1), 3, 2};
  way.options.local_sgd_sync_interval = 2;
  way.options.overlap_steps = 1;
  ways.push_back(way);
  return ways;
}

struct Use {
  int64_t kept = 0, passing = 0;
};

void Step(Replica& r) {
  r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
    value += 0.001f * static_cast<float>((i + l + r.replica()) % 7);
  });
  r.EndStep();
  r.Forward();
}

// Makes one more exchange. Behind further steps: begins and merges it.
void Exchange(Replica& r, const EditOptions& options) {
  for (int64_t step = 0; step < options.local_sgd_sync_interval; ++step) {
    Step(r);
  }
}

// Makes the largest number of concurrent calls that an exchange can have. The number that an
// exchange really has, and so the scratch that the runtime keeps, depends on the scheduling of
// threads.
void CallManyAtOnce(Replica& r) {
  constexpr int kCalls = 8;
  Communicator& comm = *r.mesh()->comm(Axis::kSync);
  const int64_t count = kElements / r.mesh()->comm(Axis::kShard)->size(), bytes = 4 * count;
  std::vector<float> sums(static_cast<size_t>(kCalls * count));
  std::vector<RefPtr<Work>> all;
  for (int i = 0; i < kCalls; ++i) {
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = count;
    call.in = call.out = {&sums[static_cast<size_t>(i * count)], bytes};
    auto work = comm.Start(call);
    ASSERT_TRUE(work.ok()) << work.status();
    all.push_back(*std::move(work));
  }
  for (const auto& work : all) {
    EXPECT_TRUE(work->Wait(Deadline::After(60 * kSecond)));
  }
}

// The memory that runtimes keep for calls of this size does not count, because any caller causes
// it.
void WarmUp(Replica& r) {
  EditOptions plain;
  plain.prefetch = 4;
  r.Edit(plain);
  r.Forward();
  for (int i = 0; i < 3; ++i) {
    Exchange(r, plain);
  }
  r.MeetAll();
  r.DestroyEdit();
  CallManyAtOnce(r);
}

void Measure(Replica& r, const EditOptions& options, std::atomic<int64_t>* before, Use* use) {
  const bool speaks = r.replica() == 0 && r.slot() == 0;
  WarmUp(r);
  r.Edit(options);
  r.MeetAll();
  if (speaks) {
    before->store(AllocatedBytes());
  }
  r.MeetAll();
  r.Forward();  // makes the anchors
  if (options.overlap_steps > 0) {
    Step(r);  // the exchange is merged at odd steps
  }
  for (int i = 0; i < 2; ++i) {
    Exchange(r, options);
  }
  r.MeetAll();
  if (speaks) {
    use->kept = AllocatedBytes() - before->load();
    ForgetMost();
  }
  r.MeetAll();
  Exchange(r, options);
  r.MeetAll();
  if (speaks) {
    const int64_t kept = AllocatedBytes() - before->load();
    EXPECT_NEAR(static_cast<double>(kept), static_cast<double>(use->kept), kRest);
    use->passing = MostAllocatedBytes() - before->load() - use->kept;
  }
  r.MeetAll();
}

class Memory : public testing::TestWithParam<Grid> {};

TEST_P(Memory, IsTheAnchorsAndAModuleOrTwo) {
  const Grid grid = GetParam();
  const int ranks = grid.ranks();
  for (const Way& way : AllWays()) {
    ShardConfig config;
    config.layer_counts.assign(kLayers, kElements);
    std::atomic<int64_t> before{0};
    Use use;
    RunReplicas(grid, config, [&](Replica& r) { Measure(r, way.options, &before, &use); });
    const double kept = way.kept * kModel / grid.shards,
                 passing = way.passing * kModule / grid.shards;
    EXPECT_NEAR(static_cast<double>(use.kept) / ranks, kept, kRest) << way.name;
    EXPECT_LE(static_cast<double>(use.passing) / ranks, passing + kRest) << way.name;
    // The ranks of one slot in all replicas meet in the module's call. Other ranks may be
    // elsewhere.
    EXPECT_GE(use.passing, grid.replicas * kModule / grid.shards) << way.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Memory, testing::Values(Grid{1, 2}, Grid{2, 2}, Grid{4, 1}),
                         [](const auto& mesh) { return "M" + std::to_string(mesh.param.shards); });

}  // namespace
}  // namespace entrain
