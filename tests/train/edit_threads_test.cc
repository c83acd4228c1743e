// The bits of exchanges do not depend on the option threads.
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernel_threads.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

// A layer whose passes are shared, also by two ranks, and one whose passes are not. The lengths are
// no multiples of anything that loops, pieces and blocks count in.
constexpr int64_t kCounts[] = {2 * KernelThreads::kLeastShared + 16384 * 5 + 3, 70001};

ShardConfig TwoLayers() {
  ShardConfig config;
  config.layer_counts.assign(std::begin(kCounts), std::end(kCounts));
  return config;
}

struct Result {
  std::vector<float> params, anchor;
  uint64_t checksum = 0;
  std::vector<double> norms, clip_factors;
};

// Three exchanges. Returns the results of rank 0.
Result Train(const Grid& grid, const EditOptions& options) {
  Result result;
  RunReplicas(grid, TwoLayers(), [&](Replica& r) {
    r.Edit(options);
    // The last exchange is merged overlap_steps later.
    const auto steps = 1 + 3 * options.local_sgd_sync_interval + options.overlap_steps;
    for (int64_t step = 0; step < steps; ++step) {
      r.Forward();
      r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
        value += 0.01f * Noise(r.replica(), step, l, i);
      });
      r.EndStep();
    }
    if (r.replica() == 0 && r.slot() == 0) {
      result.params = r.params();
      result.checksum = r.edit().info().anchor_checksum;
      if (!options.plain()) {
        result.anchor = r.Anchor();
      }
      for (int l = 0; l < 2 && options.overlap_steps == 0; ++l) {
        const auto report = r.edit().Report(l);
        ASSERT_TRUE(report.ok()) << report.status();
        result.norms.insert(result.norms.end(), report->norms.begin(), report->norms.end());
        result.clip_factors.push_back(report->clip_factor);
      }
    }
    r.MeetAll();
  });
  return result;
}

void ExpectSameForEveryNumber(const Grid& grid, EditOptions options) {
  options.threads = 1;
  const Result want = Train(grid, options);
  for (const int threads : {2, 3, 7, 0}) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    options.threads = threads;
    const Result got = Train(grid, options);
    EXPECT_TRUE(got.params == want.params);
    EXPECT_TRUE(got.anchor == want.anchor);
    EXPECT_EQ(got.checksum, want.checksum);
    EXPECT_EQ(got.norms, want.norms);
    EXPECT_EQ(got.clip_factors, want.clip_factors);
  }
}

TEST(EditThreads, WeighedAndClippedWithMomentum) {
  EditOptions options = Weighed();
  options.clip_pseudo_grad = 0.1;
  ExpectSameForEveryNumber({1, 2}, options);
  ExpectSameForEveryNumber({2, 1}, options);
}

TEST(EditThreads, WeightDecay) {
  EditOptions options = Averaging();
  options.outer_momentum = 0.9;
  options.outer_weight_decay = 0.1;
  ExpectSameForEveryNumber({1, 2}, options);
}

TEST(EditThreads, PlainAveraging) {
  ExpectSameForEveryNumber({1, 2}, {});
}

TEST(EditThreads, AdamwAndLion) {
  for (const OuterKind kind : {OuterKind::kAdamw, OuterKind::kLion}) {
    EditOptions options;
    options.outer_optimizer = kind;
    options.outer_lr = 0.01;
    ExpectSameForEveryNumber({1, 2}, options);
  }
}

TEST(EditThreads, ConsensusAndInt8) {
  EditOptions options = Weighed();
  options.reducer = ReducerKind::kGta;
  options.consensus_method = Consensus::kSum;
  ExpectSameForEveryNumber({1, 2}, options);
  options.wire_format = WireFormat::kInt8;
  ExpectSameForEveryNumber({1, 2}, options);
}

TEST(EditThreads, BehindFurtherSteps) {
  for (const OverlapMerge merge :
       {OverlapMerge::kAdd, OverlapMerge::kMix, OverlapMerge::kRestart}) {
    EditOptions options = Weighed();
    options.local_sgd_sync_interval = 2;
    options.overlap_steps = 1;
    options.overlap_merge = merge;
    ExpectSameForEveryNumber({1, 2}, options);
  }
}

// The caller's outer step runs where it runs with one thread: on one thread, for whole layers.
TEST(EditThreads, TheCallersStepIsCalledOnceForALayerAlwaysOnTheSameThread) {
  struct Calls {
    std::vector<std::thread::id> threads;
    std::vector<size_t> counts;
  } calls;
  RunReplicas({1, 1}, TwoLayers(), [&](Replica& r) {
    EditOptions options;
    options.outer_optimizer = OuterKind::kCallback;
    options.threads = 3;
    options.outer_user = &calls;
    options.outer_step = [](void* user, int32_t, int64_t, float* anchor, const float* grad,
                            size_t count) {
      for (size_t i = 0; i < count; ++i) {
        anchor[i] -= grad[i];
      }
      static_cast<Calls*>(user)->threads.push_back(std::this_thread::get_id());
      static_cast<Calls*>(user)->counts.push_back(count);
      return 0;
    };
    r.Edit(options);
    for (int step = 0; step < 3; ++step) {
      r.Forward();
      r.EndStep();
    }
  });
  ASSERT_EQ(calls.threads.size(), 4u);
  for (size_t i = 0; i < calls.threads.size(); ++i) {
    EXPECT_EQ(calls.threads[i], calls.threads[0]);
    EXPECT_EQ(calls.counts[i], static_cast<size_t>(kCounts[i % 2]));
  }
}

}  // namespace
}  // namespace entrain
