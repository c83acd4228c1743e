// Task-arithmetic reductions through the C ABI.
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

// A reduction of these settings, as options of a call.
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

// What four ranks of which rank k has (k + 1) (-1)^k everywhere make of it.
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
