// Reductions in which only the larger elements, or random elements, travel.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "tests/comm/merging_calls.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 4;  // in the tests of bytes

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
              continue;  // keeps no element, see below
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

// Reduces an array of ones with `reduction`, in which only one rank has a weight. Returns the
// result: the elements that this rank has sent.
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
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());  // the error affects this call only
  });
}

TEST(SparsifiedGta, BytesAreThoseOfWhatIsLeft) {
  constexpr int64_t kCount = 400'000;
  RunRanks(kRanks, [](const Comm& comm) {
    Values x(kCount);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = std::sin(static_cast<double>(i) * (comm->rank() + 1.37));
    }
    const Raw in = ToRaw(x, DType::kF32);
    Raw out(in.size()), part(in.size() / kRanks);
    const double dense = static_cast<double>(in.size()) * (kRanks - 1);  // all ranks together
    for (const double density : {0.001, 0.01, 0.1, 0.5, 0.99}) {
      const Merging merging = Sparsified({}, Sparsification::kMagnitude, density);
      Call scatter = AllReduceOf(Gta(merging), DType::kF32, in, part);
      scatter.kind = CallKind::kReduceScatter;
      scatter.count = kCount / kRanks;
      const auto contributions = static_cast<double>(SentByAll(comm, scatter));
      EXPECT_LE(contributions, 1.05 * (density + 1.0 / 32) * dense) << density;
      EXPECT_LE(contributions, 1.05 * 2 * density * dense + 1000) << density;  // by indices
      const auto whole =
          static_cast<double>(SentByAll(comm, AllReduceOf(Gta(merging), DType::kF32, in, out)));
      // The result is sent as the union of the supports, as indices or a bitmap with values, or
      // whole.
      const Values result = FromRaw(out, DType::kF32);
      const auto support = static_cast<double>(
          std::count_if(result.begin(), result.end(), [](double v) { return v != 0; }));
      const double least =
          std::min({4.0 * kCount, 4 * support + kCount / 8.0, 8 * support}) * (kRanks - 1);
      EXPECT_LE(whole - contributions, 1.01 * least + 1000) << density;
    }
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
        EXPECT_LE(sent, 16);  // the message that it sends nothing
      }
    }
  });
}

// A packed call consists of several calls. Packed calls must not mix with each other, nor with
// other calls at the same time.
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
        // Tagged calls are started in a different order on every rank.
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
          // Makes no call until the others have given up.
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

}  // namespace
}  // namespace entrain
