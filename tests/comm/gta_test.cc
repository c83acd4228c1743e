// Weighted and task-arithmetic reductions among ranks: compared with a simple reference, equal bits
// on all ranks, and no more bytes than a sum.

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "tests/comm/merging_calls.h"

namespace entrain {
namespace {

using testing::HasSubstr;

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

// Returns the bits of rank 0's result. All other ranks must have equal bits.
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
