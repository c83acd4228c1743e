// The threads of the ranks have different floating-point environments, as after a plug-in that has
// set "flush to zero". All ranks must get the bits that they get without this, and a call must
// leave the caller's environment as it was.
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/api/world.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace entrain_test {
namespace {

#if defined(__SSE__)
uint64_t Control() {
  return _mm_getcsr() & ~0x3fu;
}
void FlushToZero() {
  _mm_setcsr(_mm_getcsr() | 0x8040);
}
#elif defined(__aarch64__)
uint64_t Control() {
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
void FlushToZero() {
  asm volatile("msr fpcr, %0" : : "r"(Control() | (1u << 24)));
}
#endif

#if defined(__SSE__) || defined(__aarch64__)

// Gives this thread the environment of a rank: rank 0 flushes to zero, rank 1 rounds up, rank 2
// rounds toward zero, and rank 3 changes nothing.
void TakeEnvironment(int rank) {
  if (rank == 0) {
    FlushToZero();
  } else if (rank < 3) {
    std::fesetround(rank == 1 ? FE_UPWARD : FE_TOWARDZERO);
  }
}

// Half of the numbers are subnormal, and sums of the others must be rounded.
template <typename T, typename Bits>
std::vector<T> Numbers(int rank, size_t count, Bits mantissa, Bits exponents) {
  std::vector<T> numbers(count);
  std::mt19937_64 random(static_cast<uint64_t>(rank) + count);
  for (size_t i = 0; i < count; ++i) {
    auto bits = static_cast<Bits>(random());
    bits = static_cast<Bits>(i % 2 == 0 ? bits & mantissa : bits & (mantissa | exponents));
    std::memcpy(&numbers[i], &bits, sizeof(bits));
  }
  return numbers;
}
template <typename Bits>
std::vector<std::byte> AsBytes(const std::vector<Bits>& numbers) {
  const auto* const begin = reinterpret_cast<const std::byte*>(numbers.data());
  return std::vector<std::byte>(begin, begin + numbers.size() * sizeof(Bits));
}
std::vector<std::byte> NumbersOf(entrain_dtype_t dtype, int rank, size_t count) {
  switch (dtype) {
    case ENTRAIN_F64:
      return AsBytes(
          Numbers<double, uint64_t>(rank, count, (uint64_t{1} << 52) - 1, uint64_t{0x81f} << 52));
    case ENTRAIN_F16:
      return AsBytes(Numbers<uint16_t, uint16_t>(rank, count, 0x03ff, 0x9c00));
    case ENTRAIN_BF16:
      return AsBytes(Numbers<uint16_t, uint16_t>(rank, count, 0x007f, 0x8f80));
    default:
      return AsBytes(Numbers<float, uint32_t>(rank, count, 0x007fffff, 0x8f800000));
  }
}

struct Case {
  std::string name;
  const char* transports;
  int32_t progress;
  const char* algorithms;
  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

class FloatEnvironments : public testing::TestWithParam<Case> {};

TEST_P(FloatEnvironments, AllReduceGivesTheBitsOfTheLibrarysEnvironment) {
  RunWorld(4,
           [](const Rank& self) {
             const entrain_dtype_t dtypes[] = {ENTRAIN_F32, ENTRAIN_BF16, ENTRAIN_F16, ENTRAIN_F64};
             const size_t counts[] = {2, 1000, 100'000};
             std::vector<std::vector<std::byte>> want;
             for (const bool foreign : {false, true}) {
               size_t next = 0;
               if (foreign) {
                 TakeEnvironment(self.rank);
               }
               const uint64_t control = Control();
               for (const entrain_dtype_t dtype : dtypes) {
                 for (const entrain_op_t op : {ENTRAIN_SUM, ENTRAIN_AVG}) {
                   for (const size_t count : counts) {
                     for (const bool started : {false, true}) {
                       std::vector<std::byte> data = NumbersOf(dtype, self.rank, count);
                       entrain_work_t* work = nullptr;
                       ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), count,
                                                    dtype, op, nullptr, started ? &work : nullptr));
                       if (started) {
                         ASSERT_OK(entrain_work_wait(work, -1));
                         entrain_work_free(work);
                       }
                       EXPECT_EQ(Control(), control) << "rank " << self.rank;
                       if (!foreign) {
                         want.push_back(data);
                       } else {
                         EXPECT_TRUE(data == want[next++])
                             << "rank " << self.rank << ", " << entrain_dtype_name(dtype) << ", "
                             << entrain_op_name(op) << ", count " << count << ", started "
                             << started;
                       }
                     }
                   }
                 }
               }
             }
             std::fesetround(FE_TONEAREST);
           },
           {.transports = GetParam().transports,
            .algorithms = GetParam().algorithms,
            .progress = GetParam().progress});
}

INSTANTIATE_TEST_SUITE_P(
    Of, FloatEnvironments,
    testing::Values(Case{"shm", "shm", ENTRAIN_PROGRESS_THREAD, nullptr},
                    Case{"shm_caller", "shm", ENTRAIN_PROGRESS_CALLER, nullptr},
                    Case{"shm_ring", "shm", ENTRAIN_PROGRESS_THREAD, "all_reduce:ring"},
                    Case{"tcp", "tcp", ENTRAIN_PROGRESS_THREAD, nullptr},
                    Case{"tcp_caller", "tcp", ENTRAIN_PROGRESS_CALLER, nullptr},
                    Case{"tcp_ring", "tcp", ENTRAIN_PROGRESS_THREAD, "all_reduce:ring"}),
    [](const auto& test) { return test.param.name; });

// The result of a training run: the parameters of this rank.
using Run = std::vector<float> (*)(const Rank&);

constexpr int kRounds = 6;
constexpr size_t kCount = 101;

// Returns gradients near the smallest normal number, with mantissas that must be rounded. They are
// computed once, in the default environment.
float Gradient(int rank, int round, size_t i) {
  static const std::vector<float> gradients = [] {
    std::vector<float> all;
    for (int r = 0; r < 4; ++r) {
      for (int step = 0; step < kRounds; ++step) {
        for (size_t at = 0; at < kCount; ++at) {
          all.push_back(static_cast<float>(1 + r) * 1.1754944e-38f /
                        static_cast<float>(3 + step + static_cast<int>(at % 7)) *
                        (at % 2 == 0 ? 1.0f : 1e30f));
        }
      }
    }
    return all;
  }();
  return gradients[static_cast<size_t>(rank * kRounds + round) * kCount + i];
}

std::vector<float> ByChannel(const Rank& self, int32_t method) {
  std::vector<float> params(kCount, 1e-37f);
  entrain_optim_config_t rule;
  entrain_optim_config_init(&rule);
  rule.kind = ENTRAIN_OPTIM_ADAMW;
  rule.weight_decay = 0.1;
  entrain_optim_t* optim = nullptr;
  EXPECT_OK(entrain_optim_create(&rule, &optim));
  entrain_acco_config_t config;
  entrain_acco_config_init(&config);
  config.method = method;
  config.params = params.data();
  config.count = params.size();
  config.optim = optim;
  config.lr = 1e-37;
  entrain_acco_t* acco = nullptr;
  EXPECT_OK(entrain_acco_create(self.comm, &config, &acco));
  for (int round = 0; round < kRounds; ++round) {
    void* gradients = nullptr;
    EXPECT_OK(entrain_acco_gradients(acco, &gradients));
    for (size_t i = 0; i < params.size(); ++i) {
      const float gradient = Gradient(self.rank, round, i);
      std::memcpy(static_cast<float*>(gradients) + i, &gradient, sizeof(gradient));
    }
    EXPECT_OK(entrain_acco_add(acco, 1, 1));
    int32_t finished = 0;
    EXPECT_OK(entrain_acco_install(acco, &finished));
  }
  EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  entrain_acco_destroy(acco);
  entrain_optim_destroy(optim);
  return params;
}

std::vector<float> ByAcco(const Rank& self) {
  return ByChannel(self, ENTRAIN_ACCO);
}
std::vector<float> ByZero1(const Rank& self) {
  return ByChannel(self, ENTRAIN_ACCO_ZERO1);
}

std::vector<float> ByEdit(const Rank& self) {
  entrain_mesh_config_t mesh_config;
  entrain_mesh_config_init(&mesh_config);
  entrain_mesh_t* mesh = nullptr;
  EXPECT_OK(entrain_mesh_create(self.comm, &mesh_config, &mesh));
  const size_t counts[] = {40, 61};
  entrain_shard_config_t shard_config;
  entrain_shard_config_init(&shard_config);
  shard_config.layers = 2;
  shard_config.layer_counts = counts;
  entrain_shard_t* shard = nullptr;
  EXPECT_OK(entrain_shard_create(mesh, &shard_config, &shard));
  size_t slab = 0;
  EXPECT_OK(entrain_shard_slab_count(shard, &slab));
  std::vector<float> params(slab, 1e-37f), grads(slab);
  EXPECT_OK(entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32));
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  config.shard = shard;
  config.local_sgd_sync_interval = 1;
  entrain_edit_t* edit = nullptr;
  EXPECT_OK(entrain_edit_create(mesh, &config, &edit));
  for (int step = 0; step < 6; ++step) {
    int32_t syncing = 0;
    EXPECT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    for (const int32_t layer : {0, 1}) {
      EXPECT_OK(entrain_edit_wait_layer(edit, layer));
    }
    // Adds by integers, because this thread's floating-point environment is the rank's.
    for (size_t i = 0; i < params.size() && step < 5; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &params[i], sizeof(bits));
      bits += static_cast<uint32_t>(1 + self.rank) * 12345u + static_cast<uint32_t>(i) * 7u;
      std::memcpy(&params[i], &bits, sizeof(bits));
    }
    EXPECT_OK(entrain_edit_end_step(edit));
  }
  entrain_edit_destroy(edit);
  entrain_shard_destroy(shard);
  entrain_mesh_destroy(mesh);
  return params;
}

void ExpectEqualRuns(Run run) {
  Gradient(0, 0, 0);
  std::vector<std::vector<float>> results[2] = {std::vector<std::vector<float>>(4),
                                                std::vector<std::vector<float>>(4)};
  for (const bool foreign : {false, true}) {
    RunWorld(4, [&](const Rank& self) {
      if (foreign) {
        TakeEnvironment(self.rank);
      }
      const uint64_t control = Control();
      results[foreign ? 1 : 0][static_cast<size_t>(self.rank)] = run(self);
      EXPECT_EQ(Control(), control);
      std::fesetround(FE_TONEAREST);
    });
  }
  for (const auto& of_environment : results) {
    for (const std::vector<float>& params : of_environment) {
      EXPECT_TRUE(AsBytes(params) == AsBytes(results[0][0]));
    }
  }
}

TEST(FloatEnvironment, EditGivesEqualParameters) {
  ExpectEqualRuns(ByEdit);
}
TEST(FloatEnvironment, AccoGivesEqualParameters) {
  ExpectEqualRuns(ByAcco);
}
TEST(FloatEnvironment, Zero1GivesEqualParameters) {
  ExpectEqualRuns(ByZero1);
}

// A function of the caller changes the environment of the thread on which the library calls it.
TEST(FloatEnvironment, AFunctionOfTheCallerDoesNotChangeIt) {
  RunWorld(2, [](const Rank& self) {
    const auto add = [](void* dst, const void* src, size_t count, entrain_dtype_t,
                        void*) -> int32_t {
      for (size_t i = 0; i < count; ++i) {
        static_cast<float*>(dst)[i] += static_cast<const float*>(src)[i];
      }
      FlushToZero();
      return 0;
    };
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    ASSERT_OK(entrain_reduction_user(add, nullptr, 1, 1, &options.reduction));
    for (int call = 0; call < 2; ++call) {
      const float tiny = 1e-40f, twice = tiny + tiny;
      float sum = tiny;
      ASSERT_OK(entrain_all_reduce(self.comm, &sum, &sum, 1, ENTRAIN_F32, ENTRAIN_REDUCTION,
                                   &options, nullptr));
      EXPECT_EQ(sum, twice) << call;
    }
    entrain_reduction_destroy(options.reduction);
  });
}

#endif

}  // namespace
}  // namespace entrain_test
