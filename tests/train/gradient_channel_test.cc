// ACCO and its baselines: properties for any counts, checkpoints, errors and ends of runs.

#include "lib/train/acco/gradient_channel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "tests/support/ranks.h"
#include "tests/train/arrays.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

// A round that is over on this rank may not be over on other ranks, which need its communicator.
void Meet(Communicator& comm) {
  EXPECT_EQ(comm.Barrier(), absl::OkStatus());
}

// ---- f32 and bf16, with the library's optimizer --------------------------------------------------

constexpr int64_t kCount = 10007;

float InitialOf(int64_t i) {
  return 0.1f * static_cast<float>(i % 17) - 0.8f;
}

// The gradient does not depend on the parameters.
float GradientOf(int rank, int64_t j, int64_t i) {
  return static_cast<float>((7 * j + 3 * i + 5 * rank) % 32 - 16) / 64;  // exact in any order
}

std::vector<float> Initial() {
  std::vector<float> values;
  for (int64_t i = 0; i < kCount; ++i) {
    values.push_back(InitialOf(i));
  }
  return values;
}

struct Floats {
  std::vector<float> array = Initial();
  std::shared_ptr<const Optimizer> optimizer;
  ChannelOptions options;

  explicit Floats(DelayMethod method, OptimizerKind kind = OptimizerKind::kAdamw) {
    OptimizerConfig config;
    config.kind = kind;
    config.weight_decay = 0.1;
    optimizer = *MakeOptimizer(config);
    options.method = method;
    options.count = kCount;
    options.params = array.data();
    options.optimizer = optimizer;
    options.lr = 0.01;
  }
  const std::vector<float>& params() const { return array; }
  // Adds a micro-batch. Its elements are gradient(i).
  template <typename F>
  void Add(GradientChannel& channel, int64_t tokens, F gradient) const {
    auto sum = ReadArray<float>(channel.gradients(), kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      sum[static_cast<size_t>(i)] += gradient(i);
    }
    WriteArray(channel.gradients(), sum);
    ASSERT_EQ(channel.Add(1, tokens), absl::OkStatus());
  }
};

void AddTo(const Floats& floats, GradientChannel& channel, int rank, int64_t j) {
  floats.Add(channel, 3, [&](int64_t i) { return GradientOf(rank, j, i); });
}

// If gradients do not depend on the parameters, ACCO equals synchronous AdamW on the same counts,
// bit for bit, for any number of ranks.
TEST(Channel, ThetaIndependentGradientsMakeItSynchronousAdamw) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanks(ranks, [&](const std::shared_ptr<Communicator>& comm) {
      Floats acco(DelayMethod::kAcco);
      std::vector<float> alone = Initial();
      acco.options.limit = 4;  // so that no round is under way at the end
      auto channel = GradientChannel::Create(*comm, acco.options);
      ASSERT_TRUE(channel.ok()) << channel.status();
      std::vector<float> m(kCount, 0), v(kCount, 0), mean(kCount);
      float* const state[] = {m.data(), v.data()};
      AddTo(acco, **channel, comm->rank(), 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      for (int64_t t = 0; t < 4; ++t) {
        AddTo(acco, **channel, comm->rank(), 2 * t + 1);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());  // the estimate
        AddTo(acco, **channel, comm->rank(), 2 * t + 2);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());  // the commit of 2 t and 2 t + 1
        std::fill(mean.begin(), mean.end(), 0.0f);
        for (int rank = 0; rank < ranks; ++rank) {
          for (int64_t i = 0; i < kCount; ++i) {
            mean[static_cast<size_t>(i)] +=
                GradientOf(rank, 2 * t, i) + GradientOf(rank, 2 * t + 1, i);
          }
        }
        BestKernels().scale_any(DType::kF32, mean.data(), mean.data(), kCount, 1 / (2.0 * ranks));
        acco.optimizer->Step({.count = kCount,
                              .master = alone.data(),
                              .grads = mean.data(),
                              .state = state,
                              .step = t + 1,
                              .lr = 0.01},
                             Apply::kCommit);
        EXPECT_EQ(acco.params(), alone) << ranks << " ranks, commit " << t + 1;
      }
      EXPECT_TRUE((*channel)->info().finished);
      EXPECT_EQ((*channel)->info().tokens, ranks * 3 * 8);
    });
  }
}

TEST(Channel, Bf16ParametersHaveTheSameBitsOnAllRanksAndMastersTheirOwn) {
  for (const DType held : {DType::kBF16, DType::kF32}) {
    for (const DType wire : {DType::kBF16, DType::kF32}) {
      std::mutex mutex;
      std::set<std::vector<uint16_t>> seen;
      RunRanks(3, [&](const std::shared_ptr<Communicator>& comm) {
        Floats floats(DelayMethod::kAcco);
        std::vector<uint16_t> initial(kCount);
        BestKernels().cast(initial.data(), DType::kBF16, Initial().data(), DType::kF32, kCount);
        std::vector<uint16_t> params = initial;
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
          void* const gradients = (*channel)->gradients();
          auto there = ReadArray<uint8_t>(gradients, kCount * SizeOf(held));
          BestKernels().cast(sum.data(), DType::kF32, there.data(), held, kCount);
          for (int64_t i = 0; i < kCount; ++i) {
            sum[static_cast<size_t>(i)] += GradientOf(comm->rank(), j, i);
          }
          BestKernels().cast(there.data(), held, sum.data(), DType::kF32, kCount);
          WriteArray(gradients, there);
          ASSERT_EQ((*channel)->Add(1, 0), absl::OkStatus());
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
        const std::lock_guard<std::mutex> lock(mutex);
        seen.insert(params);
        const int64_t shard = (kCount + 2) / 3;
        EXPECT_EQ((*channel)->info().bytes_held,
                  SizeOf(held) * kCount + SizeOf(wire) * 3 * shard + 12 * shard + 8 * shard);
      });
      EXPECT_EQ(seen.size(), 1u);
    }
  }
}

// f32 parameters whose gradients travel as bf16, which is narrower than the parameters.
TEST(Channel, GradientsMayTravelNarrowerThanParameters) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats wide(DelayMethod::kZero1), narrow(DelayMethod::kZero1);
    narrow.options.wire_dtype = DType::kBF16;
    auto a = GradientChannel::Create(*comm, wide.options);
    auto b = GradientChannel::Create(*comm, narrow.options);
    ASSERT_TRUE(a.ok() && b.ok());
    for (int64_t j = 0; j < 3; ++j) {
      AddTo(wide, **a, comm->rank(), j);
      AddTo(narrow, **b, comm->rank(), j);
      ASSERT_EQ((*a)->Install(), absl::OkStatus());
      ASSERT_EQ((*b)->Install(), absl::OkStatus());
    }
    // The sums are small multiples of 1/64, which bf16 represents exactly.
    EXPECT_EQ(wide.params(), narrow.params());
    Meet(*comm);
  });
}

// ---- Counts, schedules, ends ---------------------------------------------------------------------

TEST(Channel, ScheduleCountsInTheUnitThatIsSaid) {
  for (const ProgressUnit unit :
       {ProgressUnit::kCommits, ProgressUnit::kGradients, ProgressUnit::kTokens}) {
    RunRanks(2, [this, unit](const std::shared_ptr<Communicator>& comm) {
      Floats floats(DelayMethod::kZero1);
      floats.options.schedule_unit = unit;
      floats.options.schedule_warmup = 1000;
      auto channel = GradientChannel::Create(*comm, floats.options);
      ASSERT_TRUE(channel.ok());
      for (int round = 0; round < 3; ++round) {
        AddTo(floats, **channel, comm->rank(), 0);
        AddTo(floats, **channel, comm->rank(), 1);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      }
      // Before the third update there were two commits, each of four micro-batches of three tokens.
      const double progress = unit == ProgressUnit::kCommits     ? 2
                              : unit == ProgressUnit::kGradients ? 8
                                                                 : 24;
      EXPECT_DOUBLE_EQ((*channel)->info().lr, 0.01 * progress / 1000);
    });
  }
}

TEST(Channel, ClippingIsByTheNormOfTheMeanOverAllShards) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kZero1, OptimizerKind::kSgd);
    floats.options.clip_norm = 2;
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    AddTo(floats, **channel, comm->rank(), comm->rank());
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

// The first step of SGD is lr times the mean gradient, so its length shows the factor.
TEST(Channel, ClippingShortensTheStep) {
  for (const DelayMethod method : {DelayMethod::kZero1, DelayMethod::kAcco}) {
    RunRanks(2, [this, method](const std::shared_ptr<Communicator>& comm) {
      std::vector<std::vector<float>> after;
      double factor = 0;
      for (const double clip : {0.0, 2.0}) {
        Floats floats(method, OptimizerKind::kSgd);
        floats.options.clip_norm = clip;
        floats.options.lr = 0.5;
        auto channel = GradientChannel::Create(*comm, floats.options);
        ASSERT_TRUE(channel.ok());
        AddTo(floats, **channel, comm->rank(), 0);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        if (method == DelayMethod::kAcco) {  // until now only an estimate
          AddTo(floats, **channel, comm->rank(), 0);
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
          AddTo(floats, **channel, comm->rank(), 0);
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
        ASSERT_EQ((*channel)->info().commits, 1);
        factor = (*channel)->info().clip_factor;
        after.push_back(floats.params());
        Meet(*comm);
      }
      ASSERT_LT(factor, 0.5);
      for (int64_t i = 0; i < kCount; ++i) {
        const auto at = static_cast<size_t>(i);
        const double mean = (GradientOf(0, 0, i) + GradientOf(1, 0, i)) / 2;
        const double decay = after[0][at] - (InitialOf(i) - 0.5 * mean);
        ASSERT_NEAR(after[1][at], InitialOf(i) - 0.5 * factor * mean + decay, 1e-6) << i;
      }
    });
  }
}

// A slower rank contributes less and does not delay the others' gradients. All ranks end at the
// same commit.
TEST(Channel, AFastRankAddsWhileASlowOneComputesAndAllEndAtTheSameCommit) {
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
        if (comm->rank() == 1) {  // this rank computes longer
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        AddTo(floats, **channel, comm->rank(), added++);
        const absl::StatusOr<bool> ready = (*channel)->Poll();
        ASSERT_TRUE(ready.ok()) << ready.status();
        if (*ready) {
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // stands for computing
      }
      const ChannelInfo info = (*channel)->info();
      EXPECT_TRUE(absl::IsFailedPrecondition((*channel)->Add(1, 0)));
      const std::lock_guard<std::mutex> lock(mutex);
      infos.push_back(info);
      params.insert(floats.params());
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

TEST(Channel, MinimumAndMaximumOfARound) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco);
    floats.options.min_microbatches = 2;
    floats.options.max_microbatches = 3;
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    AddTo(floats, **channel, comm->rank(), 0);
    EXPECT_FALSE(*(*channel)->Poll());
    const absl::Status early = (*channel)->Install();
    EXPECT_THAT(std::string(early.message()), HasSubstr("1 of at least 2 micro-batches"));
    AddTo(floats, **channel, comm->rank(), 1);
    EXPECT_TRUE(*(*channel)->Poll());  // nothing is under way
    AddTo(floats, **channel, comm->rank(), 2);
    EXPECT_TRUE(*(*channel)->Poll());
    EXPECT_THAT(std::string((*channel)->Add(1, 0).message()), HasSubstr("above 3 of this round"));
    EXPECT_EQ((*channel)->Install(), absl::OkStatus());
    Meet(*comm);
  });
}

TEST(Channel, WarmupRoundsAreSynchronous) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco), plain(DelayMethod::kZero1);
    floats.options.warmup_rounds = 2;
    auto channel = GradientChannel::Create(*comm, floats.options);
    auto zero1 = GradientChannel::Create(*comm, plain.options);
    ASSERT_TRUE(channel.ok() && zero1.ok());
    for (int64_t j = 0; j < 2; ++j) {
      AddTo(floats, **channel, comm->rank(), j);
      AddTo(plain, **zero1, comm->rank(), j);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      ASSERT_EQ((*zero1)->Install(), absl::OkStatus());
      EXPECT_EQ(floats.params(), plain.params());
      EXPECT_EQ((*channel)->info().commits, j + 1);
    }
    AddTo(floats, **channel, comm->rank(), 2);
    ASSERT_EQ((*channel)->Install(), absl::OkStatus());  // A_0
    EXPECT_EQ(floats.params(), plain.params());
    AddTo(floats, **channel, comm->rank(), 3);
    ASSERT_EQ((*channel)->Install(), absl::OkStatus());
    EXPECT_NE(floats.params(), plain.params());  // the estimate
    Meet(*comm);
  });
}

// ---- Parameter groups ------------------------------------------------------------------------------

std::shared_ptr<const Optimizer> RuleOf(OptimizerKind kind, double decay, double momentum = 0) {
  OptimizerConfig config;
  config.kind = kind;
  config.weight_decay = decay;
  config.momentum = momentum;
  return *MakeOptimizer(config);
}

// Groups of the parameters: [0, 5) the config's AdamW; [5, 4000) SGD with momentum, which has one
// array; [4000, 4001) AdamW without decay at a tenth of the rate; [4001, 9000) AGD; the rest the
// config's AdamW.
std::vector<ParameterGroup> SomeGroups() {
  return {{5, 3995, RuleOf(OptimizerKind::kSgd, 0.01, 0.9), 0.5},
          {4000, 1, RuleOf(OptimizerKind::kAdamw, 0), 0.1},
          {4001, 4999, RuleOf(OptimizerKind::kAgd, 0.1), 1}};
}

// Four commits of a run with these groups, with `batches` micro-batches per rank in each commit.
// Every optimizer steps a full vector, and the expected parameters are cut out of these vectors.
std::vector<float> Reference(const ChannelOptions& options, int ranks, int batches) {
  std::vector<float> wanted(kCount);
  for (const ParameterGroup& group : AllGroups(options)) {
    std::vector<float> alone = Initial(), mean(kCount);
    std::vector<std::vector<float>> arrays(kMaxStateArrays, std::vector<float>(kCount, 0));
    std::vector<float*> state;
    for (int i = 0; i < group.optimizer->state_arrays(); ++i) {
      state.push_back(arrays[static_cast<size_t>(i)].data());
    }
    for (int64_t step = 1; step <= 4; ++step) {
      std::fill(mean.begin(), mean.end(), 0.0f);
      for (int rank = 0; rank < ranks; ++rank) {
        for (int64_t j = batches * (step - 1); j < batches * step; ++j) {
          for (int64_t i = 0; i < kCount; ++i) {
            mean[static_cast<size_t>(i)] += GradientOf(rank, j, i);
          }
        }
      }
      BestKernels().scale_any(DType::kF32, mean.data(), mean.data(), kCount,
                              1 / static_cast<double>(batches * ranks));
      group.optimizer->Step({.count = kCount,
                             .master = alone.data(),
                             .grads = mean.data(),
                             .state = state,
                             .step = step,
                             .lr = 0.01 * group.lr_scale},
                            Apply::kCommit);
    }
    std::copy_n(alone.begin() + group.first, group.count, wanted.begin() + group.first);
  }
  return wanted;
}

TEST(Channel, EachGroupStepsByItsOwnOptimizerAndRateWithEveryMethod) {
  for (const DelayMethod method :
       {DelayMethod::kAcco, DelayMethod::kDpu, DelayMethod::kWp, DelayMethod::kZero1}) {
    for (const int ranks : {1, 3}) {
      RunRanks(ranks, [&](const std::shared_ptr<Communicator>& comm) {
        Floats floats(method);
        floats.options.groups = SomeGroups();
        floats.options.limit = 4;
        const int batches = method == DelayMethod::kAcco ? 2 : 1;
        const auto expected = Reference(floats.options, ranks, batches);
        auto channel = GradientChannel::Create(*comm, floats.options);
        ASSERT_TRUE(channel.ok()) << channel.status();
        for (int64_t j = 0; !(*channel)->info().finished; ++j) {
          AddTo(floats, **channel, comm->rank(), j);
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
        const std::vector<float> params = floats.params();
        EXPECT_EQ(params, expected) << static_cast<int>(method) << ", " << ranks << " ranks";
        EXPECT_EQ((*channel)->info().lr, 0.01);
        Meet(*comm);
      });
    }
  }
}

TEST(Channel, OneGroupOfEverythingIsNone) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> params[2];
    for (const bool grouped : {false, true}) {
      Floats floats(DelayMethod::kAcco);
      floats.options.limit = 3;
      if (grouped) {
        floats.options.groups = {{0, kCount, floats.options.optimizer, 1}};
        floats.options.optimizer = nullptr;
      }
      auto channel = GradientChannel::Create(*comm, floats.options);
      ASSERT_TRUE(channel.ok()) << channel.status();
      for (int64_t j = 0; !(*channel)->info().finished; ++j) {
        const std::vector<float> at = floats.params();
        floats.Add(**channel, 1, [&](int64_t k) {
          return GradientOf(comm->rank(), j, k) + 0.1f * at[static_cast<size_t>(k)];
        });
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      }
      params[grouped] = floats.params();
      Meet(*comm);
    }
    EXPECT_EQ(params[0], params[1]);
  });
}

TEST(Channel, GroupsThatDifferAreNamedByTheirNumber) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco);
    floats.options.groups = SomeGroups();
    floats.options.groups[1].lr_scale = comm->rank() == 0 ? 1 : 2;
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_FALSE(channel.ok());
    EXPECT_THAT(std::string(channel.status().message()),
                HasSubstr("groups[1].lr_scale: 1 on rank 0, 2 on rank 1"));
  });
}

TEST(Channel, CheckpointsGoOnWithTheSameGroupsOnly) {
  const Directory directory;
  for (const CheckpointKind kind : {CheckpointKind::kExact, CheckpointKind::kPortable}) {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
      const CheckpointOptions checkpoint = To(directory, kind);
      std::vector<float> straight;
      // The groups of each run, and the error that its load must give.
      struct Run {
        std::vector<ParameterGroup> groups;
        const char* refused;
      };
      std::vector<Run> runs(6, {SomeGroups(), nullptr});  // runs[0] saves, runs[1] continues
      runs[2].groups[1] = {3990, 1, runs[2].groups[1].optimizer, 0.1};
      runs[2].groups[0].count = 3000;
      runs[2].refused = "groups[0] of the checkpoint has first 5, count 3995, 1 state arrays; here";
      runs[3].groups[1].optimizer = RuleOf(OptimizerKind::kSgd, 0);
      runs[3].refused = "groups[1] of the checkpoint has first 4000, count 1, 2 state arrays; here";
      runs[4].groups.pop_back();
      runs[4].refused = "group/2";
      runs[5].groups.clear();
      runs[5].refused = "group/";
      for (size_t run = 0; run < runs.size(); ++run) {
        Floats floats(DelayMethod::kZero1);
        floats.options.groups = runs[run].groups;
        auto channel = GradientChannel::Create(*comm, floats.options);
        ASSERT_TRUE(channel.ok()) << channel.status();
        if (run > 0) {
          const absl::Status loaded = (*channel)->state().Load(checkpoint);
          if (runs[run].refused != nullptr) {
            EXPECT_TRUE(absl::IsFailedPrecondition(loaded)) << run << ": " << loaded;
            EXPECT_THAT(std::string(loaded.message()), HasSubstr(runs[run].refused));
            EXPECT_EQ(floats.params(), Initial());
            continue;
          }
          ASSERT_EQ(loaded, absl::OkStatus());
        }
        for (int64_t j = run == 0 ? 0 : 2; j < 4; ++j) {
          AddTo(floats, **channel, comm->rank(), j);
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
          if (j == 1) {
            ASSERT_EQ((*channel)->state().Save(checkpoint), absl::OkStatus());
          }
        }
        const std::vector<float> end = floats.params();
        straight = run == 0 ? end : straight;
        EXPECT_EQ(end, straight);
      }
      Meet(*comm);
    });
  }
}

// ---- Checkpoints -----------------------------------------------------------------------------------

// A run of `installs` installs, of which `saved` come before the checkpoint. `resumes`: it
// continues from the checkpoint.
std::vector<float> RunOf(Communicator& comm, DelayMethod method, OptimizerKind kind, int installs,
                         int saved, bool resumes, const CheckpointOptions& checkpoint) {
  Floats floats(method, kind);
  floats.options.schedule_warmup = 3;
  for (int i = 0; i < installs; ++i) {
    floats.options.scripted.push_back(1 + (i + comm.rank()) % 3);
  }
  auto channel = GradientChannel::Create(comm, floats.options);
  EXPECT_TRUE(channel.ok()) << channel.status();
  int64_t j = 0;  // the caller's cursor
  EXPECT_EQ((*channel)->state().AddState("cursor", Holder::kRank, DType::kI64, &j, 1),
            absl::OkStatus());
  if (resumes) {
    EXPECT_EQ((*channel)->state().Load(checkpoint), absl::OkStatus());
  }
  for (int i = resumes ? saved : 0; i < installs; ++i) {
    for (int32_t n = 0; n < floats.options.scripted[static_cast<size_t>(i)]; ++n) {
      const std::vector<float> at = floats.params();  // the installed parameters
      floats.Add(**channel, 1, [&](int64_t k) {
        return GradientOf(comm.rank(), j, k) + 0.1f * at[static_cast<size_t>(k)];
      });
      ++j;
    }
    if (!resumes && i + 1 == saved) {
      const absl::Status early = (*channel)->state().Save(checkpoint);
      EXPECT_THAT(std::string(early.message()), HasSubstr("since the last install"));
    }
    EXPECT_EQ((*channel)->Install(), absl::OkStatus());
    if (!resumes && i + 1 == saved) {
      EXPECT_EQ((*channel)->state().Save(checkpoint), absl::OkStatus());
    }
  }
  std::vector<float> params = floats.params();  // when the device has written them
  Meet(comm);
  return params;
}

TEST(Channel, ExactResumeIsBitEqualWithEveryMethodAndOptimizer) {
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
          EXPECT_EQ(RunOf(*comm, method, kind, 9, saved, true, checkpoint), straight)
              << static_cast<int>(method) << " " << static_cast<int>(kind) << " " << saved;
        });
      }
    }
  }
}

TEST(Channel, AnExactCheckpointOfAnotherMethodIsRefusedAndAPortableOneIsNot) {
  const Directory directory;
  RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Floats saved(DelayMethod::kZero1), other(DelayMethod::kDpu);
    auto zero1 = GradientChannel::Create(*comm, saved.options);
    auto dpu = GradientChannel::Create(*comm, other.options);
    ASSERT_TRUE(zero1.ok() && dpu.ok());
    AddTo(saved, **zero1, comm->rank(), 0);
    ASSERT_EQ((*zero1)->Install(), absl::OkStatus());
    const std::vector<float> before = other.params();
    for (const CheckpointKind kind : {CheckpointKind::kExact, CheckpointKind::kPortable}) {
      const CheckpointOptions checkpoint = To(directory, kind);
      ASSERT_EQ((*zero1)->state().Save(checkpoint), absl::OkStatus());
      const absl::Status loaded = (*dpu)->state().Load(checkpoint);
      if (kind == CheckpointKind::kExact) {
        EXPECT_TRUE(absl::IsFailedPrecondition(loaded)) << loaded;
        EXPECT_THAT(std::string(loaded.message()), HasSubstr("of method 3, and here it is 1"));
        EXPECT_EQ(other.params(), before);
      } else {
        EXPECT_EQ(loaded, absl::OkStatus());
        EXPECT_EQ(other.params(), saved.params());
      }
    }
    Meet(*comm);
  });
}

TEST(Channel, PortableResumeOnAnotherNumberOfRanksIsAtTheLastCommit) {
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
        ASSERT_EQ((*channel)->state().Load(checkpoint), absl::OkStatus());
        EXPECT_EQ((*channel)->info().commits, 3);
        EXPECT_TRUE((*channel)->info().finished);
      }
      for (int64_t j = 0; !(*channel)->info().finished; ++j) {
        AddTo(floats, **channel, comm->rank(), j);
        ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      }
      if (!loads) {
        ASSERT_EQ((*channel)->state().Save(checkpoint), absl::OkStatus());
      }
      const std::lock_guard<std::mutex> lock(mutex);
      params = floats.params();
    });
    return params;
  };
  const std::vector<float> saved = run(2, false);
  for (const int ranks : {1, 2, 5}) {
    EXPECT_EQ(run(ranks, true), saved) << ranks;
  }
}

// ---- Errors ----------------------------------------------------------------------------------------

TEST(Channel, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco);
    floats.options.timeout_ns = 200 * kMillisecond;
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    if (comm->rank() == 0) {
      AddTo(floats, **channel, 0, 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      AddTo(floats, **channel, 0, 1);
      const absl::Status status = (*channel)->Install();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::AllOf(HasSubstr("acco: round 1"), HasSubstr("rank 1")));
      EXPECT_EQ((*channel)->Add(1, 0), status);
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(Channel, WaitingEndsWhenTheTimeIsUpAndChangesNothing) {
  for (const DelayMethod method : {DelayMethod::kAcco, DelayMethod::kZero1}) {
    const bool synchronous = method == DelayMethod::kZero1;
    RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
      std::vector<float> params[2];
      for (const bool waits : {false, true}) {
        Floats floats(method);
        floats.options.limit = 2;
        auto channel = GradientChannel::Create(*comm, floats.options);
        ASSERT_TRUE(channel.ok());
        EXPECT_TRUE(absl::IsFailedPrecondition((*channel)->Wait(Deadline::After(0)).status()));
        for (int64_t j = 0; !(*channel)->info().finished; ++j) {
          AddTo(floats, **channel, comm->rank(), j);
          if (waits && comm->rank() == 1 && j == 0) {
            Meet(*comm);  // when rank 0 has timed out waiting for this rank
          } else if (waits && comm->rank() == 0 && j == (synchronous ? 0 : 1)) {
            const std::vector<float> before = floats.params();
            const auto over = (*channel)->Wait(Deadline::After(20 * kMillisecond));
            ASSERT_TRUE(over.ok()) << over.status();
            EXPECT_FALSE(*over);
            EXPECT_EQ(*(*channel)->Poll(), false);
            EXPECT_EQ(floats.params(), before);
            if (synchronous) {
              EXPECT_TRUE(absl::IsFailedPrecondition((*channel)->Add(1, 0)));
            }
            Meet(*comm);
          }
          if (waits) {
            EXPECT_EQ(*(*channel)->Wait(Deadline::Never()), true);
            // On a device, install does not wait for the parameters. Poll tells when they are
            // there.
            EXPECT_TRUE(*(*channel)->Poll());
          }
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
        params[waits] = floats.params();
        Meet(*comm);
      }
      EXPECT_EQ(params[1], params[0]) << static_cast<int>(method);
    });
  }
}

// Ranks that make the same number of installs leave when they are ready.
TEST(Channel, DestroyingOneLetsItsRoundEnd) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kDpu);
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    for (int64_t j = 0; j < 3; ++j) {
      AddTo(floats, **channel, comm->rank(), j);
      if (j == 2 && comm->rank() == 1) {  // rank 0 destroys its channel meanwhile
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
      EXPECT_EQ((*channel)->Install(), absl::OkStatus());
    }
    channel->reset();
  });
}

TEST(Channel, DestroyingOneEndsARoundThatTheOthersDoNotBegin) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Floats floats(DelayMethod::kAcco);
    floats.options.schedule = [](void*, int64_t) { return 0.1; };  // the wait is then 1 s
    auto channel = GradientChannel::Create(*comm, floats.options);
    ASSERT_TRUE(channel.ok());
    if (comm->rank() == 0) {
      AddTo(floats, **channel, 0, 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      channel->reset();
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() == 1) {
      AddTo(floats, **channel, 1, 0);
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      AddTo(floats, **channel, 1, 1);
      EXPECT_FALSE((*channel)->Install().ok());
    }
  });
}

}  // namespace
}  // namespace entrain
