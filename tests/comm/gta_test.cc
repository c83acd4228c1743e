// Weighted and task-arithmetic reductions among ranks: against the published code's numbers, against a reference that
// can be read, and what they cost on the wire.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/merging.h"
#include "lib/comm/merge_state.h"
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
  auto reduction = MakeGta(merging);
  EXPECT_TRUE(reduction.ok()) << reduction.status();
  return *reduction;
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

// Parts of which every third is empty.
PartCounts UnevenParts(int size) {
  PartCounts counts;
  for (int r = 0; r < size; ++r) {
    counts.in.push_back(r % 3 == 1 ? 0 : 311 * r + 5);
  }
  counts.out = counts.in;
  return counts;
}

// This rank's part of a reduce_scatter of x, by rank, against the same part of `whole`.
void ExpectScattered(const Comm& comm, const Merging& merging, const PartCounts& counts,
                     const std::vector<Values>& x, const Values& whole) {
  const auto mine = static_cast<size_t>(comm->rank());
  const int64_t before =
      std::accumulate(counts.in.begin(), counts.in.begin() + comm->rank(), int64_t{0});
  const int64_t count = counts.in[mine];
  const Raw in = ToRaw(x[mine], DType::kF32);
  Raw out(static_cast<size_t>(count) * 4);
  Call call = AllReduceOf(Gta(merging), DType::kF32, in, out);
  call.kind = CallKind::kReduceScatter;
  call.uneven = std::make_shared<const PartCounts>(counts);
  ASSERT_EQ(comm->Run(call), absl::OkStatus());
  ExpectNear(out, DType::kF32, Values(whole.begin() + before, whole.begin() + before + count),
             Describe(merging, DType::kF32, comm->size(), static_cast<size_t>(count)));
}

TEST(Gta, ScattersPartsOfUnevenLength) {
  for (const int size : {1, 2, 3, 5}) {
    const PartCounts counts = UnevenParts(size);
    const std::vector<Values> x = Contributions(
        size, static_cast<size_t>(std::accumulate(counts.in.begin(), counts.in.end(), int64_t{0})));
    RunRanks(size, [&](const Comm& comm) {
      for (const Consensus consensus : kConsensus) {
        const Merging merging{WeightsOf(1, size), consensus};
        ExpectScattered(comm, merging, counts, x, MergedReference(merging, x));
      }
    });
  }
}

// ---- Sparsified

Merging Sparsified(Merging merging, Sparsification how, double density, uint64_t seed = 0) {
  merging.sparsification = how;
  merging.density = density;
  merging.seed = seed;
  return merging;
}

std::vector<Values> LargestOfAll(const std::vector<Values>& x, double density) {
  std::vector<Values> kept;
  for (const Values& one : x) {
    kept.push_back(LargestOf(one, density));
  }
  return kept;
}

TEST(SparsifiedGta, IsTheReferenceOfTheKeptEntries) {
  for (int size = 1; size <= 8; ++size) {
    RunRanks(size, [&](const Comm& comm) {
      for (const size_t count : {size_t{0}, size_t{7}, size_t{1000}, size_t{20'001}}) {
        const std::vector<Values> x = Contributions(size, count);
        for (const DType dtype : kFloats) {
          if (count > 1000 && (dtype != DType::kF32 || size % 3 != 2)) {
            continue;
          }
          for (const double density : {0.02, 0.3, 0.95}) {
            if (count > 0 && density * static_cast<double>(count) < 1) {
              continue;  // keeps none, see below
            }
            const std::vector<Values> kept = LargestOfAll(x, density);
            for (const Consensus consensus : kConsensus) {
              const Merging merging = Sparsified({WeightsOf(2, size), consensus, density < 0.5},
                                                 Sparsification::kMagnitude, density);
              Raw out = ToRaw(x[static_cast<size_t>(comm->rank())], dtype);
              ASSERT_EQ(comm->Run(AllReduceOf(Gta(merging), dtype, out, out)), absl::OkStatus());
              ExpectNear(out, dtype, MergedReference(merging, kept),
                         absl::StrCat(Describe(merging, dtype, size, count), " density ", density));
            }
          }
        }
      }
    });
  }
}

TEST(SparsifiedGta, ScattersTheLargestOfTheWholeVector) {
  for (const int size : {1, 2, 5}) {
    const PartCounts counts = UnevenParts(size);
    const std::vector<Values> x = Contributions(
        size, static_cast<size_t>(std::accumulate(counts.in.begin(), counts.in.end(), int64_t{0})));
    const Merging merging = Sparsified({{}, Consensus::kCount}, Sparsification::kMagnitude, 0.3);
    RunRanks(size, [&](const Comm& comm) {
      ExpectScattered(comm, merging, counts, x, MergedReference(merging, LargestOfAll(x, 0.3)));
    });
  }
}

// What rank `from` sends of ones, by a reduction that nobody else contributes to.
Values MaskOf(const Comm& comm, const Reduction& reduction, size_t count) {
  const Raw in = ToRaw(Values(count, 1), DType::kF32);
  Raw out(in.size());
  EXPECT_EQ(comm->Run(AllReduceOf(reduction, DType::kF32, in, out)), absl::OkStatus());
  return FromRaw(out, DType::kF32);
}

TEST(SparsifiedGta, RandomMasksAreRepeatableAndDifferByRankAndCall) {
  RunRanks(2, [](const Comm& comm) {
    constexpr size_t kCount = 20'000;
    const auto masks = [](int from, uint64_t seed, Sparsification how) {
      return Gta(Sparsified({{from == 0 ? 1.0 : 0, from == 1 ? 1.0 : 0}, Consensus::kNone, false},
                            how, 0.25, seed));
    };
    const Reduction of_0 = masks(0, 5, Sparsification::kRandom);
    const Values first = MaskOf(comm, of_0, kCount);
    EXPECT_NE(MaskOf(comm, of_0, kCount), first);  // the next call
    EXPECT_EQ(MaskOf(comm, masks(0, 5, Sparsification::kRandom), kCount), first);
    EXPECT_NE(MaskOf(comm, masks(1, 5, Sparsification::kRandom), kCount), first);
    EXPECT_NE(MaskOf(comm, masks(0, 6, Sparsification::kRandom), kCount), first);
    EXPECT_NEAR(std::accumulate(first.begin(), first.end(), 0.0), 5000, 5 * 61.3);
    Values rescaled = MaskOf(comm, masks(0, 5, Sparsification::kRescaledRandom), kCount);
    for (double& value : rescaled) {
      value /= 4;
    }
    EXPECT_EQ(rescaled, first);
  });
}

TEST(SparsifiedGta, RefusesWhatKeepsNothingAndOtherCollectives) {
  RunRanks(2, [](const Comm& comm) {
    const Reduction reduction = Gta(Sparsified({}, Sparsification::kMagnitude, 0.1));
    const Raw in = ToRaw(Values(9, 1), DType::kF32);
    Raw out(in.size());
    Call call = AllReduceOf(reduction, DType::kF32, in, out);
    absl::Status status = comm->Run(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("density 0.1 of 9 elements"));
    call.kind = CallKind::kReduce;
    status = comm->Run(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not reduce"));
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());  // harmed this call only
  });
}

// ---- Wire formats

Merging Encoded(WireFormat format, WireRounding rounding = WireRounding::kNearest) {
  Merging merging;
  merging.wire_format = format;
  merging.wire_rounding = rounding;
  return merging;
}

constexpr WireFormat kFormats[] = {WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4};

// Of a mean of contributions of at most 2: half a step there, and half of one in the result.
double StepOf(WireFormat format) {
  return format == WireFormat::kBF16 ? 0x1p-7 : format == WireFormat::kInt8 ? 2.0 / 127 : 2.0 / 7;
}

TEST(EncodedGta, IsTheReferenceWithinTheSteps) {
  for (const int size : {1, 2, 3, 5, 8}) {
    const std::vector<Values> x = Contributions(size, 3001);
    RunRanks(size, [&](const Comm& comm) {
      for (const WireFormat format : kFormats) {
        for (const WireRounding rounding : {WireRounding::kNearest, WireRounding::kStochastic}) {
          const Raw in = ToRaw(x[static_cast<size_t>(comm->rank())], DType::kF32);
          Raw out(in.size());
          const Merging merging = Encoded(format, rounding);
          ASSERT_EQ(comm->Run(AllReduceOf(Gta(merging), DType::kF32, in, out)), absl::OkStatus());
          const Values got = FromRaw(out, DType::kF32), want = MergedReference(merging, x);
          const double bound = StepOf(format) * (rounding == WireRounding::kNearest ? 1.001 : 2);
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_NEAR(got[i], want[i], bound) << static_cast<int>(format) << " element " << i;
          }
        }
      }
    });
  }
}

// Every call sends a tenth; what is left is sent later, so the sum of the results stays near that of the means.
TEST(EncodedGta, ErrorFeedbackOwesNothingInTheLongRun) {
  constexpr int kCalls = 60;
  const std::vector<Values> x = Contributions(3, 500);
  Merging sparse = Sparsified({}, Sparsification::kMagnitude, 0.1);
  Merging coarse = Encoded(WireFormat::kInt4);
  Merging both = sparse;
  both.wire_format = WireFormat::kInt8;
  for (const bool feeds_back : {true, false}) {
    for (Merging merging : {sparse, coarse, both}) {
      merging.error_feedback = feeds_back;
      RunRanks(3, [&](const Comm& comm) {
        const Reduction reduction = Gta(merging);
        Values sum(500);
        for (int call = 0; call < kCalls; ++call) {
          const Raw in = ToRaw(x[static_cast<size_t>(comm->rank())], DType::kF32);
          Raw out(250 * 4);
          Call scatter = AllReduceOf(reduction, DType::kF32, in, out);
          scatter.kind = CallKind::kReduceScatter;
          PartCounts counts{{250, 250, 0}, {250, 250, 0}};
          scatter.uneven = std::make_shared<const PartCounts>(counts);
          ASSERT_EQ(comm->Run(scatter), absl::OkStatus());
          const Values got = FromRaw(out, DType::kF32);
          for (size_t i = 0; i < 250 && comm->rank() < 2; ++i) {
            sum[i + 250 * static_cast<size_t>(comm->rank())] += got[i];
          }
        }
        const Values mean = MergedReference({}, x);
        double worst = 0;
        for (size_t i = 0; i < 250 && comm->rank() < 2; ++i) {
          const size_t at = i + 250 * static_cast<size_t>(comm->rank());
          worst = std::max(worst, std::abs(sum[at] / kCalls - mean[at]));
        }
        if (feeds_back) {
          EXPECT_LT(worst, 0.75) << merging.density << " " << static_cast<int>(merging.wire_format);
        } else if (comm->rank() < 2 && merging.sparsification != Sparsification::kNone) {
          EXPECT_GT(worst, 1.0);  // otherwise the test shows nothing
        }
      });
    }
  }
}

TEST(EncodedGta, StateResumesBitForBit) {
  Merging merging = Sparsified({}, Sparsification::kRandom, 0.4, 9);
  merging.wire_format = WireFormat::kInt4;
  merging.wire_rounding = WireRounding::kStochastic;
  merging.error_feedback = true;
  RunRanks(3, [&](const Comm& comm) {
    const Reduction once = Gta(merging), again = Gta(merging);
    const auto results = [&](const Reduction& reduction, int calls) {
      std::vector<Raw> all;
      for (int call = 0; call < calls; ++call) {
        for (const size_t count : {size_t{300}, size_t{77}}) {
          const Raw in =
              ToRaw(Contributions(3, count)[static_cast<size_t>(comm->rank())], DType::kF32);
          all.emplace_back(in.size());
          Call one = AllReduceOf(reduction, DType::kF32, in, all.back());
          one.options.user_tag = call % 2;
          EXPECT_EQ(comm->Run(one), absl::OkStatus());
        }
      }
      return all;
    };
    results(once, 3);
    const std::string saved = once.merge_state->Save();
    const std::vector<Raw> expected = results(once, 4);
    // The tags go on where they were.
    ASSERT_EQ(again.merge_state->Load(saved), absl::OkStatus());
    EXPECT_EQ(again.merge_state->Save(), saved);
    EXPECT_EQ(results(again, 4), expected);
    EXPECT_NE(results(Gta(merging), 4), expected);
    std::string bad = saved;
    bad[0] = static_cast<char>(bad[0] ^ 1);
    const std::string before = again.merge_state->Save();
    for (const std::string& wrong :
         {bad, saved.substr(1), saved.substr(0, saved.size() - 1), saved + "x", std::string()}) {
      EXPECT_EQ(again.merge_state->Load(wrong).code(), absl::StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(again.merge_state->Save(), before);
  });
}

TEST(EncodedGta, FormatsAreOfF32Only) {
  RunRanks(2, [](const Comm& comm) {
    const Raw in = ToRaw(Values(64, 1), DType::kBF16);
    Raw out(in.size());
    const absl::Status status =
        comm->Run(AllReduceOf(Gta(Encoded(WireFormat::kInt8)), DType::kBF16, in, out));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not dtype bf16"));
  });
}

TEST(Merging, SettingsWithoutEffectAreRefused) {
  const auto refused = [](const Merging& merging, const char* why) {
    const absl::Status status = CheckMerging(merging);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused({{1, INFINITY}}, "weights[1] inf");
  refused(Sparsified({}, Sparsification::kRandom, 0), "density 0 ");
  refused(Sparsified({}, Sparsification::kRandom, 1.5), "density 1.5");
  refused(Sparsified({}, Sparsification::kRandom, std::nan("")), "density nan");
  refused(Sparsified({}, Sparsification::kRandom, 1), "density 1 keeps everything");
  refused(Sparsified({}, Sparsification::kNone, 0.5), "density 0.5 has no effect");
  refused(Sparsified({}, Sparsification::kMagnitude, 0.5, 3), "seed 3 has no effect");
  Merging merging = Encoded(WireFormat::kFull, WireRounding::kStochastic);
  refused(merging, "wire_rounding stochastic has no effect");
  merging = Encoded(WireFormat::kBF16);
  merging.wire_block = 64;
  refused(merging, "wire_block 64");
  merging = Encoded(WireFormat::kInt4);
  merging.wire_block = 40;
  refused(merging, "wire_block 40");
  merging = {};
  merging.error_feedback = true;
  refused(merging, "error_feedback has no effect");
  merging = Sparsified(merging, Sparsification::kRescaledRandom, 0.5);
  refused(merging, "error_feedback sends later");
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
      std::vector<Merging> mergings;
      for (const Consensus consensus : kConsensus) {
        mergings.push_back({{0.3, 1.7, 0, 0.9, 1.1}, consensus});
      }
      const Merging& summed = mergings[1];
      mergings.push_back(Sparsified(summed, Sparsification::kMagnitude, 0.1));
      mergings.push_back(Sparsified(summed, Sparsification::kRandom, 0.5, 2));
      if (dtype == DType::kF32) {
        mergings.push_back(Encoded(WireFormat::kInt8));
        mergings.push_back(Encoded(WireFormat::kInt4, WireRounding::kStochastic));
        mergings.push_back(mergings[4]);
        mergings.back().wire_format = WireFormat::kBF16;
      }
      for (const Merging& merging : mergings) {
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

constexpr int kPeople = 4;  // ranks of the tests of bytes

// All that all ranks sent for the call, and the call's sums of bytes by rank gathered.
int64_t SentByAll(const Comm& comm, const Call& call) {
  int64_t sent = SentBy(comm, call);
  EXPECT_EQ(comm->AllReduce(&sent, &sent, 1, DType::kI64, ReduceOp::kSum), absl::OkStatus());
  return sent;
}

TEST(SparsifiedGta, BytesAreThoseOfWhatIsLeft) {
  constexpr int64_t kCount = 400'000;
  RunRanks(kPeople, [](const Comm& comm) {
    Values x(kCount);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = std::sin(static_cast<double>(i) * (comm->rank() + 1.37));
    }
    const Raw in = ToRaw(x, DType::kF32);
    Raw out(in.size()), part(in.size() / kPeople);
    const double dense = static_cast<double>(in.size()) * (kPeople - 1);  // all ranks together
    for (const double density : {0.001, 0.01, 0.1, 0.5, 0.99}) {
      const Merging merging = Sparsified({}, Sparsification::kMagnitude, density);
      Call scatter = AllReduceOf(Gta(merging), DType::kF32, in, part);
      scatter.kind = CallKind::kReduceScatter;
      scatter.count = kCount / kPeople;
      const auto contributions = static_cast<double>(SentByAll(comm, scatter));
      EXPECT_LE(contributions, 1.05 * (density + 1.0 / 32) * dense) << density;
      EXPECT_LE(contributions, 1.05 * 2 * density * dense + 1000) << density;  // by indices
      const auto whole =
          static_cast<double>(SentByAll(comm, AllReduceOf(Gta(merging), DType::kF32, in, out)));
      // The result: the union of the supports, as indices or a bitmap and values, or whole.
      const Values result = FromRaw(out, DType::kF32);
      const auto support = static_cast<double>(
          std::count_if(result.begin(), result.end(), [](double v) { return v != 0; }));
      const double least =
          std::min({4.0 * kCount, 4 * support + kCount / 8.0, 8 * support}) * (kPeople - 1);
      EXPECT_LE(whole - contributions, 1.01 * least + 1000) << density;
    }
  });
}

TEST(EncodedGta, BytesAreThoseOfTheFormat) {
  constexpr int64_t kCount = 400'000;
  RunRanks(kPeople, [](const Comm& comm) {
    const Raw in =
        ToRaw(Contributions(kPeople, kCount)[static_cast<size_t>(comm->rank())], DType::kF32);
    Raw out(in.size());
    const int64_t dense = SentByAll(comm, AllReduceOf({}, DType::kF32, in, out));
    const struct {
      WireFormat format;
      double bits;  // a value
    } cases[] = {{WireFormat::kBF16, 16},
                 {WireFormat::kInt8, 8 + 32.0 / 256},
                 {WireFormat::kInt4, 4 + 32.0 / 256}};
    for (const auto& c : cases) {
      const int64_t sent =
          SentByAll(comm, AllReduceOf(Gta(Encoded(c.format)), DType::kF32, in, out));
      EXPECT_NEAR(static_cast<double>(sent), c.bits / 32 * static_cast<double>(dense), 2000);
      Merging sparse = Sparsified(Encoded(c.format), Sparsification::kMagnitude, 0.25);
      Call scatter = AllReduceOf(Gta(sparse), DType::kF32, in, out);
      scatter.kind = CallKind::kReduceScatter;
      scatter.count = kCount / kPeople;
      EXPECT_LE(static_cast<double>(SentByAll(comm, scatter)),
                (0.25 * c.bits + 1) / 64 * static_cast<double>(dense) + 2000);
    }
  });
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

TEST(SparsifiedGta, WhoHasWeightZeroSendsNothing) {
  RunRanks(3, [](const Comm& comm) {
    for (Merging merging : {Sparsified({}, Sparsification::kMagnitude, 0.5),
                            Encoded(WireFormat::kInt8), Encoded(WireFormat::kBF16)}) {
      merging.weights = {1, 0, 1};
      const Raw in =
          ToRaw(Values(1002, comm->rank() == 1 ? std::nan("") : comm->rank() + 1), DType::kF32);
      Raw out(in.size() / 3);
      Call call = AllReduceOf(Gta(merging), DType::kF32, in, out);
      call.kind = CallKind::kReduceScatter;
      call.count = 334;
      const int64_t sent = SentBy(comm, call);
      EXPECT_TRUE(BestKernels().all_finite(out.data(), DType::kF32, 334));
      if (comm->rank() == 1) {
        EXPECT_LE(sent, 16);  // that it sends nothing
      }
    }
  });
}

// Packed calls are several calls inside: they keep apart from each other, and from what runs beside them.
TEST(SparsifiedGta, ManyRunSideBySide) {
  for (const bool own_thread : {true, false}) {
    RunRanks(4, {.own_thread = own_thread}, [](const Comm& comm) {
      constexpr int kCalls = 24;
      const std::vector<Values> x = Contributions(4, 999);
      const Merging merging = Sparsified({}, Sparsification::kMagnitude, 0.2);
      const Raw want = [&] {
        const Raw in = ToRaw(x[static_cast<size_t>(comm->rank())], DType::kF32);
        Raw out(in.size());
        EXPECT_EQ(comm->Run(AllReduceOf(Gta(merging), DType::kF32, in, out)), absl::OkStatus());
        return out;
      }();
      const Reduction reduction = Gta(merging);
      const uint64_t calls_before = comm->stats().calls;
      std::vector<Raw> data(kCalls, ToRaw(x[static_cast<size_t>(comm->rank())], DType::kF32));
      std::vector<int64_t> sums(kCalls, comm->rank());
      std::vector<RefPtr<Work>> works;
      for (int i = 0; i < kCalls; ++i) {
        // Tagged ones in another order on every rank.
        const int at = i < kCalls / 2 ? (i + comm->rank()) % (kCalls / 2) : i;
        const auto index = static_cast<size_t>(at);
        Call call = AllReduceOf(reduction, DType::kF32, data[index], data[index]);
        call.options.user_tag = i < kCalls / 2 ? at : -1;
        auto work = comm->Start(call);
        ASSERT_TRUE(work.ok()) << work.status();
        works.push_back(*work);
        Call sum;
        sum.kind = CallKind::kAllReduce;
        sum.dtype = DType::kI64;
        sum.count = 1;
        sum.in = sum.out = {&sums[static_cast<size_t>(i)], 8, MemoryKind::kHost};
        work = comm->Start(sum);
        ASSERT_TRUE(work.ok()) << work.status();
        works.push_back(*work);
      }
      ASSERT_TRUE(comm->Drain(Deadline::After(20 * kSecond)));
      for (const RefPtr<Work>& work : works) {
        EXPECT_TRUE(work->done());
        EXPECT_EQ(work->status(), absl::OkStatus());
      }
      for (const Raw& one : data) {
        EXPECT_EQ(one, want);
      }
      EXPECT_EQ(sums, std::vector<int64_t>(kCalls, 6));
      EXPECT_EQ(comm->stats().calls - calls_before, 2 * kCalls);
    });
  }
}

TEST(SparsifiedGta, ALateRankIsNamedAndAnAbortEndsIt) {
  for (const bool aborts : {true, false}) {
    RunRanks(3, [&](const Comm& comm) {
      if (comm->rank() == 2) {
        if (aborts) {
          comm->Abort("enough");
        } else {
          // Away until the others have given up.
          const Deadline end = Deadline::After(10 * kSecond);
          while (comm->status().ok() && !end.Passed(Clock::Real().Now())) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }
        return;
      }
      const Raw in = ToRaw(Values(100, 1), DType::kF32);
      Raw out(in.size());
      Call call =
          AllReduceOf(Gta(Sparsified({}, Sparsification::kMagnitude, 0.5)), DType::kF32, in, out);
      call.options.timeout_ns = 300'000'000;
      call.options.deadline = Deadline::After(call.options.timeout_ns);
      const absl::Status status = comm->Run(call);
      EXPECT_THAT(std::string(status.message()), HasSubstr(aborts ? "enough" : "rank 2"));
      if (!aborts) {
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce"));
      }
    });
  }
}

TEST(Gta, RanksMustAgree) {
  const Merging mine{{1, 2}, Consensus::kSum, true};
  const Merging others[] = {{{1, 3}, Consensus::kSum, true},
                            {{1, 2}, Consensus::kCount, true},
                            {{1, 2}, Consensus::kSum, false},
                            {{}, Consensus::kSum, true},
                            Sparsified(mine, Sparsification::kMagnitude, 0.5),
                            Encoded(WireFormat::kInt8)};
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
