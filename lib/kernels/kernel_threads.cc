#include "lib/kernels/kernel_threads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/dtype.h"
#include "lib/base/library_thread.h"

namespace entrain {
namespace {

// Small enough that no thread waits long for the last piece of another, large enough that taking
// one costs nothing.
constexpr int64_t kLeastPiece = 32 << 10, kMostPiece = 512 << 10;
constexpr int kPiecesEach = 4;   // of a thread
constexpr int64_t kUnit = 1024;  // whole cache lines of every type

thread_local KernelThreads* current = nullptr;

const std::byte* At(const void* array, int64_t element, DType dtype) {
  return static_cast<const std::byte*>(array) + element * SizeOf(dtype);
}
std::byte* At(void* array, int64_t element, DType dtype) {
  return static_cast<std::byte*>(array) + element * SizeOf(dtype);
}

// As ForPieces, with offsets and sizes in bytes.
void ForBytes(int64_t bytes, absl::FunctionRef<void(int64_t, size_t)> body) {
  constexpr int64_t kWord = sizeof(float);
  ForPieces((bytes + kWord - 1) / kWord, 1024, [&](int64_t first, int64_t length) {
    body(first * kWord, static_cast<size_t>(std::min(length * kWord, bytes - first * kWord)));
  });
}

void Cast(void* dst, DType to, const void* src, DType from, int64_t count) {
  ForPieces(count, kUnit, [=](int64_t first, int64_t length) {
    BestKernels().cast(At(dst, first, to), to, At(src, first, from), from, length);
  });
}

void WeightedDelta(float* delta, const float* anchor, const float* params, float weight,
                   int64_t count) {
  ForPieces(count, kUnit, [=](int64_t first, int64_t length) {
    BestKernels().weighted_delta(delta + first, anchor + first, params + first, weight, length);
  });
}

void Axpy(float* y, float a, const float* x, int64_t count) {
  ForPieces(count, kUnit, [=](int64_t first, int64_t length) {
    BestKernels().axpy(y + first, a, x + first, length);
  });
}

void ScaleAny(DType dtype, void* dst, const void* src, int64_t count, double factor) {
  ForPieces(count, kUnit, [=](int64_t first, int64_t length) {
    BestKernels().scale_any(dtype, At(dst, first, dtype), At(src, first, dtype), length, factor);
  });
}

void CombineWeighted(DType dtype, void* dst, const void* const* srcs, const double* weights, int n,
                     int64_t count) {
  ForPieces(count, kUnit, [=](int64_t first, int64_t length) {
    std::vector<const void*> from;
    for (int j = 0; j < n; ++j) {
      from.push_back(At(srcs[j], first, dtype));
    }
    BestKernels().combine_weighted(dtype, At(dst, first, dtype), from.data(), weights, n, length);
  });
}

}  // namespace

KernelThreads::~KernelThreads() {
  std::vector<std::thread> running;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    running.swap(running_);
  }
  for (std::thread& thread : running) {
    thread.join();
  }
}

void KernelThreads::Run(int64_t total, int64_t unit, Body body) {
  if (threads_ <= 1 || total < kLeastShared || busy_.exchange(true, std::memory_order_acquire)) {
    body(0, total);
    return;
  }
  const int64_t even = total / (threads_ * kPiecesEach);
  const int64_t piece = (std::clamp(even, kLeastPiece, kMostPiece) + unit - 1) / unit * unit;
  Pass pass = {.body = body, .total = total, .piece = piece};
  {
    const absl::MutexLock lock(&mutex_);
    StartThreads();
    pass_ = &pass;
  }
  Work(pass);
  {
    const absl::MutexLock lock(&mutex_);
    pass_ = nullptr;
    mutex_.Await(absl::Condition(
        +[](Pass* own) { return own->joined == 0; }, &pass));
  }
  busy_.store(false, std::memory_order_release);
}

void KernelThreads::Work(Pass& pass) {
  while (true) {
    const int64_t first = pass.next.fetch_add(pass.piece, std::memory_order_relaxed);
    if (first >= pass.total) {
      return;
    }
    pass.body(first, std::min(pass.piece, pass.total - first));
  }
}

void KernelThreads::StartThreads() {
  if (std::exchange(started_, true)) {
    return;
  }
  while (static_cast<int>(running_.size()) < threads_ - 1) {
    running_.push_back(LibraryThread([this] { Loop(); }));
  }
}

void KernelThreads::Loop() {
  mutex_.Lock();
  while (true) {
    mutex_.Await(absl::Condition(this, &KernelThreads::IsCalled));
    if (stopping_) {
      break;
    }
    Pass& pass = *pass_;
    ++pass.joined;
    mutex_.Unlock();
    Work(pass);
    mutex_.Lock();
    --pass.joined;
  }
  mutex_.Unlock();
}

KernelThreads::Scope::Scope(KernelThreads* threads) : before_(current) {
  current = threads;
}
KernelThreads::Scope::~Scope() {
  current = before_;
}
KernelThreads* KernelThreads::Current() {
  return current;
}

void ForPieces(int64_t total, int64_t unit, KernelThreads::Body body) {
  if (current == nullptr) {
    body(0, total);
  } else {
    current->Run(total, unit, body);
  }
}

void CopyShared(void* dst, const void* src, int64_t bytes) {
  if (bytes > 0) {
    ForBytes(bytes, [=](int64_t first, size_t length) {
      std::memcpy(static_cast<std::byte*>(dst) + first, static_cast<const std::byte*>(src) + first,
                  length);
    });
  }
}

void ZeroShared(void* dst, int64_t bytes) {
  if (bytes > 0) {
    ForBytes(bytes, [=](int64_t first, size_t length) {
      std::memset(static_cast<std::byte*>(dst) + first, 0, length);
    });
  }
}

const Kernels& SharedKernels() {
  static const Kernels shared = [] {
    Kernels kernels = BestKernels();
    kernels.cast = Cast;
    kernels.weighted_delta = WeightedDelta;
    kernels.axpy = Axpy;
    kernels.scale_any = ScaleAny;
    kernels.combine_weighted = CombineWeighted;
    return kernels;
  }();
  return shared;
}

}  // namespace entrain
