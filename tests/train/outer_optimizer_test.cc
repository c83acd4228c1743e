// The factors of an outer step, compared with its equation over whole vectors (outer_optimizer.h).
#include "lib/train/edit/outer_optimizer.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "lib/train/edit/penalty.h"

namespace entrain {
namespace {

using Vector = std::vector<double>;

double Square(const Vector& x) {
  double sum = 0;
  for (const double value : x) {
    sum += value * value;
  }
  return sum;
}

// Returns p x + q y.
Vector Sum(double p, const Vector& x, double q, const Vector& y) {
  Vector sum;
  for (size_t i = 0; i < x.size(); ++i) {
    sum.push_back(p * x[i] + q * y[i]);
  }
  return sum;
}

const Vector kDelta = {0.3, -1.25, 2.5, 0.75}, kMomentum = {1.5, 0.5, -0.25, 4};
constexpr double kGap = 1.75;

EditOptions Sgd() {
  EditOptions options;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_lr = 0.6;
  options.outer_momentum = 0.7;
  return options;
}

// Computes the equation line by line. `step`: the movement of the anchor.
struct Written {
  Vector b, step;
};
Written Write(const EditOptions& o) {
  const double beta =
      o.clip_pseudo_grad > 0 ? ClipFactor(std::sqrt(Square(kDelta)), o.clip_pseudo_grad) : 1;
  const Vector g = Sum(beta / (o.staleness_penalty ? kGap : 1), kDelta, 0, kDelta);
  Vector b = Sum(o.outer_momentum, kMomentum, 1, g);
  if (o.outer_momentum_clip > 0) {
    b = Sum(ClipFactor(std::sqrt(Square(b)), o.outer_momentum_clip), b, 0, b);
  }
  const Vector way = o.outer_nesterov ? Sum(1, g, o.outer_momentum, b) : b;
  return {b, Sum(o.outer_lr, way, 0, way)};
}

TEST(OuterScales, AreTheEquationsFactors) {
  std::vector<std::pair<std::string, EditOptions>> cases;
  cases.emplace_back("as it is", Sgd());
  cases.emplace_back("clipped", Sgd());
  cases.back().second.clip_pseudo_grad = 0.5;
  cases.emplace_back("late", Sgd());
  cases.back().second.staleness_penalty = true;
  cases.emplace_back("late, nesterov", cases.back().second);
  cases.back().second.outer_nesterov = true;
  cases.emplace_back("momentum clipped", Sgd());
  cases.back().second.outer_momentum_clip = 0.25;
  cases.emplace_back("all", cases.back().second);
  cases.back().second.clip_pseudo_grad = 0.5;
  cases.back().second.staleness_penalty = true;
  const Vector squares = {Square(kDelta), Square(kMomentum), Square(Sum(1, kMomentum, -1, kDelta))};
  for (const auto& [name, options] : cases) {
    SCOPED_TRACE(name);
    const OuterScales scales =
        ScaleOuterStep(options, {options.outer_lr, options.outer_momentum}, squares, kGap);
    const Written want = Write(options);
    const double mu = options.outer_momentum * scales.momentum;
    const Vector g = Sum(scales.gradient, kDelta, 0, kDelta), b = Sum(mu, kMomentum, 1, g);
    for (size_t i = 0; i < b.size(); ++i) {
      EXPECT_NEAR(b[i], want.b[i], 1e-12);
      const double way = options.outer_nesterov ? g[i] + mu * b[i] : b[i];
      EXPECT_NEAR(options.outer_lr * way, want.step[i], 1e-12);
    }
    EXPECT_EQ(scales.staleness, options.staleness_penalty ? kGap : 1);
    EXPECT_NEAR(scales.length, options.staleness_penalty ? std::sqrt(Square(want.step)) : 0, 1e-12);
  }
}

TEST(OuterScales, WithoutAMomentumThereIsOnlyTheMean) {
  EditOptions options = Sgd();
  options.outer_momentum = 0;
  options.staleness_penalty = true;
  const Vector squares = {Square(kDelta)};
  const OuterScales scales =
      ScaleOuterStep(options, {options.outer_lr, options.outer_momentum}, squares, kGap);
  EXPECT_DOUBLE_EQ(scales.gradient, 1 / kGap);
  EXPECT_DOUBLE_EQ(scales.length, options.outer_lr * std::sqrt(Square(kDelta)) / kGap);
}

}  // namespace
}  // namespace entrain
