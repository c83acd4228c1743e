// Reductions that travel in a wire format, and the remainder of error feedback.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/comm/merge_state.h"
#include "tests/comm/merging_calls.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 4;  // in the tests of bytes

constexpr WireFormat kFormats[] = {WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4};

// For a mean of contributions of at most 2: half a step of the contributions and half a step of the
// result.
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

// Every call sends a tenth of the values. The rest is sent later, so the sum of the results stays
// near the sum of the means.
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
          EXPECT_GT(worst, 1.0);  // otherwise the test proves nothing
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
    // The tags continue from the saved state.
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

TEST(EncodedGta, BytesAreThoseOfTheFormat) {
  constexpr int64_t kCount = 400'000;
  RunRanks(kRanks, [](const Comm& comm) {
    const Raw in =
        ToRaw(Contributions(kRanks, kCount)[static_cast<size_t>(comm->rank())], DType::kF32);
    Raw out(in.size());
    const int64_t dense = SentByAll(comm, AllReduceOf({}, DType::kF32, in, out));
    const struct {
      WireFormat format;
      double bits;  // per value
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
      scatter.count = kCount / kRanks;
      EXPECT_LE(static_cast<double>(SentByAll(comm, scatter)),
                (0.25 * c.bits + 1) / 64 * static_cast<double>(dense) + 2000);
    }
  });
}

}  // namespace
}  // namespace entrain
