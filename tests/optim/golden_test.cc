// Whole trajectories on small problems, compared with those of the published classes
// (testdata/optimizers.json): the rules of reference.h in double within 1e-11, and the fast rules
// in f32 within 1e-4.
#include "tests/support/golden.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/optim/optimizer.h"
#include "lib/optim/wsam.h"
#include "nlohmann/json.hpp"
#include "tests/optim/reference.h"

namespace entrain {
namespace {

using nlohmann::json;
using Doubles = std::vector<double>;

constexpr double kExact = 1e-11, kSingle = 1e-4;
constexpr int64_t kSteps = 50;

const json& Trajectories() {
  static const json all = Golden("optimizers.json");
  return all;
}

// Returns the gradient at x of the Rosenbrock function, or of a quadratic function.
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
  const json& quadratic = Trajectories()["objectives"][objective];
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
  return Trajectories()["objectives"][objective]["x0"].get<std::vector<T>>();
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

// The f32 optimizer and its arrays.
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
  for (const json& golden : Trajectories()["agd"]) {
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
  EXPECT_EQ(Trajectories()["agd"].size(), 7u);
}

TEST(GoldenAgd, TheFastOneFollowsEveryTrajectory) {
  for (const json& golden : Trajectories()["agd"]) {
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

WsamConfig ToWsam(const json& hyper) {
  WsamConfig config;
  for (const auto& [name, value] : hyper.items()) {
    if (name == "decouple" || name == "adaptive") {
      (name == "decouple" ? config.decouple : config.adaptive) = value.get<bool>();
    } else {
      double* const field = name == "rho" ? &config.rho : name == "gamma" ? &config.gamma : nullptr;
      EXPECT_NE(field, nullptr) << name;
      *field = value.get<double>();
    }
  }
  return config;
}

// Workers with different objectives and equal x. Local: each worker perturbs along its own
// gradient.
class ReferenceWorkers {
 public:
  ReferenceWorkers(std::vector<std::string> objectives, const json& golden)
      : objectives_(std::move(objectives)),
        base_(ToConfig(golden["base"], golden["base_hyper"])),
        wsam_(ToWsam(golden["hyper"])),
        lr_(golden["base_hyper"]["lr"].get<double>()),
        x(Start<double>(objectives_[0])),
        elements_(x.size()) {}
  void Step(int64_t step, bool local) {
    const Doubles g = Mean([&](const std::string& objective) { return Gradient(objective, x); });
    perturbations.clear();
    const Doubles g2 = Mean([&](const std::string& objective) {
      const Doubles e = ReferencePerturbation(wsam_, x, local ? Gradient(objective, x) : g);
      perturbations.push_back(e);
      Doubles moved = x;
      for (size_t i = 0; i < x.size(); ++i) {
        moved[i] += e[i];
      }
      return Gradient(objective, moved);
    });
    for (size_t i = 0; i < x.size(); ++i) {
      elements_[i].x = x[i];
    }
    ReferenceWsamStep(wsam_, base_, lr_, step, g, g2, elements_);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = elements_[i].x;
    }
  }

 private:
  template <typename Fn>
  Doubles Mean(const Fn& gradient) {
    Doubles mean(x.size());
    for (const std::string& objective : objectives_) {
      const Doubles g = gradient(objective);
      for (size_t i = 0; i < x.size(); ++i) {
        mean[i] += g[i] / static_cast<double>(objectives_.size());
      }
    }
    return mean;
  }
  const std::vector<std::string> objectives_;
  const OptimizerConfig base_;
  const WsamConfig wsam_;
  const double lr_;

 public:
  Doubles x;
  std::vector<Doubles> perturbations;  // perturbations of the last step, by worker

 private:
  std::vector<ReferenceElement> elements_;
};

TEST(GoldenWsam, TheRuleInDoubleFollowsEveryTrajectory) {
  for (const json& golden : Trajectories()["wsam"]) {
    SCOPED_TRACE(golden["case"].get<std::string>());
    ReferenceWorkers alone({"rosen4"}, golden);
    for (int64_t step = 1; step <= kSteps; ++step) {
      alone.Step(step, true);
      if (step == 1) {
        ExpectNear(alone.perturbations[0], golden["f64"]["perturbation"], kExact);
      }
      AtCheckpoint(golden["f64"]["params"], step,
                   [&](const json& want) { ExpectNear(alone.x, want, kExact); });
    }
    ExpectNear(Doubles{Rosenbrock(alone.x)}, json{golden["f64"]["objective"]}, 1e-9);
  }
  EXPECT_EQ(Trajectories()["wsam"].size(), 6u);
}

TEST(GoldenWsam, TwoWorkersInDoublePerturbLocallyOrGlobally) {
  const json& golden = Trajectories()["two_workers"];
  for (const bool local : {true, false}) {
    ReferenceWorkers both({"quad5", "quad5b"}, golden);
    for (int64_t step = 1; step <= kSteps; ++step) {
      both.Step(step, local);
      for (size_t worker = 0; local && step == 1 && worker < 2; ++worker) {
        ExpectNear(both.perturbations[worker], golden["local"]["perturbations"][worker], kExact);
      }
      AtCheckpoint(golden[local ? "local" : "global"]["f64"], step,
                   [&](const json& want) { ExpectNear(both.x, want, kExact); });
    }
  }
}

// Workers that each hold all of x in f32 and make the library's calls.
class FastWorkers {
 public:
  FastWorkers(std::vector<std::string> objectives, const json& golden)
      : objectives_(std::move(objectives)),
        lr_(golden["base_hyper"]["lr"].get<double>()),
        wsam_(Wsam::Make(ToWsam(golden["hyper"]),
                         MakeOptimizer(ToConfig(golden["base"], golden["base_hyper"])).value())
                  .value()) {
    for (const std::string& objective : objectives_) {
      workers.emplace_back(ToConfig(golden["base"], golden["base_hyper"]), Start<float>(objective));
    }
  }
  void Step(int64_t step, bool local) {
    std::vector<std::vector<float>> first, second;
    for (size_t i = 0; i < workers.size(); ++i) {
      first.push_back(Gradient(objectives_[i], workers[i].x));
    }
    const std::vector<float> g = Mean(first);
    for (size_t i = 0; i < workers.size(); ++i) {
      std::vector<float>& x = workers[i].x;
      std::vector<float> saved(x.size());
      const std::vector<float>& up = local ? first[i] : g;
      const auto count = static_cast<int64_t>(x.size());
      // Adds the sums of two slices, as ranks that hold the slices would.
      const double sum = wsam_->AscentSum(x.data(), up.data(), 2) +
                         wsam_->AscentSum(x.data() + 2, up.data() + 2, count - 2);
      const std::vector<float> before = x;
      wsam_->Ascend(x.data(), saved.data(), up.data(), count, sum);
      second.push_back(Gradient(objectives_[i], x));
      x = saved;
      ASSERT_EQ(x, before);
    }
    const std::vector<float> g2 = Mean(second);
    for (Fast& worker : workers) {
      EXPECT_TRUE(
          wsam_->Step({.args = worker.Args(g, step, lr_), .second = g2.data()}, Apply::kCommit)
              .ok());
    }
  }
  std::vector<Fast> workers;

 private:
  static std::vector<float> Mean(const std::vector<std::vector<float>>& all) {
    std::vector<float> mean(all[0].size());
    for (const std::vector<float>& one : all) {
      for (size_t i = 0; i < one.size(); ++i) {
        mean[i] += one[i] / static_cast<float>(all.size());
      }
    }
    return mean;
  }
  const std::vector<std::string> objectives_;
  const double lr_;
  const std::unique_ptr<Wsam> wsam_;
};

TEST(GoldenWsam, TheFastOneFollowsEveryTrajectory) {
  for (const json& golden : Trajectories()["wsam"]) {
    SCOPED_TRACE(golden["case"].get<std::string>());
    FastWorkers alone({"rosen4"}, golden);
    for (int64_t step = 1; step <= kSteps; ++step) {
      alone.Step(step, true);
      for (const char* const precision : {"f64", "f32"}) {
        AtCheckpoint(golden[precision]["params"], step,
                     [&](const json& want) { ExpectNear(alone.workers[0].x, want, kSingle); });
      }
    }
  }
}

TEST(GoldenWsam, TwoFastWorkersStayTheSameToTheLastBit) {
  const json& golden = Trajectories()["two_workers"];
  for (const bool local : {true, false}) {
    FastWorkers both({"quad5", "quad5b"}, golden);
    for (int64_t step = 1; step <= kSteps; ++step) {
      both.Step(step, local);
      ASSERT_EQ(both.workers[0].x, both.workers[1].x) << "step " << step;
      AtCheckpoint(golden[local ? "local" : "global"]["f64"], step,
                   [&](const json& want) { ExpectNear(both.workers[0].x, want, kSingle); });
    }
  }
}

}  // namespace
}  // namespace entrain
