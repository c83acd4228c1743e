// Weighted and task-arithmetic reductions among ranks, compared with the numbers of the published
// code.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/merging_calls.h"
#include "tests/support/golden.h"

namespace entrain {
namespace {

using Json = nlohmann::json;

class GtaGolden : public testing::Test {
 protected:
  const Json golden_ = Golden("reducers.json");
};

// got - want| <= rel * sum over the kept elements of |w x| / |divisor| + floor.
double GoldenTolerance(const Json& rules, const Merging& merging, const std::vector<Values>& x,
                       size_t i) {
  std::vector<double> products;
  for (size_t r = 0; r < x.size(); ++r) {
    products.push_back(merging.weights[r] == 0 ? 0 : merging.weights[r] * x[r][i]);
  }
  const int elected = ElectedBy(merging.consensus, products);
  double scale = 0, divisor = 0;
  for (size_t r = 0; r < x.size(); ++r) {
    if (merging.consensus == Consensus::kNone || SignOf(products[r]) == elected) {
      scale += std::abs(products[r]);
      divisor += merging.weights[r];
    }
  }
  if (merging.normalize && std::abs(divisor) >= kLeastDivisor) {
    scale /= std::abs(divisor);
  }
  return rules["rel"].get<double>() * scale + rules["floor"].get<double>();
}

TEST_F(GtaGolden, ReducersAreThePublishedOnes) {
  int compared = 0;
  for (const Json& one : golden_["reduce_cases"]) {
    const auto name = one["weights"].get<std::string>();
    auto x = golden_["inputs"][one["input"].get<std::string>()]["x"].get<std::vector<Values>>();
    Merging merging;
    merging.weights = golden_["refined_weights"]["4"]["float32"][name].get<Values>();
    if (name == "rejected_T1") {
      x[2].assign(x[2].size(), std::nan(""));  // weight 0: any values
    }
    const bool softmax = name.find("_T") != std::string::npos && name != "neg_norm_no_T";
    for (const auto& [config, want] : one["result"].items()) {
      merging.consensus = config == "linear_norm"    ? Consensus::kNone
                          : config == "gta_sum_norm" ? Consensus::kSum
                                                     : Consensus::kCount;
      merging.normalize = config != "linear_norm" || !softmax;  // a softmax is normalized
      const char* const key = merging.consensus == Consensus::kSum ? "sum" : "count";
      std::vector<size_t> skipped;
      if (one.contains("order_sensitive") && one["order_sensitive"].contains(key)) {
        skipped = one["order_sensitive"][key].get<std::vector<size_t>>();
      }
      RunRanks(4, [&](const Comm& comm) {
        const Raw in = ToRaw(x[static_cast<size_t>(comm->rank())], DType::kF32);
        Raw out(in.size());
        ASSERT_EQ(comm->Run(AllReduceOf(Gta(merging), DType::kF32, in, out)), absl::OkStatus());
        const Values got = FromRaw(out, DType::kF32);
        for (size_t i = 0; i < got.size(); ++i) {
          const bool skip = std::find(skipped.begin(), skipped.end(), i) != skipped.end();
          if (skip && merging.consensus != Consensus::kNone) {
            continue;
          }
          EXPECT_NEAR(got[i], Number(want[i]),
                      GoldenTolerance(golden_["tolerances"]["float32"], merging, x, i))
              << name << " " << config << " element " << i;
        }
      });
      ++compared;
    }
  }
  EXPECT_EQ(compared, 51);
}

TEST_F(GtaGolden, SparsifiedSumsAreTheirs) {
  const Json& one = golden_["sparsify_and_reduce"]["case"];
  const auto x = golden_["inputs"][one["input"].get<std::string>()]["x"].get<std::vector<Values>>();
  Merging merging{{}, Consensus::kSum, one["normalize"].get<bool>()};
  merging.sparsification = Sparsification::kMagnitude;
  merging.density = one["density"].get<double>();
  RunRanks(4, [&](const Comm& comm) {
    const Raw in = ToRaw(x[static_cast<size_t>(comm->rank())], DType::kF64);
    Raw out(in.size());
    ASSERT_EQ(comm->Run(AllReduceOf(Gta(merging), DType::kF64, in, out)), absl::OkStatus());
    EXPECT_EQ(FromRaw(out, DType::kF64), one["result"].get<Values>());
  });
}

TEST_F(GtaGolden, KeepsTheEntriesThatTheyKeep) {
  const Json& golden = golden_["sparsify"];
  const auto x = golden["input"].get<Values>();
  Merging merging;
  merging.sparsification = Sparsification::kMagnitude;
  merging.density = golden["case"]["density"].get<double>();
  Values want(x.size());
  for (const size_t i : golden["case"]["kept"].get<std::vector<size_t>>()) {
    want[i] = x[i];
  }
  RunRanks(1, [&](const Comm& comm) {
    const Raw in = ToRaw(x, DType::kF32);
    Raw out(in.size());
    ASSERT_EQ(comm->Run(AllReduceOf(Gta(merging), DType::kF32, in, out)), absl::OkStatus());
    EXPECT_EQ(FromRaw(out, DType::kF32), want);
  });
}

// The table of the specification. All elements are equal: two steps of a sum in f32.
TEST(GtaSpecified, Vectors) {
  struct Case {
    Consensus consensus;
    Values weights;
    Values x;  // by rank
    double want;
  };
  const Values four = {1, -2, 3, -4}, ramp = {1, 2, 3, 4}, tie = {1, -1}, zeros = {0, 0, 0, 0};
  for (const Case& c :
       {Case{Consensus::kNone, {}, four, -0.5}, Case{Consensus::kSum, {}, four, -3},
        Case{Consensus::kSum, {0.25, 0.25, 0.25, 0.25}, four, -3},
        Case{Consensus::kCount, {}, four, 2}, Case{Consensus::kSum, ramp, four, -10.0 / 3},
        Case{Consensus::kCount, ramp, four, 2.5}, Case{Consensus::kSum, {}, tie, 1},
        Case{Consensus::kCount, {}, tie, 1}, Case{Consensus::kNone, {}, zeros, 0},
        Case{Consensus::kSum, {}, zeros, 0}, Case{Consensus::kCount, {}, zeros, 0},
        Case{Consensus::kSum, zeros, four, 0}}) {
    RunRanks(static_cast<int>(c.x.size()), [&](const Comm& comm) {
      const Raw in = ToRaw(Values(33, c.x[static_cast<size_t>(comm->rank())]), DType::kF32);
      Raw out(in.size());
      ASSERT_EQ(comm->Run(AllReduceOf(Gta({c.weights, c.consensus}), DType::kF32, in, out)),
                absl::OkStatus());
      for (const double got : FromRaw(out, DType::kF32)) {
        EXPECT_NEAR(got, c.want, 5e-7) << static_cast<int>(c.consensus);
      }
    });
  }
}

}  // namespace
}  // namespace entrain
