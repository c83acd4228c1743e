#include "tests/comm/merging_calls.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/comm/merge_state.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

BufferView View(const Raw& raw) {
  return {const_cast<std::byte*>(raw.data()), static_cast<int64_t>(raw.size()), MemoryKind::kHost};
}

double ValueAt(int rank, size_t i) {
  uint64_t bits = (static_cast<uint64_t>(rank) * 1000003 + i + 1) * 0x9e3779b97f4a7c15u;
  bits ^= bits >> 31;
  return bits % 3 == 0 ? 0 : static_cast<double>(static_cast<int64_t>(bits >> 20) % 17 - 8) / 4;
}

double ToleranceOf(DType dtype, double value) {
  const double digits = dtype == DType::kF64      ? 1e-15
                        : dtype == DType::kF32    ? 1e-6
                        : dtype == DType::kBF16   ? 0x1p-8
                        : dtype == DType::kF16    ? 0x1p-11
                        : dtype == DType::kF8E4M3 ? 0x1p-4
                                                  : 0x1p-3;
  return digits * std::abs(value) + (SizeOf(dtype) == 1 ? 0x1p-9 : 1e-6);
}

}  // namespace

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

Reduction Gta(const Merging& merging) {
  auto reduction = MakeGta(merging);
  EXPECT_TRUE(reduction.ok()) << reduction.status();
  return *reduction;
}

Merging Sparsified(Merging merging, Sparsification how, double density, uint64_t seed) {
  merging.sparsification = how;
  merging.density = density;
  merging.seed = seed;
  return merging;
}

Merging Encoded(WireFormat format, WireRounding rounding) {
  Merging merging;
  merging.wire_format = format;
  merging.wire_rounding = rounding;
  return merging;
}

std::vector<double> WeightsOf(int kind, int size) {
  std::vector<double> weights;
  for (int r = 0; kind > 0 && r < size; ++r) {
    constexpr double kSome[] = {0.5, 2, -1, 0, 1, 0.25, 4, -0.5};
    weights.push_back(kind == 1 ? r + 1 : kSome[r]);
  }
  return weights;
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

std::vector<Values> LargestOfAll(const std::vector<Values>& x, double density) {
  std::vector<Values> kept;
  for (const Values& one : x) {
    kept.push_back(LargestOf(one, density));
  }
  return kept;
}

PartCounts UnevenParts(int size) {
  PartCounts counts;
  for (int r = 0; r < size; ++r) {
    counts.in.push_back(r % 3 == 1 ? 0 : 311 * r + 5);
  }
  counts.out = counts.in;
  return counts;
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

int64_t SentBy(const Comm& comm, const Call& call) {
  const CommStats before = comm->stats();
  EXPECT_EQ(comm->Run(call), absl::OkStatus());
  return static_cast<int64_t>(comm->stats().bytes_sent - before.bytes_sent);
}

int64_t SentByAll(const Comm& comm, const Call& call) {
  int64_t sent = SentBy(comm, call);
  EXPECT_EQ(comm->AllReduce(&sent, &sent, 1, DType::kI64, ReduceOp::kSum), absl::OkStatus());
  return sent;
}

std::string Describe(const Merging& merging, DType dtype, int size, size_t count) {
  return absl::StrCat(NameOf(dtype), " of ", count, " on ", size, " ranks, consensus ",
                      static_cast<int>(merging.consensus), merging.normalize ? "" : " unnormalized",
                      ", ", merging.weights.size(), " weights");
}

void ExpectNear(const Raw& got, DType dtype, const Values& want, const std::string& what) {
  const Values values = FromRaw(got, dtype);
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(values[i], want[i], ToleranceOf(dtype, want[i])) << what << ", element " << i;
  }
}

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

}  // namespace entrain
