// The update rules. Every table gives the same bits as one element at a time in f32, which is
// computed here, and a preview changes nothing. tests/optim tests how close f32 is to the rule in
// double.
#include "tests/kernels/values.h"

namespace entrain {
namespace {

constexpr int64_t kCounts[] = {0, 1, 7, 16, 33, 1000};

// Returns f32 products that are rounded before they are added, whatever this test's compiler
// prefers.
float Times(float a, float b) {
  const volatile float product = a * b;
  return product;
}

class UpdatesTest : public KernelTableTest {
 protected:
  // Returns an array of `count` normal numbers at an odd address.
  Array Normal(int64_t count) {
    Array x(DType::kF32, count, 1);
    FillNormal(x, random_);
    return x;
  }
};

struct SgdElement {
  float p, b;
};
SgdElement ReferenceSgd(const SgdArgs& args, float p, float g, float b) {
  const auto lr = static_cast<float>(args.lr), mu = static_cast<float>(args.momentum);
  const float grad = g + Times(static_cast<float>(args.weight_decay), p);
  if (args.momentum == 0) {
    return {p - Times(lr, grad), b};
  }
  const float next = args.first_step ? grad : Times(mu, b) + grad;
  return {p - Times(lr, args.nesterov ? grad + Times(mu, next) : next), next};
}

TEST_P(UpdatesTest, SgdAgrees) {
  for (const int64_t count : kCounts) {
    for (int variant = 0; variant < 16; ++variant) {
      const SgdArgs args = {.lr = 0.07,
                            .momentum = variant & 1 ? 0.9 : 0.0,
                            .weight_decay = variant & 2 ? 0.01 : 0.0,
                            .nesterov = (variant & 4) != 0,
                            .first_step = (variant & 8) != 0};
      SCOPED_TRACE(absl::StrCat("variant ", variant, ", count ", count));
      Array p = Normal(count), g = Normal(count), b = Normal(count), out(DType::kF32, count);
      Array want_p = p, want_b = b;
      for (int64_t i = 0; i < count; ++i) {
        const SgdElement want = ReferenceSgd(args, p.At<float>(i), g.At<float>(i), b.At<float>(i));
        want_p.Set(i, want.p);
        want_b.Set(i, want.b);
      }
      const Array p_before = p, b_before = b;
      float* const momentum = args.momentum != 0 ? b.floats() : nullptr;
      kernels().sgd(args, out.floats(), p.floats(), g.floats(), momentum, count);
      EXPECT_TRUE(SameArrays(out, want_p));
      EXPECT_TRUE(SameArrays(p, p_before));
      EXPECT_TRUE(SameArrays(b, b_before));
      kernels().sgd(args, p.floats(), p.floats(), g.floats(), momentum, count);
      EXPECT_TRUE(SameArrays(p, want_p));
      EXPECT_TRUE(SameArrays(b, want_b));
    }
  }
}

TEST_P(UpdatesTest, AdamwAgrees) {
  const AdamwArgs args = {.lr = 0.05,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .correction1 = 1 - 0.9 * 0.9,
                          .correction2 = 1 - 0.95 * 0.95};
  for (const int64_t count : kCounts) {
    Array p = Normal(count), g = Normal(count), m = Normal(count), v(DType::kF32, count);
    Array out(DType::kF32, count), want_p = p, want_m = m, want_v = v;
    for (int64_t i = 0; i < count; ++i) {
      v.Set(i, Times(m.At<float>(i), m.At<float>(i)));
      const float grad = g.At<float>(i);
      const float mean = Times(0.9f, m.At<float>(i)) + Times(static_cast<float>(1 - 0.9), grad);
      const float square =
          Times(0.95f, v.At<float>(i)) + Times(static_cast<float>(1 - 0.95), Times(grad, grad));
      const float denominator =
          std::sqrt(square) / static_cast<float>(std::sqrt(args.correction2)) + 1e-8f;
      const auto rate = static_cast<float>(0.05 / args.correction1);
      want_m.Set(i, mean);
      want_v.Set(i, square);
      want_p.Set(i, Times(p.At<float>(i), static_cast<float>(1 - 0.05 * 0.1)) -
                        Times(rate, mean / denominator));
    }
    const Array p_before = p, m_before = m, v_before = v;
    kernels().adamw(args, out.floats(), p.floats(), g.floats(), m.floats(), v.floats(), count);
    EXPECT_TRUE(SameArrays(out, want_p)) << count;
    EXPECT_TRUE(SameArrays(p, p_before)) << count;
    EXPECT_TRUE(SameArrays(m, m_before)) << count;
    EXPECT_TRUE(SameArrays(v, v_before)) << count;
    kernels().adamw(args, p.floats(), p.floats(), g.floats(), m.floats(), v.floats(), count);
    EXPECT_TRUE(SameArrays(p, want_p)) << count;
    EXPECT_TRUE(SameArrays(m, want_m)) << count;
    EXPECT_TRUE(SameArrays(v, want_v)) << count;
  }
}

TEST_P(UpdatesTest, LionAgrees) {
  if (kernels().lion == nullptr) {
    GTEST_SKIP() << kernels().name << " has no Lion";
  }
  const LionArgs args = {.lr = 0.05, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
  for (const int64_t count : kCounts) {
    Array p = Normal(count), g = Normal(count), m = Normal(count), out(DType::kF32, count);
    for (int64_t i = 0; i < count; i += 5) {  // a zero gradient
      g.Set(i, 0.0f);
      m.Set(i, 0.0f);
    }
    Array want_p = p, want_m = m;
    for (int64_t i = 0; i < count; ++i) {
      const float grad = g.At<float>(i), mean = m.At<float>(i);
      const float mixed = Times(0.9f, mean) + Times(static_cast<float>(1 - 0.9), grad);
      const float kept = Times(p.At<float>(i), static_cast<float>(1 - 0.05 * 0.1));
      want_p.Set(i, mixed > 0 ? kept - 0.05f : mixed < 0 ? kept + 0.05f : kept);
      want_m.Set(i, Times(0.99f, mean) + Times(static_cast<float>(1 - 0.99), grad));
    }
    const Array p_before = p, m_before = m;
    kernels().lion(args, out.floats(), p.floats(), g.floats(), m.floats(), count);
    EXPECT_TRUE(SameArrays(out, want_p)) << count;
    EXPECT_TRUE(SameArrays(p, p_before)) << count;
    EXPECT_TRUE(SameArrays(m, m_before)) << count;
    kernels().lion(args, p.floats(), p.floats(), g.floats(), m.floats(), count);
    EXPECT_TRUE(SameArrays(p, want_p)) << count;
    EXPECT_TRUE(SameArrays(m, want_m)) << count;
  }
}

struct AgdElement {
  float p, m, b, largest, z;
  bool adaptive;
};
AgdElement ReferenceAgd(const AgdArgs& args, bool amsgrad, bool win, float g, AgdElement e) {
  const auto f = [](double x) { return static_cast<float>(x); };
  const float p = e.p, grad = g + Times(f(args.coupled_lambda), p);
  const float s = Times(f(args.rest1_over_c1), grad - Times(f(args.inverse_c1_before), e.m));
  e.m = Times(f(args.beta1), e.m) + Times(f(1 - args.beta1), grad);
  e.b = Times(f(args.beta2), e.b) + Times(f(1 - args.beta2), Times(s, s));
  e.largest = amsgrad ? std::max(e.largest, e.b) : e.largest;
  const float root = std::sqrt(amsgrad ? e.largest : e.b), least = f(args.delta_root_c2);
  e.adaptive = root >= least;
  const float u = std::clamp(e.m / std::max(root, least), -f(args.clip), f(args.clip));
  const float a_u = Times(f(args.a), u);
  e.p = Times(p, f(args.p_factor)) - a_u;
  if (win) {
    const double a_lambda = args.a * args.lambda;
    e.z = Times((args.first_step ? p : e.z) - a_u, f(1 / (1 + a_lambda)));
    e.p = p + Times(f(2 / (3 + 2 * a_lambda)), e.z - p - a_u - Times(f(a_lambda), p));
  }
  return e;
}

TEST_P(UpdatesTest, AgdAgrees) {
  for (const int64_t count : kCounts) {
    for (int variant = 0; variant < 8; ++variant) {
      const bool amsgrad = (variant & 1) != 0, win = (variant & 2) != 0;
      const AgdArgs args = {.p_factor = win ? 1 : 0.995,
                            .coupled_lambda = win ? 0 : 0.01,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .rest1_over_c1 = 0.37,
                            .inverse_c1_before = 5.3,
                            .delta_root_c2 = 0.5,
                            .clip = variant & 1 ? 1.5 : std::numeric_limits<double>::infinity(),
                            .a = 0.03,
                            .lambda = 0.1,
                            .first_step = (variant & 4) != 0};
      SCOPED_TRACE(absl::StrCat("variant ", variant, ", count ", count));
      Array p = Normal(count), g = Normal(count), m = Normal(count), b = Normal(count);
      Array largest = Normal(count), z = Normal(count), out(DType::kF32, count);
      for (int64_t i = 0; i < count; ++i) {
        b.Set(i, std::abs(b.At<float>(i)));
        largest.Set(i, std::abs(largest.At<float>(i)));
      }
      Array want_p = p, want_m = m, want_b = b, want_largest = largest, want_z = z;
      int64_t adaptive = 0;
      for (int64_t i = 0; i < count; ++i) {
        const AgdElement want = ReferenceAgd(args, amsgrad, win, g.At<float>(i),
                                             {p.At<float>(i), m.At<float>(i), b.At<float>(i),
                                              largest.At<float>(i), z.At<float>(i), false});
        want_p.Set(i, want.p);
        want_m.Set(i, want.m);
        want_b.Set(i, want.b);
        want_largest.Set(i, want.largest);
        want_z.Set(i, want.z);
        adaptive += want.adaptive;
      }
      const Array p_before = p, m_before = m, b_before = b, largest_before = largest, z_before = z;
      AgdArrays arrays = {out.floats(),
                          p.floats(),
                          g.floats(),
                          m.floats(),
                          b.floats(),
                          amsgrad ? largest.floats() : nullptr,
                          win ? z.floats() : nullptr};
      EXPECT_EQ(kernels().agd(args, arrays, count), 0);
      EXPECT_TRUE(SameArrays(out, want_p));
      EXPECT_TRUE(SameArrays(p, p_before));
      EXPECT_TRUE(SameArrays(m, m_before));
      EXPECT_TRUE(SameArrays(b, b_before));
      EXPECT_TRUE(SameArrays(largest, largest_before));
      EXPECT_TRUE(SameArrays(z, z_before));
      arrays.out = arrays.p;
      EXPECT_EQ(kernels().agd(args, arrays, count), adaptive);
      EXPECT_TRUE(SameArrays(p, want_p));
      EXPECT_TRUE(SameArrays(m, want_m));
      EXPECT_TRUE(SameArrays(b, want_b));
      EXPECT_TRUE(SameArrays(largest, want_largest));
      EXPECT_TRUE(SameArrays(z, want_z));
    }
  }
}

TEST_P(UpdatesTest, AscendSavesAndMoves) {
  for (const int64_t count : kCounts) {
    for (const bool adaptive : {false, true}) {
      Array p = Normal(count), g = Normal(count), saved(DType::kF32, count);
      const Array before = p;
      Array want = p;
      for (int64_t i = 0; i < count; ++i) {
        const float x = p.At<float>(i), grad = g.At<float>(i);
        want.Set(i, x + Times(0.07f, adaptive ? Times(Times(x, x), grad) : grad));
      }
      kernels().ascend(adaptive, 0.07f, p.floats(), saved.floats(), g.floats(), count);
      EXPECT_TRUE(SameArrays(p, want)) << count;
      EXPECT_TRUE(SameArrays(saved, before)) << count;
    }
  }
}

TEST_P(UpdatesTest, AddSharpnessAgrees) {
  const SharpnessArgs args = {.keep = 0.9, .rate = -0.3, .first = 0.8, .second = 0.7};
  for (const int64_t count : kCounts) {
    Array base = Normal(count), g = Normal(count), g2 = Normal(count), out(DType::kF32, count);
    Array want = base;
    for (int64_t i = 0; i < count; ++i) {
      const float change = Times(0.7f, g2.At<float>(i)) - Times(0.8f, g.At<float>(i));
      want.Set(i, Times(0.9f, base.At<float>(i)) + Times(-0.3f, change));
    }
    const Array before = base;
    kernels().add_sharpness(args, out.floats(), base.floats(), g.floats(), g2.floats(), count);
    EXPECT_TRUE(SameArrays(out, want)) << count;
    EXPECT_TRUE(SameArrays(base, before)) << count;
    kernels().add_sharpness(args, base.floats(), base.floats(), g.floats(), g2.floats(), count);
    EXPECT_TRUE(SameArrays(base, want)) << count;
  }
}

TEST_P(UpdatesTest, OuterStepIsSgdOnTheScaledMeanWithTheResultInBothArrays) {
  if (kernels().outer_step == nullptr) {
    GTEST_SKIP() << kernels().name << " has no outer step";
  }
  for (const int64_t count : kCounts) {
    for (int variant = 0; variant < 8; ++variant) {
      const SgdArgs args = {.lr = 0.8,
                            .momentum = variant & 1 ? 0.85 : 0.0,
                            .weight_decay = 0,
                            .nesterov = (variant & 2) != 0,
                            .first_step = (variant & 4) != 0};
      SCOPED_TRACE(absl::StrCat("variant ", variant, ", count ", count));
      Array anchor = Normal(count), momentum = Normal(count), params = Normal(count);
      Array mean = Normal(count), want_a = anchor, want_b = momentum;
      for (int64_t i = 0; i < count; ++i) {
        const SgdElement want = ReferenceSgd(args, anchor.At<float>(i),
                                             Times(0.6f, mean.At<float>(i)), momentum.At<float>(i));
        want_a.Set(i, want.p);
        want_b.Set(i, want.b);
      }
      kernels().outer_step(args, 0.6f, anchor.floats(),
                           args.momentum != 0 ? momentum.floats() : nullptr, params.floats(),
                           mean.floats(), count);
      EXPECT_TRUE(SameArrays(anchor, want_a));
      EXPECT_TRUE(SameArrays(params, want_a));
      EXPECT_TRUE(SameArrays(momentum, want_b));
    }
  }
}

ENTRAIN_FOR_ALL_TABLES(UpdatesTest);

}  // namespace
}  // namespace entrain
