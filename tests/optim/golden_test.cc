// Whole trajectories on small problems, against those of the published classes: the rules in double of reference.h to
// 1e-11, the fast ones in f32 to 1e-4 (testdata/optimizers.json).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/optim/optimizer.h"
#include "nlohmann/json.hpp"
#include "tests/optim/reference.h"

namespace entrain {
namespace {

using nlohmann::json;
using Doubles = std::vector<double>;

constexpr double kExact = 1e-11, kSingle = 1e-4;
constexpr int64_t kSteps = 50;

const json& Golden() {
  static const json golden = [] {
    std::ifstream file(ENTRAIN_TESTDATA "/optimizers.json");
    EXPECT_TRUE(file.is_open());
    return json::parse(file);
  }();
  return golden;
}

// The gradient at x: of the Rosenbrock function, or of a quadratic one.
template <typename T>
std::vector<T> Gradient(const std::string& objective, const std::vector<T>& x) {
  std::vector<T> g(x.size());
  if (objective == "rosen4") {
    for (size_t i = 0; i + 1 < x.size(); ++i) {
      const T t = x[i + 1] - x[i] * x[i];
      g[i] += -400 * x[i] * t - 2 * (1 - x[i]);
      g[i + 1] += 200 * t;
    }
    return g;
  }
  const json& quadratic = Golden()["objectives"][objective];
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) {
      g[i] += quadratic["A"][i][j].get<T>() * x[j];
    }
    g[i] -= quadratic["b"][i].get<T>();
  }
  return g;
}

double Rosenbrock(const Doubles& x) {
  double sum = 0;
  for (size_t i = 0; i + 1 < x.size(); ++i) {
    const double t = x[i + 1] - x[i] * x[i];
    sum += 100 * t * t + (1 - x[i]) * (1 - x[i]);
  }
  return sum;
}

template <typename T>
std::vector<T> Start(const std::string& objective) {
  return Golden()["objectives"][objective]["x0"].get<std::vector<T>>();
}

template <typename Xs>
void ExpectNear(const Xs& xs, const json& want, double tolerance) {
  ASSERT_EQ(xs.size(), want.size());
  for (size_t i = 0; i < xs.size(); ++i) {
    const auto w = want[i].get<double>();
    EXPECT_NEAR(xs[i], w, tolerance * std::max(1.0, std::abs(w))) << "coordinate " << i;
  }
}

// Calls check(step, want) at the steps of a golden trajectory.
template <typename Check>
void AtCheckpoint(const json& trajectory, int64_t step, const Check& check) {
  const auto found = trajectory.find(std::to_string(step));
  if (found != trajectory.end()) {
    SCOPED_TRACE("step " + std::to_string(step));
    check(*found);
  }
}

OptimizerConfig ToConfig(const std::string& kind, const json& hyper) {
  OptimizerConfig config;
  config.kind = kind == "agd"   ? OptimizerKind::kAgd
                : kind == "sgd" ? OptimizerKind::kSgd
                                : OptimizerKind::kAdamw;
  for (const auto& [name, value] : hyper.items()) {
    if (name == "betas") {
      config.beta1 = value[0].get<double>();
      config.beta2 = value[1].get<double>();
    } else if (name == "amsgrad") {
      config.amsgrad = value.get<bool>();
    } else if (name != "lr") {
      double* const field = name == "delta"          ? &config.delta
                            : name == "clip"         ? &config.clip
                            : name == "momentum"     ? &config.momentum
                            : name == "weight_decay" ? &config.weight_decay
                                                     : nullptr;
      EXPECT_NE(field, nullptr) << name;
      *field = value.get<double>();
    }
  }
  return config;
}

// The f32 optimizer with its arrays.
struct Fast {
  Fast(const OptimizerConfig& config, std::vector<float> start)
      : optimizer(MakeOptimizer(config).value()),
        x(std::move(start)),
        arrays(static_cast<size_t>(optimizer->state_arrays()), std::vector<float>(x.size())) {
    for (std::vector<float>& array : arrays) {
      state.push_back(array.data());
    }
  }
  StepArgs Args(const std::vector<float>& grads, int64_t step, double lr) {
    return {.count = static_cast<int64_t>(x.size()),
            .master = x.data(),
            .grads = grads.data(),
            .state = state,
            .step = step,
            .lr = lr};
  }
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> x;
  std::vector<std::vector<float>> arrays;
  std::vector<float*> state;
};

TEST(GoldenAgd, TheRuleInDoubleFollowsEveryTrajectory) {
  for (const json& golden : Golden()["agd"]) {
    SCOPED_TRACE(golden["case"].get<std::string>());
    const OptimizerConfig config = ToConfig("agd", golden["hyper"]);
    const auto lr = golden["hyper"]["lr"].get<double>();
    Doubles x = Start<double>("rosen4"), m(4), b(4), largest(4);
    std::vector<ReferenceElement> elements(4);
    for (int64_t step = 1; step <= kSteps; ++step) {
      const Doubles g = Gradient("rosen4", x);
      for (size_t i = 0; i < 4; ++i) {
        elements[i].x = x[i];
        ReferenceStep(config, lr, step, g[i], elements[i]);
        x[i] = elements[i].x;
      }
      AtCheckpoint(golden["f64"]["params"], step,
                   [&](const json& want) { ExpectNear(x, want, kExact); });
      AtCheckpoint(golden["plain_branch"], step, [&](const json& want) {
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(elements[i].adaptive, !want[i].get<bool>()) << i;
        }
      });
    }
    for (size_t i = 0; i < 4; ++i) {
      m[i] = elements[i].m;
      b[i] = elements[i].v;
      largest[i] = elements[i].largest;
    }
    ExpectNear(m, golden["f64"]["m"], kExact);
    ExpectNear(b, golden["f64"]["b"], kExact);
    if (config.amsgrad) {
      ExpectNear(largest, golden["f64"]["largest"], kExact);
    }
    ExpectNear(Doubles{Rosenbrock(x)}, json{golden["f64"]["objective"]}, 1e-9);
  }
  EXPECT_EQ(Golden()["agd"].size(), 7u);
}

TEST(GoldenAgd, TheFastOneFollowsEveryTrajectory) {
  for (const json& golden : Golden()["agd"]) {
    SCOPED_TRACE(golden["case"].get<std::string>());
    Fast fast(ToConfig("agd", golden["hyper"]), Start<float>("rosen4"));
    for (int64_t step = 1; step <= kSteps; ++step) {
      const std::vector<float> grads = Gradient("rosen4", fast.x);
      fast.optimizer->Step(fast.Args(grads, step, golden["hyper"]["lr"].get<double>()),
                           Apply::kCommit);
      for (const char* const precision : {"f64", "f32"}) {
        AtCheckpoint(golden[precision]["params"], step,
                     [&](const json& want) { ExpectNear(fast.x, want, kSingle); });
      }
    }
    EXPECT_EQ(fast.optimizer->branches().elements, 4 * kSteps);
  }
}

}  // namespace
}  // namespace entrain
