#include "lib/kernels/kernels.h"


#if defined(ENTRAIN_KERNELS_X86)
#include <cpuid.h>
#endif

namespace entrain {
namespace {

#if defined(ENTRAIN_KERNELS_X86)
// __builtin_cpu_supports tests the processor. It also tests that the operating system saves the
// wide registers.
bool HasAvx2() {
  // The builtins of some compilers do not know F16C, so cpuid is read directly. F16C uses the
  // registers of AVX.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2");
}

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool HasAvx512Bf16() {
  // cpuid is read directly for the same reason as in HasAvx2.
  unsigned a = 0, b = 0, c = 0, d = 0;
  return HasAvx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 5) != 0;
}

bool HasAvx512Fp16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return HasAvx512Bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & 1u << 23) != 0;
}
#endif

KernelTables FindKernels() {
  KernelTables found = {{&base::kKernels}, 1};
#if defined(ENTRAIN_KERNELS_X86)
  __builtin_cpu_init();
  if (HasAvx2()) {
    found.tables[found.count++] = &avx2::kKernels;
    if (HasAvx512()) {
      found.tables[found.count++] = &avx512::kKernels;
      if (HasAvx512Bf16()) {
        found.tables[found.count++] = &avx512bf16::kKernels;
        if (HasAvx512Fp16()) {
          found.tables[found.count++] = &avx512fp16::kKernels;
        }
      }
    }
  }
#elif defined(ENTRAIN_KERNELS_ARM)
  found.tables[found.count++] = &neon::kKernels;
#endif
  return found;
}

}  // namespace

KernelTables AllKernels() {
  static const KernelTables tables = FindKernels();
  return tables;
}

const Kernels& BestKernels() {
  const KernelTables tables = AllKernels();
  return *tables.tables[tables.count - 1];
}

}  // namespace entrain
