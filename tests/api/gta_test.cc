// Task-arithmetic reductions through the C ABI.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

// Options of a call with a reduction of these settings.
class Options {
 public:
  explicit Options(const entrain_gta_config_t& config) {
    entrain_call_options_init(&options_);
    EXPECT_OK(entrain_reduction_gta(&config, &options_.reduction));
  }
  ~Options() { entrain_reduction_destroy(options_.reduction); }
  const entrain_call_options_t* get() const { return &options_; }

 private:
  entrain_call_options_t options_;
};

entrain_gta_config_t Config(int32_t consensus = ENTRAIN_CONSENSUS_NONE) {
  entrain_gta_config_t config;
  entrain_gta_config_init(&config);
  config.consensus = consensus;
  return config;
}

// Returns the result of four ranks if rank k has (k + 1) (-1)^k in every element.
float OfFour(const entrain_gta_config_t& config) {
  float result = 0;
  RunWorld(4, [&](const Rank& self) {
    const Options options(config);
    std::vector<float> in(1000,
                          static_cast<float>((self.rank + 1) * (self.rank % 2 == 0 ? 1 : -1)));
    std::vector<float> out(in.size());
    ASSERT_OK(entrain_all_reduce(self.comm, in.data(), out.data(), in.size(), ENTRAIN_F32,
                                 ENTRAIN_REDUCTION, options.get(), nullptr));
    EXPECT_EQ(out, std::vector<float>(out.size(), out[0]));
    std::vector<float> part(250);
    ASSERT_OK(entrain_reduce_scatter(self.comm, in.data(), part.data(), part.size(), ENTRAIN_F32,
                                     ENTRAIN_REDUCTION, options.get(), nullptr));
    EXPECT_EQ(part, std::vector<float>(part.size(), out[0]));
    if (self.rank == 0) {
      result = out[0];
    }
  });
  return result;
}

TEST(Gta, ElectsMasksAndNormalizes) {
  constexpr double kRamp[] = {1, 2, 3, 4};
  EXPECT_FLOAT_EQ(OfFour(Config()), -0.5);
  EXPECT_FLOAT_EQ(OfFour(Config(ENTRAIN_CONSENSUS_SUM)), -3);
  EXPECT_FLOAT_EQ(OfFour(Config(ENTRAIN_CONSENSUS_COUNT)), 2);
  entrain_gta_config_t config = Config(ENTRAIN_CONSENSUS_SUM);
  config.weights = kRamp;
  config.ranks = 4;
  EXPECT_FLOAT_EQ(OfFour(config), -10.0F / 3);
  config.consensus = ENTRAIN_CONSENSUS_COUNT;
  EXPECT_FLOAT_EQ(OfFour(config), 2.5);
  config.normalize = 0;
  EXPECT_FLOAT_EQ(OfFour(config), 10);
}

TEST(Gta, IsStartedWaitedForAndBatchedLikeAnyCall) {
  RunWorld(3, [](const Rank& self) {
    const Options options(Config(ENTRAIN_CONSENSUS_SUM));
    std::vector<double> one(777, self.rank == 0 ? 3 : -1), two = one;
    entrain_batch_t* batch = nullptr;
    ASSERT_OK(entrain_batch_create(self.comm, &batch));
    entrain_call_options_t batched = *options.get();
    batched.batch = batch;
    for (std::vector<double>* data : {&one, &two}) {
      ASSERT_OK(entrain_all_reduce(self.comm, data->data(), data->data(), data->size(), ENTRAIN_F64,
                                   ENTRAIN_REDUCTION, &batched, nullptr));
    }
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_batch_start(batch, &work));
    EXPECT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
    entrain_batch_destroy(batch);
    EXPECT_EQ(one, std::vector<double>(777, 3));
    EXPECT_EQ(two, one);
  });
}

TEST(Gta, TravelsSparsifiedAndEncoded) {
  RunWorld(3, [](const Rank& self) {
    entrain_gta_config_t config = Config();
    config.sparsification = ENTRAIN_SPARSIFY_MAGNITUDE;
    config.density = 0.01;
    const Options sparse(config);
    std::vector<float> data(1000);
    for (size_t i = 0; i < 10; ++i) {
      data[100 * i + static_cast<size_t>(self.rank)] = 3;
    }
    data[50] = 1;  // eleventh largest
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                 ENTRAIN_REDUCTION, sparse.get(), &work));
    EXPECT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
    for (size_t i = 0; i < data.size(); ++i) {
      ASSERT_EQ(data[i], i % 100 < 3 ? 1 : 0) << i;
    }
    config = Config();
    config.wire_format = ENTRAIN_WIRE_INT8;
    config.wire_block = 64;
    const Options int8(config);
    std::vector<float> fractions(999), expected(999);
    for (size_t i = 0; i < fractions.size(); ++i) {
      expected[i] = static_cast<float>(i) / 999;
      fractions[i] = expected[i] * static_cast<float>(self.rank);
    }
    ASSERT_OK(entrain_all_reduce(self.comm, fractions.data(), fractions.data(), fractions.size(),
                                 ENTRAIN_F32, ENTRAIN_REDUCTION, int8.get(), nullptr));
    for (size_t i = 0; i < fractions.size(); ++i) {
      ASSERT_NEAR(fractions[i], expected[i], 2.01 / 127) << i;
    }
  });
}

TEST(Gta, WeightsMayChangeFromCallToCall) {
  RunWorld(2, [](const Rank& self) {
    const Options options(Config());
    const double weights[] = {1, 3};
    float data[8];
    const auto mean = [&] {
      std::fill_n(data, 8, static_cast<float>(self.rank));
      EXPECT_OK(entrain_all_reduce(self.comm, data, data, 8, ENTRAIN_F32, ENTRAIN_REDUCTION,
                                   options.get(), nullptr));
      return data[7];
    };
    EXPECT_EQ(mean(), 0.5F);
    ASSERT_OK(entrain_reduction_set_weights(options.get()->reduction, weights, 2));
    EXPECT_EQ(mean(), 0.75F);
    ASSERT_OK(entrain_reduction_set_weights(options.get()->reduction, nullptr, 0));
    EXPECT_EQ(mean(), 0.5F);
    const double wrong[] = {1, std::nan("")};
    EXPECT_FAILS(entrain_reduction_set_weights(options.get()->reduction, wrong, 2),
                 ENTRAIN_INVALID_ARGUMENT, "weights[1] nan");
    EXPECT_EQ(mean(), 0.5F);
    entrain_reduction_t* sum = nullptr;
    ASSERT_OK(entrain_reduction_builtin(ENTRAIN_SUM, &sum));
    EXPECT_FAILS(entrain_reduction_set_weights(sum, weights, 2), ENTRAIN_INVALID_ARGUMENT,
                 "sum has no such weights");
    entrain_reduction_destroy(sum);
  });
}

TEST(Gta, StateGoesWithTheCheckpoint) {
  RunWorld(2, [](const Rank& self) {
    entrain_gta_config_t config = Config();
    config.sparsification = ENTRAIN_SPARSIFY_RANDOM;
    config.density = 0.5;
    config.seed = 7;
    config.error_feedback = 1;
    const Options once(config), again(config), plain(Config());
    const auto result = [&](const Options& options) {
      std::vector<float> data(64, 1);
      EXPECT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                   ENTRAIN_REDUCTION, options.get(), nullptr));
      return data;
    };
    result(once);
    size_t bytes = 0;
    ASSERT_OK(entrain_reduction_state_size(once.get()->reduction, &bytes));
    std::vector<char> state(bytes);
    EXPECT_FAILS(entrain_reduction_state_save(once.get()->reduction, state.data(), bytes - 1),
                 ENTRAIN_INVALID_ARGUMENT, "is not the state's size");
    ASSERT_OK(entrain_reduction_state_save(once.get()->reduction, state.data(), bytes));
    ASSERT_OK(entrain_reduction_state_load(again.get()->reduction, state.data(), bytes));
    EXPECT_EQ(result(again), result(once));
    EXPECT_FAILS(entrain_reduction_state_load(again.get()->reduction, state.data(), bytes - 1),
                 ENTRAIN_INVALID_ARGUMENT, "state");
    ASSERT_OK(entrain_reduction_state_size(plain.get()->reduction, &bytes));
    EXPECT_EQ(bytes, 0);
    EXPECT_OK(entrain_reduction_state_load(plain.get()->reduction, nullptr, 0));
    EXPECT_FAILS(entrain_reduction_state_load(plain.get()->reduction, state.data(), 8),
                 ENTRAIN_INVALID_ARGUMENT, "keeps no state");
  });
}

TEST(Gta, RefusesWhatCannotBe) {
  entrain_reduction_t* reduction = nullptr;
  const auto refused = [&](const entrain_gta_config_t& config, const char* why) {
    EXPECT_FAILS(entrain_reduction_gta(&config, &reduction), ENTRAIN_INVALID_ARGUMENT, why);
  };
  entrain_gta_config_t config = Config(3);
  refused(config, "consensus 3");
  config = Config();
  config.normalize = 2;
  refused(config, "normalize 2");
  config = Config();
  config.sparsification = 4;
  refused(config, "sparsification 4");
  config = Config();
  config.density = 0.5;
  refused(config, "density 0.5 has no effect");
  config = Config();
  config.wire_format = -1;
  refused(config, "wire_format -1");
  config.wire_format = ENTRAIN_WIRE_INT8;
  config.wire_block = 17;
  refused(config, "wire_block 17");
  config.wire_block = 0;
  config.wire_rounding = 2;
  refused(config, "wire_rounding 2");
  config.wire_rounding = ENTRAIN_ROUND_NEAREST;
  config.seed = 1;
  refused(config, "seed 1 has no effect");
  config = Config();
  config.error_feedback = 1;
  refused(config, "error_feedback has no effect");
  config.error_feedback = 2;
  refused(config, "error_feedback 2");
  config = Config();
  config.ranks = 2;
  refused(config, "ranks 2");
  const double weights[] = {1, std::nan("")};
  config.weights = weights;
  refused(config, "weights[1] nan");
  config.ranks = 0;
  refused(config, "ranks 0");
  EXPECT_FAILS(entrain_reduction_gta(nullptr, &reduction), ENTRAIN_INVALID_ARGUMENT, "NULL");
  config.ranks = 1;
  EXPECT_FAILS(entrain_reduction_gta(&config, nullptr), ENTRAIN_INVALID_ARGUMENT, "reduction");
  RunWorld(2, [&](const Rank& self) {
    entrain_gta_config_t alone = Config();
    alone.weights = weights;
    alone.ranks = 1;
    const Options wrong(alone), right(Config());
    float data[2] = {1, 1};
    int32_t whole = 1;
    EXPECT_FAILS(entrain_all_reduce(self.comm, data, data, 2, ENTRAIN_F32, ENTRAIN_REDUCTION,
                                    wrong.get(), nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "1 weights for 2 ranks");
    EXPECT_FAILS(entrain_all_reduce(self.comm, &whole, &whole, 1, ENTRAIN_I32, ENTRAIN_REDUCTION,
                                    right.get(), nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "floats only");
    EXPECT_FAILS(entrain_scan(self.comm, data, data, 2, ENTRAIN_F32, ENTRAIN_REDUCTION, right.get(),
                              nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "no meaning in scan");
  });
}

}  // namespace
}  // namespace entrain_test
