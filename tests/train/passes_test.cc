// Counts how often an exchange goes over its arrays. A table of loops counts the elements and then
// calls the fastest loops. The program is linked with this table instead of lib/kernels/kernels.cc.
#include <atomic>
#include <cstdint>

#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

// Numbers of floats, of all ranks.
std::atomic<int64_t> norm_read{0}, delta_read{0}, delta_written{0}, clip_read{0}, outer_read{0},
    outer_written{0}, other{0};

void Add(std::atomic<int64_t>& to, int64_t count) {
  to.fetch_add(count, std::memory_order_relaxed);
}

const Kernels& Real() {
  return base::kKernels;
}

double SquareOfDelta(const float* anchor, const float* params, int64_t count) {
  Add(norm_read, 2 * count);
  return Real().square_of_delta(anchor, params, count);
}
void WeightedDelta(float* delta, const float* anchor, const float* params, float weight,
                   int64_t count) {
  Add(delta_read, 2 * count);
  Add(delta_written, count);
  Real().weighted_delta(delta, anchor, params, weight, count);
}
double SumOfSquares(const float* x, int64_t count) {
  Add(clip_read, count);
  return Real().sum_of_squares(x, count);
}
void OuterStep(const SgdArgs& args, float beta, float* anchor, float* momentum, float* params,
               const float* mean, int64_t count) {
  Add(outer_read, (momentum == nullptr ? 2 : 3) * count);
  Add(outer_written, (momentum == nullptr ? 2 : 3) * count);
  Real().outer_step(args, beta, anchor, momentum, params, mean, count);
}
void ScaleAny(DType dtype, void* dst, const void* src, int64_t count, double factor) {
  Add(other, count);
  Real().scale_any(dtype, dst, src, count, factor);
}
void Axpy(float* y, float a, const float* x, int64_t count) {
  Add(other, count);
  Real().axpy(y, a, x, count);
}

Kernels Counting() {
  Kernels table = Real();
  table.name = "counting";
  table.square_of_delta = SquareOfDelta;
  table.weighted_delta = WeightedDelta;
  table.sum_of_squares = SumOfSquares;
  table.outer_step = OuterStep;
  table.scale_any = ScaleAny;
  table.axpy = Axpy;
  return table;
}

}  // namespace

KernelTables AllKernels() {
  static const Kernels counting = Counting();
  return {{&counting}, 1};
}

const Kernels& BestKernels() {
  return *AllKernels().tables[0];
}

namespace {

struct Passes {
  int64_t norm_read, delta_read, delta_written, clip_read, outer_read, outer_written, other;
  friend bool operator==(const Passes&, const Passes&) = default;
};

// Returns the passes over the elements of a layer, per rank and element.
Passes PassesOf(const EditOptions& options) {
  constexpr int64_t kElements = 10000;
  constexpr Grid kGrid = {2, 2};
  ShardConfig config;
  config.layer_counts = {kElements, 2 * kElements};
  Passes passes{};
  RunReplicas(kGrid, config, [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    r.EndStep();
    r.MeetAll();
    if (r.replica() == 0 && r.slot() == 0) {
      for (auto* const counter : {&norm_read, &delta_read, &delta_written, &clip_read, &outer_read,
                                  &outer_written, &other}) {
        counter->store(0);
      }
    }
    r.MeetAll();
    ASSERT_TRUE(r.Forward());
    r.MeetAll();
    const auto per = [&](const std::atomic<int64_t>& counter) {
      EXPECT_EQ(counter.load() % (3 * kElements * kGrid.replicas), 0);
      return counter.load() / (3 * kElements * kGrid.replicas);
    };
    if (r.replica() == 0 && r.slot() == 0) {
      passes = {per(norm_read),  per(delta_read),    per(delta_written), per(clip_read),
                per(outer_read), per(outer_written), per(other)};
    }
    r.MeetAll();
  });
  return passes;
}

// K1 reads a and theta. K2 reads both and writes Delta. K3 reads the combined Delta. K4 reads that,
// a and b, and writes a, b and theta.
TEST(Passes, OfTheWholePlanAreFour) {
  EXPECT_EQ(PassesOf(Judged()), (Passes{2, 2, 1, 1, 3, 3, 0}));
}

TEST(Passes, WithoutClippingThereAreThree) {
  EditOptions options = Judged();
  options.clip_pseudo_grad = 0;
  EXPECT_EQ(PassesOf(options), (Passes{2, 2, 1, 0, 3, 3, 0}));
}

TEST(Passes, WithoutMomentumItIsNotTouched) {
  EditOptions options = Judged();
  options.outer_momentum = 0;
  options.outer_nesterov = false;
  EXPECT_EQ(PassesOf(options), (Passes{2, 2, 1, 1, 2, 2, 0}));
}

TEST(Passes, OfGtaAreThoseOfTheLinearReducer) {
  EditOptions options = Judged();
  options.reducer = ReducerKind::kGta;
  options.consensus_method = Consensus::kSum;
  EXPECT_EQ(PassesOf(options), (Passes{2, 2, 1, 1, 3, 3, 0}));
}

// theta is squared, to test whether it is finite, and scaled into the buffer, which is copied back.
TEST(Passes, OfPlainAveragingAreTwoAndACopy) {
  EXPECT_EQ(PassesOf({}), (Passes{0, 0, 0, 1, 0, 0, 1}));
}

}  // namespace
}  // namespace entrain
