// Measures the kernel tables: bytes read and written per second, in the first-level cache, in the
// last-level cache and in memory. Names are table/loop/type/elements. The line "memcpy" shows the
// limit of the machine.
//
//    kernel_bench --benchmark_filter=avx2/combine2
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"

#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

constexpr int64_t kSizes[] = {1 << 12, 1 << 18, 1 << 25};  // bytes of one array

// Arrays of one size, with small values that are not zero in any float type.
struct Arrays {
  explicit Arrays(int64_t bytes)
      : memory(5, std::vector<uint8_t>(static_cast<size_t>(bytes), 0x3c)) {}
  void* operator[](size_t i) { return memory[i].data(); }
  float* floats(size_t i) { return reinterpret_cast<float*>(memory[i].data()); }
  std::vector<std::vector<uint8_t>> memory;
};

// One loop over `count` elements of the arrays. It moves `bytes_per_element` bytes of memory per
// element.
struct Loop {
  std::string name;
  int64_t element_bytes;
  int64_t bytes_per_element;
  std::function<void(Arrays&, int64_t count)> run;
};

void Register(const std::string& prefix, const Loop& loop) {
  for (const int64_t bytes : kSizes) {
    const int64_t count = bytes / loop.element_bytes;
    benchmark::RegisterBenchmark(
        absl::StrCat(prefix, "/", loop.name, "/", count).c_str(),
        [loop, bytes, count](benchmark::State& state) {
          Arrays arrays(bytes);
          for (auto _ : state) {
            loop.run(arrays, count);
            benchmark::ClobberMemory();
          }
          state.SetBytesProcessed(state.iterations() * count * loop.bytes_per_element);
        });
  }
}

Loop Combine(const Kernels& k, ReduceOp op, DType dtype, int n, int divide) {
  const int64_t size = SizeOf(dtype);
  return {absl::StrCat("combine", n, "_", divide > 1 ? "avg" : NameOf(op), "/", NameOf(dtype)),
          size, (n + 1) * size, [&k, op, dtype, n, divide](Arrays& a, int64_t count) {
            const void* const sources[] = {a[0], a[1], a[2], a[3]};
            k.combine(op, dtype, a[4], sources, n, count, divide);
          }};
}

Loop Cast(const Kernels& k, DType to, DType from) {
  return {absl::StrCat("cast_", NameOf(from), "_to_", NameOf(to)), 4, SizeOf(to) + SizeOf(from),
          [&k, to, from](Arrays& a, int64_t count) { k.cast(a[0], to, a[1], from, count); }};
}

std::vector<Loop> LoopsOf(const Kernels& k) {
  std::vector<Loop> loops;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kF8E4M3,
                            DType::kF8E5M2, DType::kI8, DType::kI32}) {
    loops.push_back(Combine(k, ReduceOp::kSum, dtype, 2, 1));
    loops.push_back(Combine(k, ReduceOp::kSum, dtype, 4, 1));
    loops.push_back(Combine(k, ReduceOp::kSum, dtype, 2, 2));
  }
  loops.push_back(Combine(k, ReduceOp::kMax, DType::kF32, 2, 1));
  loops.push_back(Combine(k, ReduceOp::kProd, DType::kI64, 2, 1));
  loops.push_back(Combine(k, ReduceOp::kBitXor, DType::kI32, 2, 1));
  loops.push_back(Combine(k, ReduceOp::kLogicalAnd, DType::kF32, 2, 1));
  loops.push_back(Combine(k, ReduceOp::kLogicalAnd, DType::kU8, 2, 1));
  for (const DType dtype : {DType::kF32I32, DType::kF64I64, DType::kI32I32, DType::kI64I64}) {
    loops.push_back(Combine(k, ReduceOp::kMinLoc, dtype, 2, 1));
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI32}) {
    const int64_t size = SizeOf(dtype);
    loops.push_back({absl::StrCat("scale_any/", NameOf(dtype)), size, 2 * size,
                     [&k, dtype](Arrays& a, int64_t n) { k.scale_any(dtype, a[0], a[1], n, 3); }});
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    const int64_t size = SizeOf(dtype);
    loops.push_back({absl::StrCat("combine_weighted4/", NameOf(dtype)), size, 5 * size,
                     [&k, dtype](Arrays& a, int64_t n) {
                       const void* const sources[] = {a[0], a[1], a[2], a[3]};
                       const double weights[] = {0.1, 0.2, 0.3, 0.4};
                       k.combine_weighted(dtype, a[4], sources, weights, 4, n);
                     }});
    loops.push_back({absl::StrCat("combine_agreeing4/", NameOf(dtype)), size, 5 * size,
                     [&k, dtype](Arrays& a, int64_t n) {
                       const void* const sources[] = {a[0], a[1], a[2], a[3]};
                       const double weights[] = {0.1, 0.2, 0.3, 0.4};
                       k.combine_agreeing(Consensus::kSum, true, dtype, a[4], sources, weights, 4,
                                          n);
                     }});
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    loops.push_back(Cast(k, dtype, DType::kF32));
    loops.push_back(Cast(k, DType::kF32, dtype));
    loops.push_back(
        {absl::StrCat("accumulate/", NameOf(dtype)), 4, 8 + SizeOf(dtype),
         [&k, dtype](Arrays& a, int64_t n) { k.accumulate(a.floats(0), a[1], dtype, n); }});
  }
  loops.push_back({"sum_of_squares", 4, 4, [&k](Arrays& a, int64_t n) {
                     benchmark::DoNotOptimize(k.sum_of_squares(a.floats(0), n));
                   }});
  loops.push_back({"square_of_delta", 4, 8, [&k](Arrays& a, int64_t n) {
                     benchmark::DoNotOptimize(k.square_of_delta(a.floats(0), a.floats(1), n));
                   }});
  loops.push_back({"weighted_delta", 4, 12, [&k](Arrays& a, int64_t n) {
                     k.weighted_delta(a.floats(0), a.floats(1), a.floats(2), 0.3f, n);
                   }});
  loops.push_back(
      {"outer_step", 4, 24, [&k](Arrays& a, int64_t n) {
         const SgdArgs args = {
             .lr = 1e-6, .momentum = 0.9, .weight_decay = 0, .nesterov = true, .first_step = false};
         k.outer_step(args, 0.5f, a.floats(0), a.floats(1), a.floats(2), a.floats(3), n);
       }});
  loops.push_back(
      {"axpy", 4, 12, [&k](Arrays& a, int64_t n) { k.axpy(a.floats(0), 1e-9f, a.floats(1), n); }});
  loops.push_back({"all_finite", 4, 4, [&k](Arrays& a, int64_t n) {
                     benchmark::DoNotOptimize(k.all_finite(a[0], DType::kF32, n));
                   }});
  loops.push_back(
      {"sgd_nesterov", 4, 20, [&k](Arrays& a, int64_t n) {
         const SgdArgs args = {
             .lr = 1e-6, .momentum = 0.9, .weight_decay = 0, .nesterov = true, .first_step = false};
         k.sgd(args, a.floats(0), a.floats(0), a.floats(1), a.floats(2), n);
       }});
  loops.push_back({"adamw", 4, 28, [&k](Arrays& a, int64_t n) {
                     const AdamwArgs args = {.lr = 1e-6,
                                             .beta1 = 0.9,
                                             .beta2 = 0.999,
                                             .eps = 1e-8,
                                             .weight_decay = 0,
                                             .correction1 = 0.5,
                                             .correction2 = 0.5};
                     k.adamw(args, a.floats(0), a.floats(0), a.floats(1), a.floats(2), a.floats(3),
                             n);
                   }});
  loops.push_back({"agd", 4, 28, [&k](Arrays& a, int64_t n) {
                     const AgdArgs args = {.p_factor = 1,
                                           .coupled_lambda = 0,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999,
                                           .rest1_over_c1 = 0.2,
                                           .inverse_c1_before = 2,
                                           .delta_root_c2 = 1e-8,
                                           .clip = 1e30,
                                           .a = 1e-6,
                                           .lambda = 0,
                                           .first_step = false};
                     benchmark::DoNotOptimize(k.agd(args,
                                                    {a.floats(0), a.floats(0), a.floats(1),
                                                     a.floats(2), a.floats(3), nullptr, nullptr},
                                                    n));
                   }});
  // WSAM: the ascent to w + e in both scalings, the combined gradient of the coupled form, and the
  // step of the decoupled form.
  for (const bool adaptive : {false, true}) {
    loops.push_back({adaptive ? "wsam_ascend_adaptive" : "wsam_ascend", 4, 16,
                     [&k, adaptive](Arrays& a, int64_t n) {
                       k.ascend(adaptive, 1e-9f, a.floats(0), a.floats(1), a.floats(2), n);
                     }});
  }
  loops.push_back({"wsam_combine", 4, 12, [&k](Arrays& a, int64_t n) {
                     const SharpnessArgs args = {.keep = 1, .rate = 9, .first = 1, .second = 1};
                     k.add_sharpness(args, a.floats(0), a.floats(1), a.floats(1), a.floats(2), n);
                   }});
  loops.push_back({"wsam_step", 4, 16, [&k](Arrays& a, int64_t n) {
                     const SharpnessArgs args = {.keep = 1, .rate = -1e-9, .first = 1, .second = 1};
                     k.add_sharpness(args, a.floats(0), a.floats(0), a.floats(1), a.floats(2), n);
                   }});
  return loops;
}

void RegisterAll() {
  Register("memcpy", {"copy", 1, 2, [](Arrays& a, int64_t bytes) {
                        std::memcpy(a[0], a[1], static_cast<size_t>(bytes));
                      }});
  const KernelTables tables = AllKernels();
  for (int i = 0; i < tables.count; ++i) {
    for (const Loop& loop : LoopsOf(*tables.tables[i])) {
      Register(tables.tables[i]->name, loop);
    }
  }
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  entrain::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
