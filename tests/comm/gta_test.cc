// Weighted and task-arithmetic reductions among ranks: against the published code's numbers, against a reference that
// can be read, and what they cost on the wire.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/merging.h"
#include "lib/kernels/kernels.h"
#include "nlohmann/json.hpp"
#include "tests/support/merging_reference.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using Json = nlohmann::json;
using Raw = std::vector<std::byte>;  // elements of some float type
using testing::HasSubstr;

constexpr DType kFloats[] = {DType::kF32, DType::kF64,    DType::kBF16,
                             DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr Consensus kConsensus[] = {Consensus::kNone, Consensus::kSum, Consensus::kCount};

Raw ToRaw(const Values& values, DType dtype) {
  Raw raw(values.size() * static_cast<size_t>(SizeOf(dtype)));
  BestKernels().cast(raw.data(), dtype, values.data(), DType::kF64,
                     static_cast<int64_t>(values.size()));
  return raw;
}

Values FromRaw(const Raw& raw, DType dtype) {
  Values values(raw.size() / static_cast<size_t>(SizeOf(dtype)));
  BestKernels().cast(values.data(), DType::kF64, raw.data(), dtype,
                     static_cast<int64_t>(values.size()));
  return values;
}

BufferView View(const Raw& raw) {
  return {const_cast<std::byte*>(raw.data()), static_cast<int64_t>(raw.size()), MemoryKind::kHost};
}

Reduction Gta(const Merging& merging) {
  Reduction reduction;
  reduction.op = ReduceOp::kGta;
  reduction.merging = std::make_shared<const Merging>(merging);
  return reduction;
}

Call AllReduceOf(const Reduction& reduction, DType dtype, const Raw& in, const Raw& out) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.reduction = reduction;
  call.dtype = dtype;
  call.in = View(in);
  call.out = View(out);
  call.count = static_cast<int64_t>(in.size()) / SizeOf(dtype);
  return call;
}

// Small multiples of 1/4, which all float types hold and whose weighted sums f32 does too: elections are exact. A third
// are zeros, and ties are frequent.
double ValueAt(int rank, size_t i) {
  uint64_t bits = (static_cast<uint64_t>(rank) * 1000003 + i + 1) * 0x9e3779b97f4a7c15u;
  bits ^= bits >> 31;
  return bits % 3 == 0 ? 0 : static_cast<double>(static_cast<int64_t>(bits >> 20) % 17 - 8) / 4;
}

std::vector<Values> Contributions(int size, size_t count) {
  std::vector<Values> all(static_cast<size_t>(size), Values(count));
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < count; ++i) {
      all[static_cast<size_t>(r)][i] = ValueAt(r, i);
    }
  }
  return all;
}

// One rounding of the result to the type; f32 and f64 also of every step.
double ToleranceOf(DType dtype, double value) {
  const double digits = dtype == DType::kF64      ? 1e-15
                        : dtype == DType::kF32    ? 1e-6
                        : dtype == DType::kBF16   ? 0x1p-8
                        : dtype == DType::kF16    ? 0x1p-11
                        : dtype == DType::kF8E4M3 ? 0x1p-4
                                                  : 0x1p-3;
  return digits * std::abs(value) + (SizeOf(dtype) == 1 ? 0x1p-9 : 1e-6);
}

void ExpectNear(const Raw& got, DType dtype, const Values& want, const std::string& what) {
  const Values values = FromRaw(got, dtype);
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(values[i], want[i], ToleranceOf(dtype, want[i])) << what << ", element " << i;
  }
}

std::string Describe(const Merging& merging, DType dtype, int size, size_t count) {
  return absl::StrCat(NameOf(dtype), " of ", count, " on ", size, " ranks, consensus ",
                      static_cast<int>(merging.consensus), merging.normalize ? "" : " unnormalized",
                      ", ", merging.weights.size(), " weights");
}

// ---- The published code's numbers

double Number(const Json& json) {
  return json.is_string() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

class GtaGolden : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(ENTRAIN_TESTDATA "/reducers.json");
    ASSERT_TRUE(file.good());
    golden_ = Json::parse(file);
  }
  Json golden_;
};

// |got - want| <= rel * sum over those kept of |w x| / |divisor| + floor.
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
      x[2].assign(x[2].size(), std::nan(""));  // weight 0: whatever it has
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

// ---- The reference

std::vector<double> WeightsOf(int kind, int size) {
  std::vector<double> weights;
  for (int r = 0; kind > 0 && r < size; ++r) {
    constexpr double kSome[] = {0.5, 2, -1, 0, 1, 0.25, 4, -0.5};
    weights.push_back(kind == 1 ? r + 1 : kSome[r]);
  }
  return weights;
}

TEST(Gta, EveryOptionTypeAndSizeIsTheReference) {
  for (int size = 1; size <= 8; ++size) {
    RunRanks(size, [&](const Comm& comm) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{70'001}}) {
        const std::vector<Values> x = Contributions(size, count);
        for (const DType dtype : kFloats) {
          if (count > 1000 && (dtype != DType::kF32 || size % 3 != 2)) {
            continue;
          }
          const Raw in = ToRaw(x[static_cast<size_t>(comm->rank())], dtype);
          for (const Consensus consensus : kConsensus) {
            for (const int weights : {0, 1, 2}) {
              for (const bool normalize : {true, false}) {
                const Merging merging{WeightsOf(weights, size), consensus, normalize};
                Raw out = in;
                ASSERT_EQ(comm->Run(AllReduceOf(Gta(merging), dtype, out, out)), absl::OkStatus());
                ExpectNear(out, dtype, MergedReference(merging, x),
                           Describe(merging, dtype, size, count));
              }
            }
          }
        }
      }
    });
  }
}

TEST(Gta, ScattersPartsOfUnevenLength) {
  for (const int size : {1, 2, 3, 5}) {
    RunRanks(size, [&](const Comm& comm) {
      PartCounts counts;
      int64_t before = 0, sum = 0;
      for (int r = 0; r < size; ++r) {
        counts.in.push_back(r % 3 == 1 ? 0 : 311 * r + 5);
        before += r < comm->rank() ? counts.in.back() : 0;
        sum += counts.in.back();
      }
      counts.out = counts.in;
      const auto mine = static_cast<size_t>(counts.in[static_cast<size_t>(comm->rank())]);
      const std::vector<Values> x = Contributions(size, static_cast<size_t>(sum));
      for (const Consensus consensus : kConsensus) {
        const Merging merging{WeightsOf(1, size), consensus};
        const Raw in = ToRaw(x[static_cast<size_t>(comm->rank())], DType::kF32);
        Raw out(mine * 4);
        Call call = AllReduceOf(Gta(merging), DType::kF32, in, out);
        call.kind = CallKind::kReduceScatter;
        call.uneven = std::make_shared<const PartCounts>(counts);
        ASSERT_EQ(comm->Run(call), absl::OkStatus());
        const Values whole = MergedReference(merging, x);
        ExpectNear(
            out, DType::kF32,
            Values(whole.begin() + before, whole.begin() + before + static_cast<int64_t>(mine)),
            Describe(merging, DType::kF32, size, mine));
      }
    });
  }
}

// ---- Bits, and bytes

// What rank 0 gets; all others must have it too.
std::vector<Raw> BitsOf(const RanksOptions& options, size_t count) {
  constexpr int kRanks = 5;
  std::vector<std::vector<Raw>> results(kRanks);
  RunRanks(kRanks, options, [&](const Comm& comm) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Values x(count);
      for (size_t i = 0; i < count; ++i) {
        x[i] = std::sin(static_cast<double>(i) * (comm->rank() + 1.37)) * std::exp2(i % 9);
      }
      for (const Consensus consensus : kConsensus) {
        const Merging merging{{0.3, 1.7, 0, 0.9, 1.1}, consensus};
        const Raw in = ToRaw(x, dtype);
        Raw out(in.size());
        ASSERT_EQ(comm->Run(AllReduceOf(Gta(merging), dtype, in, out)), absl::OkStatus());
        results[static_cast<size_t>(comm->rank())].push_back(out);
      }
    }
  });
  for (const auto& one : results) {
    EXPECT_EQ(one, results[0]);
  }
  return results[0];
}

TEST(Gta, BitsAreTheSameOnEveryRankTransportAndByEveryAlgorithm) {
  for (const size_t count : {size_t{37}, size_t{150'001}}) {
    const std::vector<Raw> expected = BitsOf({}, count);
    for (const char* const transport : {"inproc", "shm", "tcp"}) {
      for (const char* const algorithm : {"direct", "two_step", "ring"}) {
        EXPECT_EQ(
            BitsOf({.transports = transport, .algorithms = absl::StrCat("all_reduce:", algorithm)},
                   count),
            expected)
            << transport << " " << algorithm << " " << count;
      }
    }
  }
}

int64_t SentBy(const Comm& comm, const Call& call) {
  const CommStats before = comm->stats();
  EXPECT_EQ(comm->Run(call), absl::OkStatus());
  return static_cast<int64_t>(comm->stats().bytes_sent - before.bytes_sent);
}

TEST(Gta, ConsensusAndDivisorCostNoMoreBytesThanASum) {
  for (const int size : {2, 3, 4, 8}) {
    RunRanks(size, [&](const Comm& comm) {
      constexpr size_t kCount = 400'000;
      const Raw in(kCount * 4);
      Raw out(in.size());
      const int64_t gta =
          SentBy(comm, AllReduceOf(Gta({{}, Consensus::kSum, true}), DType::kF32, in, out));
      const int64_t sum = SentBy(comm, AllReduceOf({}, DType::kF32, in, out));
      const double optimum = 2.0 * (size - 1) / size * static_cast<double>(in.size());
      EXPECT_LE(static_cast<double>(gta), 1.05 * static_cast<double>(sum)) << size << " ranks";
      EXPECT_LE(static_cast<double>(gta), 1.05 * optimum) << size << " ranks";
    });
  }
}

// ---- What must not leak, and what must agree

TEST(Gta, WhoHasWeightZeroContributesNothing) {
  RunRanks(3, [](const Comm& comm) {
    for (const Consensus consensus : kConsensus) {
      for (const double bad : {std::nan(""), double{INFINITY}, -1e30}) {
        Values x(1001, comm->rank() == 1 ? bad : comm->rank() + 1);
        const Raw in = ToRaw(x, DType::kF32);
        Raw out(in.size());
        ASSERT_EQ(comm->Run(AllReduceOf(Gta({{1, 0, 1}, consensus}), DType::kF32, in, out)),
                  absl::OkStatus());
        EXPECT_EQ(FromRaw(out, DType::kF32), Values(1001, 2)) << bad;
        ASSERT_EQ(comm->Run(AllReduceOf(Gta({{0, 0, 0}, consensus}), DType::kF32, in, out)),
                  absl::OkStatus());
        EXPECT_EQ(FromRaw(out, DType::kF32), Values(1001, 0)) << bad;
      }
    }
  });
  RunRanks(1, [](const Comm& comm) {
    const Raw in = ToRaw(Values(9, std::nan("")), DType::kF32);
    Raw out(in.size());
    ASSERT_EQ(comm->Run(AllReduceOf(Gta({{0.0}}), DType::kF32, in, out)), absl::OkStatus());
    EXPECT_EQ(FromRaw(out, DType::kF32), Values(9, 0));
  });
}

TEST(Gta, RanksMustAgree) {
  const Merging mine{{1, 2}, Consensus::kSum, true};
  const Merging others[] = {{{1, 3}, Consensus::kSum, true},
                            {{1, 2}, Consensus::kCount, true},
                            {{1, 2}, Consensus::kSum, false},
                            {{}, Consensus::kSum, true}};
  for (const Merging& other : others) {
    RunRanks(2, [&](const Comm& comm) {
      const Raw in = ToRaw(Values(10, 1), DType::kF32);
      Raw out(in.size());
      const absl::Status status =
          comm->Run(AllReduceOf(Gta(comm->rank() == 0 ? mine : other), DType::kF32, in, out));
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce gta of 10 f32"));
    });
  }
}

}  // namespace
}  // namespace entrain
