// Compares ACCO, ZeRO-1 and DPU with their golden rounds, and weight prediction with the two lines
// of its definition (delay_rule.h). All in double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/acco/gradient_channel.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/train/arrays.h"

namespace entrain {
namespace {

using nlohmann::json;

const json& Rounds() {
  static const json* const golden = new json(Golden("acco.json"));
  return *golden;
}

std::vector<double> Vector(const json& values) {
  return values.get<std::vector<double>>();
}

// The golden problem: a quadratic with noise that is a function of rank, micro-batch and
// coordinate.
struct Problem {
  std::vector<std::vector<double>> a;
  std::vector<double> b, theta;

  Problem() {
    const json& problem = Rounds()["problem"];
    for (const json& row : problem["A"]) {
      a.push_back(Vector(row));
    }
    b = Vector(problem["b"]);
    theta = Vector(problem["theta_0"]);
  }
  void AddGradient(const double* at, int worker, int64_t j, double* sum) const {
    for (size_t k = 0; k < b.size(); ++k) {
      double value = -b[k];
      for (size_t c = 0; c < b.size(); ++c) {
        value += a[k][c] * at[c];
      }
      const auto place = static_cast<int64_t>(k);
      const int64_t mixed = 37 * (j + 1) + 11 * (place + 1) + 29 * (worker + 1) * (j + 2);
      sum[k] += value + static_cast<double>(mixed % 64 - 32) / 64;
    }
  }
};

// AdamW in double, on a shard.
struct Adamw {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1;
  std::vector<double> m = std::vector<double>(64, 0), v = std::vector<double>(64, 0);

  static int32_t Step(void* user, int32_t preview, int64_t step, double lr, size_t first,
                      size_t count, const void* grads, void* master, void* out) {
    auto* const self = static_cast<Adamw*>(user);
    const auto* const g = static_cast<const double*>(grads);
    auto* const theta = static_cast<double*>(master);
    const double c1 = 1 - std::pow(self->beta1, static_cast<double>(step));
    const double c2 = 1 - std::pow(self->beta2, static_cast<double>(step));
    for (size_t i = 0; i < count; ++i) {
      const double m = self->beta1 * self->m[first + i] + (1 - self->beta1) * g[i];
      const double v = self->beta2 * self->v[first + i] + (1 - self->beta2) * g[i] * g[i];
      const double next = theta[i] * (1 - lr * self->decay) -
                          lr / c1 * m / (std::sqrt(v) / std::sqrt(c2) + self->eps);
      if (preview != 0) {
        static_cast<double*>(out)[i] = next;
      } else {
        self->m[first + i] = m;
        self->v[first + i] = v;
        theta[i] = next;
      }
    }
    return 0;
  }
};

void ExpectNear(const std::vector<double>& is, const json& expected, const std::string& what) {
  const std::vector<double> wanted = Vector(expected);
  ASSERT_EQ(is.size(), wanted.size());
  for (size_t i = 0; i < is.size(); ++i) {
    EXPECT_NEAR(is[i], wanted[i], 1e-12) << what << " " << i;
  }
}

// A round that is over on this rank may not be over on other ranks, which need its communicator.
void Meet(Communicator& comm) {
  EXPECT_EQ(comm.Barrier(), absl::OkStatus());
}

// A worker of the golden problem on a channel of doubles.
class Trainee {
 public:
  Trainee(Communicator& comm, DelayMethod method, const std::vector<int32_t>& script)
      : rank_(comm.rank()), theta_(problem_.theta) {
    ChannelOptions options;
    options.method = method;
    options.count = static_cast<int64_t>(problem_.theta.size());
    options.params = theta_.data();
    options.params_dtype = options.grads_dtype = options.wire_dtype = DType::kF64;
    options.step = Adamw::Step;
    options.user = &adamw_;
    options.lr = 0.05;
    options.scripted = script;
    auto channel = GradientChannel::Create(comm, options);
    EXPECT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
  }
  void Add(int count) {
    for (int i = 0; i < count; ++i) {
      std::vector<double> sum = Read(channel_->gradients(), channel_->slab().layer(0).full);
      problem_.AddGradient(theta().data(), rank_, next_++, sum.data());
      WriteArray(channel_->gradients(), sum);
      EXPECT_EQ(channel_->Add(1, 10), absl::OkStatus());
    }
  }
  GradientChannel& channel() { return *channel_; }
  std::vector<double> theta() const { return theta_; }
  std::vector<double> Read(const void* array, int64_t count) const {
    return ReadArray<double>(array, count);
  }
  // Compares the coordinates that this rank owns.
  void ExpectShard(const void* shard, const json& expected, const std::string& what) const {
    const SlabLayer& layer = channel_->slab().layer(0);
    const std::vector<double> all = Vector(expected);
    for (int64_t i = 0; i < layer.valid; ++i) {
      EXPECT_NEAR(static_cast<const double*>(shard)[i], all[static_cast<size_t>(layer.first + i)],
                  1e-12)
          << what << " " << layer.first + i;
    }
  }
  const Adamw& adamw() const { return adamw_; }
  int64_t next() const { return next_; }

 private:
  const Problem problem_;
  const int rank_;
  std::vector<double> theta_;
  Adamw adamw_;
  std::shared_ptr<GradientChannel> channel_;
  int64_t next_ = 0;
};

std::vector<int32_t> Script(int worker) {
  return Rounds()["problem"]["microbatches_per_round"][worker == 0 ? "worker0" : "worker1"]
      .get<std::vector<int32_t>>();
}

// The micro-batches that are added before the first round, and then after each.
std::vector<int32_t> WithTheFirst(int worker) {
  std::vector<int32_t> script = Script(worker);
  script.insert(script.begin(), 1);
  return script;
}

TEST(GoldenRounds, AccoGoldenRounds) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    const std::vector<int32_t> script = WithTheFirst(comm->rank());
    Trainee worker(*comm, DelayMethod::kAcco, script);
    worker.Add(script[0]);
    ASSERT_EQ(worker.channel().Install(), absl::OkStatus());
    const json& rounds = Rounds()["variants"]["acco_intended_f64"]["rounds"];
    ASSERT_EQ(rounds.size(), 20u);
    for (size_t r = 0; r < rounds.size(); ++r) {
      const json& round = rounds[r];
      const std::string name = "round " + std::to_string(r);
      ExpectNear(worker.theta(), round["params_used_by_compute"], name + " params");
      const auto own = round["microbatch_ranges"][static_cast<size_t>(comm->rank())];
      EXPECT_EQ(worker.next(), own[0].get<int64_t>());
      worker.Add(script[r + 1]);
      EXPECT_EQ(worker.next() - 1, own[1].get<int64_t>());
      ASSERT_EQ(worker.channel().Install(), absl::OkStatus());
      ExpectNear(worker.theta(), round["gathered_params"], name + " gathered");
      const ChannelInfo info = worker.channel().info();
      EXPECT_EQ(info.rounds, static_cast<int64_t>(r) + 1);
      EXPECT_EQ(info.committed, round["kind"] == "commit");
      EXPECT_EQ(info.microbatches, round["count_total"]);
      EXPECT_EQ(info.gradients, round["committed_gradients_total"]);
      EXPECT_EQ(info.commits, round["opt_step_after"]);
      EXPECT_EQ(info.lr, round["lr"]);
      if (round["kind"] == "commit") {  // the estimate under way does not change them
        const std::vector<double> master =
            worker.Read(worker.channel().master(), worker.channel().slab().layer(0).valid);
        worker.ExpectShard(master.data(), round["master_after"], name + " master");
        worker.ExpectShard(worker.adamw().m.data(), round["exp_avg_after"], name + " m");
        worker.ExpectShard(worker.adamw().v.data(), round["exp_avg_sq_after"], name + " v");
      }
    }
    Meet(*comm);
  });
}

TEST(GoldenRounds, Zero1GoldenRounds) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    const std::vector<int32_t> script = Script(comm->rank());
    Trainee worker(*comm, DelayMethod::kZero1, script);
    const json& rounds = Rounds()["variants"]["sync_zero1_f64"]["rounds"];
    for (size_t r = 0; r < rounds.size(); ++r) {
      worker.Add(script[r]);
      ASSERT_EQ(worker.channel().Install(), absl::OkStatus());
      ExpectNear(worker.theta(), rounds[r]["params"], "update " + std::to_string(r));
      EXPECT_EQ(worker.channel().info().microbatches, rounds[r]["count_total"]);
    }
    Meet(*comm);
  });
}

TEST(GoldenRounds, DpuGoldenRounds) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    const std::vector<int32_t> script = WithTheFirst(comm->rank());
    Trainee worker(*comm, DelayMethod::kDpu, script);
    worker.Add(script[0]);
    ASSERT_EQ(worker.channel().Install(), absl::OkStatus());
    const json& rounds = Rounds()["variants"]["dpu_canonical_f64"]["rounds"];
    for (size_t r = 0; r + 1 < rounds.size(); ++r) {
      ExpectNear(worker.theta(), rounds[r]["params_used_by_compute"], "round " + std::to_string(r));
      worker.Add(script[r + 1]);
      ASSERT_EQ(worker.channel().Install(), absl::OkStatus());
      ExpectNear(worker.theta(), rounds[r]["committed_params"], "round " + std::to_string(r));
    }
    Meet(*comm);
  });
}

// ---- Weight prediction, compared with the two lines of its definition
// ----------------------------

TEST(GoldenRounds, WpComputesWhereTheSameStepWouldLeadAndEndsAtTheParameters) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    constexpr int kRounds = 6;
    const std::vector<int32_t> script(kRounds + 1, 2);
    Trainee worker(*comm, DelayMethod::kWp, script);
    const Problem problem;
    std::vector<double> theta = problem.theta, at = problem.theta;
    Adamw adamw;
    int64_t next = 0;
    std::vector<double> sum(theta.size(), 0), before;
    const auto compute = [&] {
      std::fill(sum.begin(), sum.end(), 0);
      for (int j = 0; j < 2; ++j, ++next) {
        problem.AddGradient(at.data(), 0, next, sum.data());
        problem.AddGradient(at.data(), 1, next, sum.data());
      }
      for (double& value : sum) {
        value /= 4;
      }
    };
    compute();
    worker.Add(2);
    ASSERT_EQ(worker.channel().Install(), absl::OkStatus());
    for (int r = 1; r <= kRounds; ++r) {
      before = sum;
      compute();  // while the round runs
      Adamw::Step(&adamw, 0, r, 0.05, 0, theta.size(), before.data(), theta.data(), nullptr);
      Adamw::Step(&adamw, 1, r + 1, 0.05, 0, theta.size(), before.data(), theta.data(), at.data());
      if (r == kRounds - 1) {
        EXPECT_EQ(worker.channel().Stop(), absl::OkStatus());  // the round that starts knows this
      }
      worker.Add(2);
      ASSERT_EQ(worker.channel().Install(), absl::OkStatus());
      const bool end = r == kRounds;
      EXPECT_EQ(worker.channel().info().finished, end);
      for (size_t i = 0; i < theta.size(); ++i) {
        EXPECT_NEAR(worker.theta()[i], end ? theta[i] : at[i], 1e-12) << r << " " << i;
      }
    }
  });
}

}  // namespace
}  // namespace entrain
