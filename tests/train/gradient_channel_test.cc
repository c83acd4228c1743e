// ACCO and its baselines: the golden rounds, what holds whatever the counts are, and the ends of runs.

#include "lib/train/gradient_channel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json& Rounds() {
  static const json* const golden = new json(Golden("acco.json"));
  return *golden;
}

std::vector<double> Vector(const json& values) {
  return values.get<std::vector<double>>();
}

// The golden problem: a quadratic with noise that is a function of who, which and where.
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

  static void Step(void* user, int32_t preview, int64_t step, double lr, size_t first, size_t count,
                   const void* grads, void* master, void* out) {
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
  }
};

ChannelOptions Doubles(DelayMethod method, std::vector<double>* params, Adamw* adamw) {
  ChannelOptions options;
  options.method = method;
  options.count = static_cast<int64_t>(params->size());
  options.params = params->data();
  options.params_dtype = options.grads_dtype = options.wire_dtype = DType::kF64;
  options.step = Adamw::Step;
  options.user = adamw;
  options.schedule.lr = 0.05;
  return options;
}

void ExpectNear(const std::vector<double>& is, const json& expected, const std::string& what) {
  const std::vector<double> wanted = Vector(expected);
  ASSERT_EQ(is.size(), wanted.size());
  for (size_t i = 0; i < is.size(); ++i) {
    EXPECT_NEAR(is[i], wanted[i], 1e-12) << what << " " << i;
  }
}

// Whoever is destroyed during a round ends the others' too, and a round that is over here may not be over there.
void Meet(Communicator& comm) {
  EXPECT_EQ(comm.Barrier(), absl::OkStatus());
}

// A worker of the golden problem on a channel of doubles.
class Worker {
 public:
  Worker(Communicator& comm, DelayMethod method, const std::vector<int32_t>& script)
      : rank_(comm.rank()), theta_(problem_.theta) {
    ChannelOptions options = Doubles(method, &theta_, &adamw_);
    options.scripted = script;
    auto channel = GradientChannel::Create(comm, options);
    EXPECT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
  }
  void Add(int count) {
    for (int i = 0; i < count; ++i) {
      problem_.AddGradient(theta_.data(), rank_, next_++,
                           static_cast<double*>(channel_->gradients()));
      EXPECT_EQ(channel_->Add(1, 10), absl::OkStatus());
    }
  }
  GradientChannel& channel() { return *channel_; }
  const std::vector<double>& theta() const { return theta_; }
  // Of all coordinates those that this rank owns.
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
  std::unique_ptr<GradientChannel> channel_;
  int64_t next_ = 0;
};

std::vector<int32_t> Script(int worker) {
  return Rounds()["problem"]["microbatches_per_round"][worker == 0 ? "worker0" : "worker1"]
      .get<std::vector<int32_t>>();
}

// What is added before the first round, and then behind each.
std::vector<int32_t> WithTheFirst(int worker) {
  std::vector<int32_t> script = Script(worker);
  script.insert(script.begin(), 1);
  return script;
}

TEST(GradientChannel, AccoGoldenRounds) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    const std::vector<int32_t> script = WithTheFirst(comm->rank());
    Worker worker(*comm, DelayMethod::kAcco, script);
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
      // The next round is under way, and an estimate keeps nothing.
      if (info.rounds == static_cast<int64_t>(r) + 1) {
        EXPECT_EQ(info.committed, round["kind"] == "commit");
        EXPECT_EQ(info.microbatches, round["count_total"]);
        EXPECT_EQ(info.gradients, round["committed_gradients_total"]);
        EXPECT_EQ(info.commits, round["opt_step_after"]);
        EXPECT_EQ(info.lr, round["lr"]);
      }
      if (round["kind"] == "commit") {  // the estimate under way leaves them alone
        worker.ExpectShard(worker.channel().master(), round["master_after"], name + " master");
        worker.ExpectShard(worker.adamw().m.data(), round["exp_avg_after"], name + " m");
        worker.ExpectShard(worker.adamw().v.data(), round["exp_avg_sq_after"], name + " v");
      }
    }
    Meet(*comm);
  });
}

TEST(GradientChannel, Zero1GoldenRounds) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    const std::vector<int32_t> script = Script(comm->rank());
    Worker worker(*comm, DelayMethod::kZero1, script);
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

TEST(GradientChannel, DpuGoldenRounds) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    const std::vector<int32_t> script = WithTheFirst(comm->rank());
    Worker worker(*comm, DelayMethod::kDpu, script);
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

// ---- Weight prediction, against its two lines ----------------------------------------------------

TEST(GradientChannel, WpComputesWhereTheSameStepWouldLeadAndEndsAtTheParameters) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    constexpr int kRounds = 6;
    const std::vector<int32_t> script(kRounds + 1, 2);
    Worker worker(*comm, DelayMethod::kWp, script);
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
        EXPECT_EQ(worker.channel().Stop(), absl::OkStatus());  // the round that starts knows
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

// ---- f32 and bf16, with the library's optimizer --------------------------------------------------

constexpr int64_t kCount = 10007;

float InitialOf(int64_t i) {
  return 0.1f * static_cast<float>(i % 17) - 0.8f;
}

// Does not depend on the parameters.
float GradientOf(int rank, int64_t j, int64_t i) {
  return static_cast<float>((7 * j + 3 * i + 5 * rank) % 32 - 16) / 64;  // exact in any order
}

struct Floats {
  std::vector<float> params;
  std::unique_ptr<Optimizer> optimizer;
  ChannelOptions options;

  explicit Floats(DelayMethod method, OptimizerKind kind = OptimizerKind::kAdamw) {
    for (int64_t i = 0; i < kCount; ++i) {
      params.push_back(InitialOf(i));
    }
    OptimizerConfig config;
    config.kind = kind;
    config.weight_decay = 0.1;
    optimizer = *MakeOptimizer(config);
    options.method = method;
    options.count = kCount;
    options.params = params.data();
    options.optimizer = optimizer.get();
    options.schedule.lr = 0.01;
  }
};

void AddTo(GradientChannel& channel, int rank, int64_t j) {
  auto* const sum = static_cast<float*>(channel.gradients());
  for (int64_t i = 0; i < kCount; ++i) {
    sum[i] += GradientOf(rank, j, i);
  }
  ASSERT_EQ(channel.Add(1, 3), absl::OkStatus());
}

// Gradients that do not depend on the parameters: ACCO is synchronous AdamW on the same counts, bit for bit, for any number of
// ranks.
TEST(GradientChannel, ThetaIndependentGradientsMakeItSynchronousAdamw) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanks(ranks, [&](const std::shared_ptr<Communicator>& comm) {
      Floats acco(DelayMethod::kAcco), alone(DelayMethod::kAcco);
      acco.options.limit = 4;  // so that nothing is under way at the end
      auto channel = GradientChannel::Create(*comm, acco.options);
      ASSERT_TRUE(channel.ok()) << channel.status();
      std::vector<float> m(kCount, 0), v(kCount, 0), mean(kCount);
      float* const state[] = {m.data(), v.data()};
      AddTo(**channel, comm->rank(), 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      for (int64_t t = 0; t < 4; ++t) {
        AddTo(**channel, comm->rank(), 2 * t + 1);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());  // the estimate
        AddTo(**channel, comm->rank(), 2 * t + 2);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());  // the commit of 2 t and 2 t + 1
        std::fill(mean.begin(), mean.end(), 0.0f);
        for (int rank = 0; rank < ranks; ++rank) {
          for (int64_t i = 0; i < kCount; ++i) {
            mean[static_cast<size_t>(i)] +=
                GradientOf(rank, 2 * t, i) + GradientOf(rank, 2 * t + 1, i);
          }
        }
        BestKernels().scale_any(DType::kF32, mean.data(), mean.data(), kCount, 1 / (2.0 * ranks));
        alone.optimizer->Step({.count = kCount,
                               .master = alone.params.data(),
                               .grads = mean.data(),
                               .state = state,
                               .step = t + 1,
                               .lr = 0.01},
                              Apply::kCommit);
        EXPECT_EQ(acco.params, alone.params) << ranks << " ranks, commit " << t + 1;
      }
      EXPECT_TRUE((*channel)->info().finished);
      EXPECT_EQ((*channel)->info().tokens, ranks * 3 * 8);
    });
  }
}

TEST(GradientChannel, Bf16ParametersHaveTheSameBitsOnAllRanksAndMastersTheirOwn) {
  for (const DType held : {DType::kBF16, DType::kF32}) {
    for (const DType wire : {DType::kBF16, DType::kF32}) {
      std::mutex mutex;
      std::set<std::vector<uint16_t>> seen;
      RunRanks(3, [&](const std::shared_ptr<Communicator>& comm) {
        Floats floats(DelayMethod::kAcco);
        std::vector<uint16_t> params(kCount);
        BestKernels().cast(params.data(), DType::kBF16, floats.params.data(), DType::kF32, kCount);
        floats.options.params = params.data();
        floats.options.params_dtype = DType::kBF16;
        floats.options.grads_dtype = held;
        floats.options.wire_dtype = wire;
        floats.options.clip_norm = 0.5;
        floats.options.limit = 3;
        auto channel = GradientChannel::Create(*comm, floats.options);
        ASSERT_TRUE(channel.ok()) << channel.status();
        std::vector<float> sum(kCount);
        for (int64_t j = 0; !(*channel)->info().finished; ++j) {
          BestKernels().cast(sum.data(), DType::kF32, (*channel)->gradients(), held, kCount);
          for (int64_t i = 0; i < kCount; ++i) {
            sum[static_cast<size_t>(i)] += GradientOf(comm->rank(), j, i);
          }
          BestKernels().cast((*channel)->gradients(), held, sum.data(), DType::kF32, kCount);
          ASSERT_EQ((*channel)->Add(1, 0), absl::OkStatus());
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
        const std::lock_guard<std::mutex> lock(mutex);
        seen.insert(params);
        const int64_t shard = (kCount + 2) / 3;
        EXPECT_EQ((*channel)->info().bytes_held,
                  SizeOf(held) * kCount + SizeOf(wire) * 3 * shard + 12 * shard);
      });
      EXPECT_EQ(seen.size(), 1u);
    }
  }
}

// f32 parameters whose gradients travel as bf16: narrower than what replaces them.
TEST(GradientChannel, GradientsMayTravelNarrowerThanParameters) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats wide(DelayMethod::kZero1), narrow(DelayMethod::kZero1);
    narrow.options.wire_dtype = DType::kBF16;
    auto a = GradientChannel::Create(*comm, wide.options);
    auto b = GradientChannel::Create(*comm, narrow.options);
    ASSERT_TRUE(a.ok() && b.ok());
    for (int64_t j = 0; j < 3; ++j) {
      AddTo(**a, comm->rank(), j);
      AddTo(**b, comm->rank(), j);
      ASSERT_EQ((*a)->Install(), absl::OkStatus());
      ASSERT_EQ((*b)->Install(), absl::OkStatus());
    }
    // The sums are small multiples of 1/64, which bf16 has exactly.
    EXPECT_EQ(wide.params, narrow.params);
    Meet(*comm);
  });
}

// ---- Counts, schedules, ends ---------------------------------------------------------------------

TEST(GradientChannel, ScheduleCountsInTheUnitThatIsSaid) {
  RateSchedule s;
  s.lr = 2;
  s.min_lr = 1;
  s.warmup = 4;
  s.total = 12;
  EXPECT_DOUBLE_EQ(s.At(0), 0);
  EXPECT_DOUBLE_EQ(s.At(1), 0.5);
  EXPECT_DOUBLE_EQ(s.At(4), 2);
  EXPECT_DOUBLE_EQ(s.At(8), 1.5);
  EXPECT_DOUBLE_EQ(s.At(100), 1);
  for (const ProgressUnit unit :
       {ProgressUnit::kCommits, ProgressUnit::kGradients, ProgressUnit::kTokens}) {
    RunRanks(2, [unit](const std::shared_ptr<Communicator>& comm) {
      Floats floats(DelayMethod::kZero1);
      floats.options.schedule.unit = unit;
      floats.options.schedule.warmup = 1000;
      auto channel = GradientChannel::Create(*comm, floats.options);
      ASSERT_TRUE(channel.ok());
      for (int round = 0; round < 3; ++round) {
        AddTo(**channel, comm->rank(), 0);
        AddTo(**channel, comm->rank(), 1);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      }
      // Before the third update there were two commits, of four micro-batches of three tokens each.
      const double progress = unit == ProgressUnit::kCommits     ? 2
                              : unit == ProgressUnit::kGradients ? 8
                                                                 : 24;
      EXPECT_DOUBLE_EQ((*channel)->info().lr, 0.01 * progress / 1000);
    });
  }
}

TEST(GradientChannel, ClippingIsByTheNormOfTheMeanOverAllShards) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kZero1, OptimizerKind::kSgd);
    floats.options.clip_norm = 2;
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    AddTo(**channel, comm->rank(), comm->rank());
    ASSERT_EQ((*channel)->Install(), absl::OkStatus());
    double square = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      double mean = 0;
      for (int rank = 0; rank < 3; ++rank) {
        mean += GradientOf(rank, rank, i) / 3;
      }
      square += mean * mean;
    }
    const ChannelInfo info = (*channel)->info();
    EXPECT_NEAR(info.grad_norm, std::sqrt(square), 1e-4);
    EXPECT_NEAR(info.clip_factor, 2 / (std::sqrt(square) + 1e-6), 1e-6);
    Meet(*comm);
  });
}

// A rank that is slower contributes less and holds nobody's gradients up; all end at the same commit.
TEST(GradientChannel, AFastRankAddsWhileASlowOneComputesAndAllEndAtTheSameCommit) {
  for (const DelayMethod method : {DelayMethod::kAcco, DelayMethod::kDpu, DelayMethod::kWp}) {
    std::mutex mutex;
    std::vector<ChannelInfo> infos;
    std::set<std::vector<float>> params;
    RunRanks(3, [&](const std::shared_ptr<Communicator>& comm) {
      Floats floats(method);
      floats.options.limit_unit = ProgressUnit::kGradients;
      floats.options.limit = 40;
      auto channel = GradientChannel::Create(*comm, floats.options);
      ASSERT_TRUE(channel.ok());
      int64_t added = 0;
      while (!(*channel)->info().finished) {
        if (comm->rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        AddTo(**channel, comm->rank(), added++);
        const absl::StatusOr<bool> ready = (*channel)->Poll();
        ASSERT_TRUE(ready.ok()) << ready.status();
        if (*ready) {
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const ChannelInfo info = (*channel)->info();
      EXPECT_TRUE(absl::IsFailedPrecondition((*channel)->Add(1, 0)));
      const std::lock_guard<std::mutex> lock(mutex);
      infos.push_back(info);
      params.insert(floats.params);
    });
    ASSERT_EQ(infos.size(), 3u);
    EXPECT_EQ(params.size(), 1u);
    for (const ChannelInfo& info : infos) {
      EXPECT_GE(info.gradients, 40);
      EXPECT_EQ(info.gradients, infos[0].gradients);
      EXPECT_EQ(info.commits, infos[0].commits);
      EXPECT_TRUE(info.committed);
    }
  }
}

TEST(GradientChannel, MinimumAndMaximumOfARound) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco);
    floats.options.min_microbatches = 2;
    floats.options.max_microbatches = 3;
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    AddTo(**channel, comm->rank(), 0);
    EXPECT_FALSE(*(*channel)->Poll());
    const absl::Status early = (*channel)->Install();
    EXPECT_THAT(std::string(early.message()), HasSubstr("1 of at least 2 micro-batches"));
    AddTo(**channel, comm->rank(), 1);
    EXPECT_TRUE(*(*channel)->Poll());  // nothing is under way
    AddTo(**channel, comm->rank(), 2);
    EXPECT_TRUE(*(*channel)->Poll());
    EXPECT_THAT(std::string((*channel)->Add(1, 0).message()), HasSubstr("above 3 of this round"));
    EXPECT_EQ((*channel)->Install(), absl::OkStatus());
    Meet(*comm);
  });
}

TEST(GradientChannel, WarmupRoundsAreSynchronous) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco), plain(DelayMethod::kZero1);
    floats.options.warmup_rounds = 2;
    auto channel = GradientChannel::Create(*comm, floats.options);
    auto zero1 = GradientChannel::Create(*comm, plain.options);
    ASSERT_TRUE(channel.ok() && zero1.ok());
    for (int64_t j = 0; j < 2; ++j) {
      AddTo(**channel, comm->rank(), j);
      AddTo(**zero1, comm->rank(), j);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      ASSERT_EQ((*zero1)->Install(), absl::OkStatus());
      EXPECT_EQ(floats.params, plain.params);
      EXPECT_EQ((*channel)->info().commits, j + 1);
    }
    AddTo(**channel, comm->rank(), 2);
    ASSERT_EQ((*channel)->Install(), absl::OkStatus());  // A_0
    EXPECT_EQ(floats.params, plain.params);
    AddTo(**channel, comm->rank(), 3);
    ASSERT_EQ((*channel)->Install(), absl::OkStatus());
    EXPECT_NE(floats.params, plain.params);  // the estimate
    Meet(*comm);
  });
}

// ---- Checkpoints -----------------------------------------------------------------------------------

// A run of `installs` installs, of which `saved` were made before the checkpoint; from it, if `resumes`.
std::vector<float> RunOf(Communicator& comm, DelayMethod method, OptimizerKind kind, int installs,
                         int saved, bool resumes, const CheckpointOptions& checkpoint) {
  Floats floats(method, kind);
  floats.options.schedule.warmup = 3;
  for (int i = 0; i < installs; ++i) {
    floats.options.scripted.push_back(1 + (i + comm.rank()) % 3);
  }
  auto channel = GradientChannel::Create(comm, floats.options);
  EXPECT_TRUE(channel.ok()) << channel.status();
  int64_t j = 0;  // the caller's cursor
  EXPECT_EQ((*channel)->AddState("cursor", Holder::kRank, DType::kI64, &j, 1), absl::OkStatus());
  if (resumes) {
    EXPECT_EQ((*channel)->Load(checkpoint), absl::OkStatus());
  }
  for (int i = resumes ? saved : 0; i < installs; ++i) {
    for (int32_t n = 0; n < floats.options.scripted[static_cast<size_t>(i)]; ++n) {
      auto* const sum = static_cast<float*>((*channel)->gradients());
      for (int64_t k = 0; k < kCount; ++k) {  // at the parameters that are installed
        sum[k] += GradientOf(comm.rank(), j, k) + 0.1f * floats.params[static_cast<size_t>(k)];
      }
      EXPECT_EQ((*channel)->Add(1, 1), absl::OkStatus());
      ++j;
    }
    if (!resumes && i + 1 == saved) {
      const absl::Status early = (*channel)->Save(checkpoint);
      EXPECT_THAT(std::string(early.message()), HasSubstr("since the last install"));
    }
    EXPECT_EQ((*channel)->Install(), absl::OkStatus());
    if (!resumes && i + 1 == saved) {
      EXPECT_EQ((*channel)->Save(checkpoint), absl::OkStatus());
    }
  }
  Meet(comm);
  return floats.params;
}

TEST(GradientChannel, ExactResumeIsBitEqualWithEveryMethodAndOptimizer) {
  for (const DelayMethod method :
       {DelayMethod::kAcco, DelayMethod::kDpu, DelayMethod::kWp, DelayMethod::kZero1}) {
    for (const OptimizerKind kind :
         {OptimizerKind::kSgd, OptimizerKind::kAdamw, OptimizerKind::kAgd}) {
      for (const int saved : {3, 4}) {  // after a commit; after an estimate
        const Directory directory;
        const CheckpointOptions checkpoint =
            To(directory, CheckpointKind::kExact, saved == 3 ? kOneFile : kWays[3]);
        RunRanks(3, [&](const std::shared_ptr<Communicator>& comm) {
          const auto straight = RunOf(*comm, method, kind, 9, saved, false, checkpoint);
          EXPECT_EQ(RunOf(*comm, method, kind, 9, saved, true, checkpoint), straight);
        });
      }
    }
  }
}

TEST(GradientChannel, PortableResumeOnAnotherNumberOfRanksIsAtTheLastCommit) {
  const Directory directory;
  const CheckpointOptions checkpoint = To(directory, CheckpointKind::kPortable);
  const auto run = [&](int ranks, bool loads) {
    std::vector<float> params;
    std::mutex mutex;
    RunRanks(ranks, [&](const std::shared_ptr<Communicator>& comm) {
      Floats floats(DelayMethod::kAcco);
      floats.options.limit = 3;
      auto channel = GradientChannel::Create(*comm, floats.options);
      ASSERT_TRUE(channel.ok());
      if (loads) {
        ASSERT_EQ((*channel)->Load(checkpoint), absl::OkStatus());
        EXPECT_EQ((*channel)->info().commits, 3);
        EXPECT_TRUE((*channel)->info().finished);
      }
      for (int64_t j = 0; !(*channel)->info().finished; ++j) {
        AddTo(**channel, comm->rank(), j);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      }
      if (!loads) {
        ASSERT_EQ((*channel)->Save(checkpoint), absl::OkStatus());
      }
      const std::lock_guard<std::mutex> lock(mutex);
      params = floats.params;
    });
    return params;
  };
  const std::vector<float> saved = run(2, false);
  for (const int ranks : {1, 2, 5}) {
    EXPECT_EQ(run(ranks, true), saved) << ranks;
  }
}

// ---- Errors ----------------------------------------------------------------------------------------

TEST(GradientChannel, OptionsAreRefusedByNameAndValue) {
  struct Case {
    const char* says;
    std::function<void(ChannelOptions& o)> change;
  };
  const Case cases[] = {
      {"count: 0", [](auto& o) { o.count = 0; }},
      {"params: NULL", [](auto& o) { o.params = nullptr; }},
      {"optim: NULL", [](auto& o) { o.optimizer = nullptr; }},
      {"optim: given", [](auto& o) { o.step = Adamw::Step; }},
      {"params_dtype: i32", [](auto& o) { o.params_dtype = DType::kI32; }},
      {"params_dtype: f64", [](auto& o) { o.params_dtype = DType::kF64; }},
      {"grads_dtype: bf16", [](auto& o) { o.grads_dtype = DType::kBF16; }},
      {"wire_dtype: f64", [](auto& o) { o.wire_dtype = DType::kF64; }},
      {"min_microbatches: 0", [](auto& o) { o.min_microbatches = 0; }},
      {"max_microbatches: 1",
       [](auto& o) {
         o.min_microbatches = 2;
         o.max_microbatches = 1;
       }},
      {"scripted_counts: 0",
       [](auto& o) {
         o.scripted = {1, 0};
       }},
      {"scripted_counts: 3",
       [](auto& o) {
         o.scripted = {3};
         o.max_microbatches = 3;
       }},
      {"warmup_rounds: -1", [](auto& o) { o.warmup_rounds = -1; }},
      {"warmup_rounds: 2 has no effect with method zero1",
       [](auto& o) {
         o.warmup_rounds = 2;
         o.method = DelayMethod::kZero1;
       }},
      {"clip_norm: nan", [](auto& o) { o.clip_norm = NAN; }},
      {"lr: -1", [](auto& o) { o.schedule.lr = -1; }},
      {"min_lr: 5 is above lr", [](auto& o) { o.schedule.min_lr = 5; }},
      {"min_lr: 0.001 has no effect", [](auto& o) { o.schedule.min_lr = 0.001; }},
      {"schedule_warmup: 9 is not below schedule_total 9",
       [](auto& o) { o.schedule.warmup = o.schedule.total = 9; }},
      {"limit: -1", [](auto& o) { o.limit = -1; }},
      {"timeout_ns: -1", [](auto& o) { o.timeout_ns = -1; }},
  };
  for (const Case& c : cases) {
    Floats floats(DelayMethod::kAcco);
    c.change(floats.options);
    const absl::Status status = CheckOptions(floats.options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.says;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(c.says));
  }
}

TEST(GradientChannel, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco);
    floats.options.timeout_ns = 200 * kMillisecond;
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    if (comm->rank() == 0) {
      AddTo(**channel, 0, 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      AddTo(**channel, 0, 1);
      const absl::Status status = (*channel)->Install();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::AllOf(HasSubstr("acco: round 1"), HasSubstr("rank 1")));
      EXPECT_EQ((*channel)->Add(1, 0), status);
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(GradientChannel, DestroyingOneDuringARoundEndsTheOthers) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco);
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    if (comm->rank() == 0) {
      AddTo(**channel, 0, 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      channel->reset();  // the other has not begun it
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() == 1) {
      AddTo(**channel, 1, 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      AddTo(**channel, 1, 1);
      EXPECT_FALSE((*channel)->Install().ok());
    }
  });
}

}  // namespace
}  // namespace entrain
