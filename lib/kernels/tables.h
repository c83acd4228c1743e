// The tables of all instruction sets. Each is in the namespace of its source file. CMakeLists.txt
// decides which of them are built for a target architecture.
#pragma once

#include "lib/kernels/kernels.h"

namespace entrain {

namespace base {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512bf16 {
extern const Kernels kKernels;
}
namespace avx512fp16 {
extern const Kernels kKernels;
}
namespace neon {
extern const Kernels kKernels;
}

}  // namespace entrain
