// Threads that share the passes over large arrays with the thread that makes them.
//
// A pass is split into contiguous pieces. The calling thread and the threads of the object take the
// next piece until none is left. So the pass ends even if no other thread gets a core, and the
// calling thread waits only for pieces that another thread has begun. Threads that have nothing to
// do sleep. Which thread computes a piece changes no bit: elements are independent of each other,
// and a sum over pieces must be made by the caller, in their order.
//
// Thread safety: any thread. If a pass is under way, the pass of another thread is not shared. A
// pass that a piece begins on the calling thread is not shared either.
//
// The first shared pass starts the threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

#include "lib/kernels/kernels.h"

namespace entrain {

class KernelThreads {
 public:
  // The most threads that the library uses by itself: more do not make memory faster.
  static constexpr int kMost = 8;
  // A pass over fewer elements is not shared: it takes less time than waking a thread.
  static constexpr int64_t kLeastShared = 128 << 10;

  // `threads` counts the calling thread too; with 1, passes are not shared.
  explicit KernelThreads(int threads) : threads_(threads) {}
  // Must not be called while a pass is under way.
  ~KernelThreads();
  KernelThreads(const KernelThreads&) = delete;
  KernelThreads& operator=(const KernelThreads&) = delete;
  int threads() const { return threads_; }

  // Calls body(first, count) for pieces that are disjoint and cover 0 to `total` - 1. `first` is a
  // multiple of `unit`. Returns when all calls have returned. `body` must not throw, and must not
  // wait for other threads.
  using Body = absl::FunctionRef<void(int64_t first, int64_t count)>;
  void Run(int64_t total, int64_t unit, Body body) ABSL_LOCKS_EXCLUDED(mutex_);

  // While the object lives, ForPieces and SharedKernels of its thread use `threads`, which may be
  // null and must outlive the object. Scopes may be nested.
  class Scope {
   public:
    explicit Scope(KernelThreads* threads);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    KernelThreads* const before_;
  };
  // Returns the calling thread's object, or null.
  static KernelThreads* Current();

 private:
  struct Pass {
    Body body;
    const int64_t total, piece;
    std::atomic<int64_t> next{0};  // relaxed: mutex_ orders a pass with those who join and leave it
    int joined = 0;                // threads of the object that work on the pass
    bool TakesMore() const { return next.load(std::memory_order_relaxed) < total; }
  };
  static void Work(Pass& pass);
  void StartThreads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsCalled() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (pass_ != nullptr && pass_->TakesMore());
  }

  const int threads_;
  // True while a pass is shared. Acquire when it is set, release when it is cleared: the next pass
  // begins after the end of the one before.
  std::atomic<bool> busy_{false};
  absl::Mutex mutex_;
  Pass* pass_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> running_ ABSL_GUARDED_BY(mutex_);
};

// As KernelThreads::Run of the calling thread's object. Without an object, calls body(0, total).
void ForPieces(int64_t total, int64_t unit, KernelThreads::Body body);

// Copy and zero arrays of `bytes` bytes. Share the work as ForPieces does.
void CopyShared(void* dst, const void* src, int64_t bytes);
void ZeroShared(void* dst, int64_t bytes);

// Returns BestKernels(), in which the functions cast, weighted_delta, axpy, scale_any and
// combine_weighted share their work with the threads of the calling thread's object.
const Kernels& SharedKernels();

}  // namespace entrain
