// Averages of integers through the C ABI, in every call that takes an operator. The sum of an
// average must not wrap around.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

template <typename T>
constexpr entrain_dtype_t kTypeOf = sizeof(T) == 1 ? std::is_signed_v<T> ? ENTRAIN_I8 : ENTRAIN_U8
                                    : sizeof(T) == 2
                                        ? std::is_signed_v<T> ? ENTRAIN_I16 : ENTRAIN_U16
                                    : sizeof(T) == 4
                                        ? std::is_signed_v<T> ? ENTRAIN_I32 : ENTRAIN_U32
                                    : std::is_signed_v<T> ? ENTRAIN_I64
                                                          : ENTRAIN_U64;

template <typename T>
class IntegerAverage : public testing::Test {};
using Integers =
    testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>;
TYPED_TEST_SUITE(IntegerAverage, Integers);

// Returns rank r's values: the extremes first, then anything.
template <typename T>
std::vector<T> ValuesOf(int rank, size_t count) {
  constexpr T kMost = std::numeric_limits<T>::max(), kLeast = std::numeric_limits<T>::min();
  std::vector<T> values(count);
  std::mt19937_64 random(static_cast<uint64_t>(rank + 1));
  for (size_t i = 0; i < count; ++i) {
    switch (i % 6) {
      case 0:
        values[i] = kMost;
        break;
      case 1:
        values[i] = kLeast;
        break;
      case 2:
        values[i] = rank % 2 == 0 ? kMost : kLeast;
        break;
      case 3:
        values[i] = static_cast<T>(kMost - static_cast<T>(rank));
        break;
      case 4:
        values[i] = static_cast<T>(kLeast + static_cast<T>(rank));
        break;
      default:
        values[i] = static_cast<T>(random());
    }
  }
  return values;
}

template <typename T>
std::vector<T> Averages(int ranks, size_t count) {
  std::vector<__int128> sums(count);
  for (int r = 0; r < ranks; ++r) {
    const std::vector<T> values = ValuesOf<T>(r, count);
    for (size_t i = 0; i < count; ++i) {
      sums[i] += values[i];
    }
  }
  std::vector<T> averages;
  for (const __int128 sum : sums) {
    averages.push_back(static_cast<T>(sum / ranks));
  }
  return averages;
}

// The forms of a call.
enum class Form { kBlocking, kStarted, kBatched, kReduction, kRankOrder };

using Options = const entrain_call_options_t*;

template <typename Call>
void Make(const Rank& self, Form form, const Call& call) {
  entrain_call_options_t options;
  entrain_call_options_init(&options);
  entrain_work_t* work = nullptr;
  switch (form) {
    case Form::kBlocking:
      ASSERT_OK(call(ENTRAIN_AVG, nullptr, nullptr));
      return;
    case Form::kStarted:
      ASSERT_OK(call(ENTRAIN_AVG, nullptr, &work));
      break;
    case Form::kBatched:
      ASSERT_OK(entrain_batch_create(self.comm, &options.batch));
      ASSERT_OK(call(ENTRAIN_AVG, &options, nullptr));
      ASSERT_OK(entrain_batch_start(options.batch, &work));
      break;
    case Form::kReduction:
      ASSERT_OK(entrain_reduction_builtin(ENTRAIN_AVG, &options.reduction));
      ASSERT_OK(call(ENTRAIN_REDUCTION, &options, nullptr));
      entrain_reduction_destroy(options.reduction);
      return;
    case Form::kRankOrder:
      options.determinism = ENTRAIN_DETERMINISM_RANK_ORDER;
      ASSERT_OK(call(ENTRAIN_AVG, &options, nullptr));
      return;
  }
  EXPECT_OK(entrain_work_wait(work, -1));
  entrain_work_free(work);
  entrain_batch_destroy(options.batch);
}

template <typename T>
void CheckCalls(const Rank& self, Form form, size_t count) {
  const entrain_dtype_t dtype = kTypeOf<T>;
  const auto ranks = static_cast<size_t>(self.size);
  const std::vector<T> in = ValuesOf<T>(self.rank, count * ranks);
  const std::vector<T> want = Averages<T>(self.size, count * ranks);
  const auto mine = want.begin() + static_cast<std::ptrdiff_t>(count) * self.rank;
  const std::vector<T> part(mine, mine + static_cast<std::ptrdiff_t>(count));

  std::vector<T> all(in.size()), one(count), at_root(in.size());
  Make(self, form, [&](entrain_op_t op, Options options, entrain_work_t** work) {
    return entrain_all_reduce(self.comm, in.data(), all.data(), in.size(), dtype, op, options,
                              work);
  });
  EXPECT_EQ(all, want);
  if (form != Form::kBatched) {
    std::vector<T> in_place = in;
    Make(self, form, [&](entrain_op_t op, Options options, entrain_work_t** work) {
      return entrain_all_reduce(self.comm, in_place.data(), in_place.data(), in.size(), dtype, op,
                                options, work);
    });
    EXPECT_EQ(in_place, want);
  }
  Make(self, form, [&](entrain_op_t op, Options options, entrain_work_t** work) {
    return entrain_reduce(self.comm, in.data(), at_root.data(), in.size(), dtype, op, self.size - 1,
                          options, work);
  });
  EXPECT_TRUE(self.rank != self.size - 1 || at_root == want);
  Make(self, form, [&](entrain_op_t op, Options options, entrain_work_t** work) {
    return entrain_reduce_scatter(self.comm, in.data(), one.data(), count, dtype, op, options,
                                  work);
  });
  EXPECT_EQ(one, part);
  std::vector<size_t> counts(ranks, count);
  std::fill(one.begin(), one.end(), T{0});
  Make(self, form, [&](entrain_op_t op, Options options, entrain_work_t** work) {
    return entrain_reduce_scatter_v(self.comm, in.data(), one.data(), counts.data(), dtype, op,
                                    options, work);
  });
  EXPECT_EQ(one, part);
}

TYPED_TEST(IntegerAverage, DoesNotWrapInAnyCall) {
  for (const int size : {1, 2, 3, 4, 5}) {
    RunWorld(size, [](const Rank& self) {
      for (const Form form :
           {Form::kBlocking, Form::kStarted, Form::kBatched, Form::kReduction, Form::kRankOrder}) {
        for (const size_t count : {size_t{6}, size_t{700}}) {
          SCOPED_TRACE(testing::Message() << self.size << " ranks, rank " << self.rank << ", form "
                                          << static_cast<int>(form) << ", count " << count);
          CheckCalls<TypeParam>(self, form, count);
        }
      }
    });
  }
}

// An algorithm that adds in steps cannot serve the call, whatever the caller asks for.
TYPED_TEST(IntegerAverage, DoesNotWrapWithAnyAlgorithm) {
  for (const char* algorithms :
       {"all_reduce:ring,reduce:ring,reduce_scatter:ring", "all_reduce:recursive_doubling",
        "all_reduce:halving_doubling,reduce:halving_doubling,reduce_scatter:halving_doubling",
        "all_reduce:direct,reduce:direct,reduce_scatter:direct",
        "all_reduce:two_step,reduce:two_step", "reduce:tree"}) {
    SCOPED_TRACE(algorithms);
    RunWorld(4,
             [](const Rank& self) {
               CheckCalls<TypeParam>(self, Form::kBlocking, 100);
               CheckCalls<TypeParam>(self, Form::kBlocking, 30000);
             },
             {.algorithms = algorithms});
  }
}

// Replicas of two ranks. The average of their averages would be another number.
TYPED_TEST(IntegerAverage, OfAllReplicasIsNotAnAverageOfAverages) {
  RunWorld(4, [](const Rank& self) {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    mesh_config.shard = 2;
    entrain_mesh_t* mesh = nullptr;
    ASSERT_OK(entrain_mesh_create(self.comm, &mesh_config, &mesh));
    const size_t layer = 8;
    entrain_shard_config_t shard_config;
    entrain_shard_config_init(&shard_config);
    shard_config.layers = 1;
    shard_config.layer_counts = &layer;
    entrain_shard_t* shard = nullptr;
    ASSERT_OK(entrain_shard_create(mesh, &shard_config, &shard));
    size_t slab = 0;
    ASSERT_OK(entrain_shard_slab_count(shard, &slab));
    std::vector<float> params(slab), grads(slab);
    ASSERT_OK(entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32));
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.shard = shard;
    config.local_sgd_warmup_steps = 1;  // joint calls are legal during the warm-up
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(mesh, &config, &edit));
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    ASSERT_OK(entrain_edit_wait_layer(edit, 0));
    std::vector<TypeParam> in = ValuesOf<TypeParam>(self.rank, 60);
    std::vector<TypeParam> want = Averages<TypeParam>(4, 60), out(60);
    const TypeParam few[] = {3, 0, 0, 1};  // averages of pairs: 1 and 0
    in.push_back(few[self.rank]);
    want.push_back(1);
    out.push_back(0);
    ASSERT_OK(entrain_edit_reduce(edit, in.data(), out.data(), in.size(), kTypeOf<TypeParam>,
                                  ENTRAIN_AVG, 0, nullptr, nullptr, nullptr));
    EXPECT_EQ(out, want);
    entrain_edit_destroy(edit);
    entrain_shard_destroy(shard);
    entrain_mesh_destroy(mesh);
  });
}

}  // namespace
}  // namespace entrain_test
