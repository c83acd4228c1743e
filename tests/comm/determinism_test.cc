// Determinism::kRankOrder: a reduction's bits depend only on the contributions, in rank order.
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using Raw = std::vector<uint8_t>;  // elements, as bits
using testing::HasSubstr;

constexpr CallKind kKinds[] = {CallKind::kAllReduce, CallKind::kReduce, CallKind::kReduceScatter,
                               CallKind::kScan, CallKind::kExclusiveScan};

// Values of very different sizes, so that another order of summation gives other bits.
float ValueAt(int rank, size_t element) {
  uint64_t bits = (static_cast<uint64_t>(rank) * 100003 + element + 1) * 0x9E3779B97F4A7C15u;
  bits ^= bits >> 29;
  const float value = static_cast<float>(bits % 1000003) / 1000003.0F + 0.37F;
  const float scaled = value * static_cast<float>(1U << (bits >> 40) % 7);
  return (bits >> 50) % 2 == 0 ? scaled : -scaled;
}

// Returns the upper half of the f32, without rounding.
uint16_t ToBf16(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

Raw Contribution(DType dtype, int rank, size_t count) {
  Raw raw(count * static_cast<size_t>(SizeOf(dtype)));
  for (size_t i = 0; i < count; ++i) {
    const float value = ValueAt(rank, i);
    if (dtype == DType::kBF16) {
      const uint16_t half = ToBf16(value);
      std::memcpy(&raw[i * 2], &half, 2);
    } else {
      std::memcpy(&raw[i * 4], &value, 4);
    }
  }
  return raw;
}

// Returns the result of one call on rank `rank`. Empty for ranks that get no result.
Raw Result(const Comm& comm, CallKind kind, DType dtype, size_t count, ReduceOp op,
           Determinism determinism, bool blocking) {
  const auto size = static_cast<size_t>(comm->size());
  const size_t parts = kind == CallKind::kReduceScatter ? size : 1;
  Raw in = Contribution(dtype, comm->rank(), count * parts);
  const bool gets = kind != CallKind::kReduce || comm->rank() == 1;
  Raw out(gets ? in.size() / parts : 0);
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.reduction.op = op;
  call.count = static_cast<int64_t>(count);
  call.root = kind == CallKind::kReduce ? 1 : 0;
  call.in = {in.data(), static_cast<int64_t>(in.size()), MemoryKind::kHost};
  call.out = {out.data(), static_cast<int64_t>(out.size()), MemoryKind::kHost};
  call.options.determinism = determinism;
  if (blocking) {
    EXPECT_EQ(comm->Run(call), absl::OkStatus());
    return out;
  }
  const auto work = comm->Start(call);
  EXPECT_TRUE(work.ok() && (*work)->Wait(Deadline::After(20 * kSecond)));
  return out;
}

// The results of every kind of call, with few and with many bytes, on every rank.
using Results = std::vector<std::vector<Raw>>;  // by rank

Results ResultsOf(int size, const RanksOptions& options, Determinism determinism,
                  bool blocking = true) {
  Results results(static_cast<size_t>(size));
  RunRanks(size, options, [&](const Comm& comm) {
    for (const CallKind kind : kKinds) {
      for (const size_t count : {size_t{1}, size_t{37}, size_t{1000}, size_t{150'000}}) {
        for (const auto& [dtype, op] :
             {std::tuple(DType::kF32, ReduceOp::kSum), std::tuple(DType::kBF16, ReduceOp::kSum),
              std::tuple(DType::kF32, ReduceOp::kAvg)}) {
          const bool prefix = kind == CallKind::kScan || kind == CallKind::kExclusiveScan;
          if ((op != ReduceOp::kAvg || !prefix) && (count < 150'000 || op == ReduceOp::kSum)) {
            results[static_cast<size_t>(comm->rank())].push_back(
                Result(comm, kind, dtype, count, op, determinism, blocking));
          }
        }
      }
    }
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
  return results;
}

TEST(Determinism, BitsAreThoseOfAFoldInRankOrder) {
  for (const int size : {2, 3, 9, 17}) {
    RunRanks(size, {}, [&](const Comm& comm) {
      constexpr size_t kCount = 1000;
      for (const bool rank_order : {true, false}) {
        const Raw raw = Result(comm, CallKind::kAllReduce, DType::kF32, kCount, ReduceOp::kSum,
                               rank_order ? Determinism::kRankOrder : Determinism::kAlgorithm,
                               comm->rank() % 2 == 0);
        for (size_t i = 0; rank_order && i < kCount; ++i) {
          float sum = ValueAt(0, i), got;
          for (int r = 1; r < size; ++r) {
            sum += ValueAt(r, i);
          }
          std::memcpy(&got, &raw[i * 4], 4);
          ASSERT_EQ(got, sum) << size << " ranks, element " << i;
        }
      }
    });
  }
}

class DeterminismOver : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Transports, DeterminismOver, testing::Values("inproc", "shm", "tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(DeterminismOver, NeitherTransportNorHostsNorAlgorithmMatter) {
  constexpr int kRanks = 5;
  static const auto* const expected =
      new Results(ResultsOf(kRanks, {.transports = "inproc"}, Determinism::kRankOrder));
  const auto host = [](int rank) { return absl::StrCat("host", rank % 2); };
  RanksOptions options{.transports = GetParam()};
  EXPECT_EQ(ResultsOf(kRanks, options, Determinism::kRankOrder, /*blocking=*/false), *expected);
  for (const char* const name :
       {"direct", "two_step", "recursive_doubling", "halving_doubling", "ring", "tree"}) {
    std::vector<std::string> all;
    for (const CallKind kind : kKinds) {
      if (FindAlgorithm(kind, name).ok()) {
        all.push_back(absl::StrCat(NameOf(kind), ":", name));
      }
    }
    options.algorithms = absl::StrJoin(all, ",");
    EXPECT_EQ(ResultsOf(kRanks, options, Determinism::kRankOrder), *expected) << name;
  }
  options.algorithms = "";
  if (GetParam() == "tcp") {
    options.host_id = host;  // inproc and shm do not reach beyond a host
    EXPECT_EQ(ResultsOf(kRanks, options, Determinism::kRankOrder), *expected);
  }
}

// Without this, the tests above prove nothing.
TEST(Determinism, WithoutItAnotherAlgorithmGivesOtherBits) {
  RanksOptions options{.algorithms = "all_reduce:ring"};
  const Results ring = ResultsOf(3, options, Determinism::kAlgorithm);
  options.algorithms = "all_reduce:direct";
  EXPECT_NE(ResultsOf(3, options, Determinism::kAlgorithm), ring);
  options.algorithms = "all_reduce:ring";
  EXPECT_EQ(ResultsOf(3, options, Determinism::kAlgorithm), ring);  // equal calls give equal bits
}

TEST(Determinism, IsTheCommunicatorsWhereACallDoesNotSay) {
  RanksOptions options{.algorithms = "all_reduce:ring,reduce_scatter:ring"};
  const Results ring = ResultsOf(3, options, Determinism::kDefault);
  options.determinism = Determinism::kRankOrder;
  const Results fixed = ResultsOf(3, options, Determinism::kDefault);
  EXPECT_NE(ring, fixed);
  EXPECT_EQ(ResultsOf(3, options, Determinism::kAlgorithm), ring);
  options.determinism = Determinism::kDefault;
  EXPECT_EQ(ResultsOf(3, options, Determinism::kRankOrder), fixed);
  RunRanks(2, {.algorithms = "all_reduce:ring", .determinism = Determinism::kRankOrder},
           [](const Comm& comm) {
             EXPECT_STRNE(*comm->AlgorithmFor(CallKind::kAllReduce, 1000, DType::kF32), "ring");
             EXPECT_STREQ(*comm->AlgorithmFor(CallKind::kAllReduce, 1000, DType::kI32), "ring");
             const auto part = comm->Split(0, 0);
             ASSERT_TRUE(part.ok()) << part.status();
             EXPECT_STRNE(*(*part)->AlgorithmFor(CallKind::kAllReduce, 1000, DType::kF32), "ring");
           });
}

// Holds for all bits (NaN, infinities, zeros of both signs) and for all addresses of buffers.
TEST(Determinism, EveryRankGetsTheSameBitsOfAnyAlgorithm) {
  constexpr int kRanks = 5;
  constexpr size_t kCount = 5003;
  for (const Algorithm& algorithm : Catalog()) {
    if (algorithm.kind != CallKind::kAllReduce) {
      continue;
    }
    RanksOptions options{.algorithms = absl::StrCat("all_reduce:", algorithm.name)};
    for (const auto& [dtype, op] :
         {std::tuple(DType::kF32, ReduceOp::kSum), std::tuple(DType::kF32, ReduceOp::kMax),
          std::tuple(DType::kF32, ReduceOp::kProd), std::tuple(DType::kBF16, ReduceOp::kSum),
          std::tuple(DType::kF16, ReduceOp::kSum), std::tuple(DType::kF16, ReduceOp::kMin),
          std::tuple(DType::kF64, ReduceOp::kAvg), std::tuple(DType::kF8E4M3, ReduceOp::kSum)}) {
      std::vector<Raw> results(kRanks);
      RunRanks(kRanks, options, [&](const Comm& comm) {
        const auto width = static_cast<size_t>(SizeOf(dtype));
        const size_t skip = static_cast<size_t>(comm->rank()) * width;
        std::mt19937_64 random(static_cast<uint64_t>(comm->rank()) + 1);
        Raw raw(skip + kCount * width);
        for (size_t i = 0; i < raw.size(); ++i) {
          // A quarter of the bytes is 0x7f or 0xff, so that many patterns are NaN.
          raw[i] = static_cast<uint8_t>(random() % 4 == 0 ? 0x7f | (random() & 0x80) : random());
        }
        ASSERT_EQ(comm->AllReduce(raw.data() + skip, raw.data() + skip, kCount, dtype, op),
                  absl::OkStatus());
        results[static_cast<size_t>(comm->rank())].assign(raw.begin() + static_cast<long>(skip),
                                                          raw.end());
      });
      for (const Raw& one : results) {
        EXPECT_TRUE(one == results[0])
            << algorithm.name << " " << NameOf(op) << " of " << NameOf(dtype);
      }
    }
  }
}

TEST(Determinism, RanksMustAgree) {
  RunRanks(2, [](const Comm& comm) {
    float value = 1;
    CallOptions options;
    options.determinism = comm->rank() == 0 ? Determinism::kRankOrder : Determinism::kDefault;
    const absl::Status status =
        comm->AllReduce(&value, &value, 1, DType::kF32, ReduceOp::kSum, options);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("determinism rank_order"));
  });
}

}  // namespace
}  // namespace entrain
