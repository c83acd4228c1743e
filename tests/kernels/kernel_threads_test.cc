#include "lib/kernels/kernel_threads.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

#include "lib/base/dtype.h"
#include "lib/base/float_environment.h"

namespace entrain {
namespace {

constexpr int64_t kMuch = 3 * KernelThreads::kLeastShared + 17;
constexpr int kNumbers[] = {1, 2, 3, 7};

// Counts how often each element was in a piece.
class Visits {
 public:
  explicit Visits(int64_t total) : visits_(static_cast<size_t>(total), 0) {}
  void Add(int64_t first, int64_t count) {
    pieces_.fetch_add(1);
    for (int64_t i = first; i < first + count; ++i) {
      ++visits_.at(static_cast<size_t>(i));
    }
  }
  void ExpectEach(int times) const {
    for (size_t i = 0; i < visits_.size(); ++i) {
      ASSERT_EQ(visits_[i], times) << "element " << i;
    }
  }
  int pieces() const { return pieces_.load(); }

 private:
  std::vector<int32_t> visits_;
  std::atomic<int> pieces_{0};
};

TEST(KernelThreads, PiecesCoverEachElementOnceAndBeginAtTheUnit) {
  for (const int number : kNumbers) {
    KernelThreads threads(number);
    EXPECT_EQ(threads.threads(), number);
    for (const int64_t total : {int64_t{0}, int64_t{1}, KernelThreads::kLeastShared - 1,
                                KernelThreads::kLeastShared, kMuch, int64_t{5000011}}) {
      for (const int64_t unit : {1, 1000, 16384}) {
        Visits visits(total);
        threads.Run(total, unit, [&](int64_t first, int64_t count) {
          EXPECT_EQ(first % unit, 0);
          visits.Add(first, count);
        });
        visits.ExpectEach(1);
        if (number == 1 || total < KernelThreads::kLeastShared) {
          EXPECT_EQ(visits.pieces(), 1);
        } else {
          EXPECT_GT(visits.pieces(), 1);
        }
      }
    }
  }
}

// The first piece ends only when another thread is in a piece too.
TEST(KernelThreads, OtherThreadsTakePartInTheLibrarysFloatEnvironment) {
  KernelThreads threads(2);
  absl::Notification here, there;
  const auto caller = std::this_thread::get_id();
  threads.Run(kMuch, 1, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() == caller) {
      if (!here.HasBeenNotified()) {
        here.Notify();
        there.WaitForNotification();
      }
    } else if (!there.HasBeenNotified()) {
      EXPECT_TRUE(FloatEnvironment::IsSet());
      here.WaitForNotification();
      there.Notify();
    }
  });
}

TEST(KernelThreads, APassInAPieceAndThePassOfAnotherThreadAreNotShared) {
  KernelThreads threads(3);
  const KernelThreads::Scope scope(&threads);
  Visits outer(kMuch), inner(kMuch), other(kMuch);
  bool begun = false;
  const auto caller = std::this_thread::get_id();
  ForPieces(kMuch, 1, [&](int64_t first, int64_t count) {
    outer.Add(first, count);
    if (std::this_thread::get_id() != caller || std::exchange(begun, true)) {
      return;
    }
    ForPieces(kMuch, 1, [&](int64_t at, int64_t length) { inner.Add(at, length); });
    std::thread([&] {
      const KernelThreads::Scope same(&threads);
      ForPieces(kMuch, 1, [&](int64_t at, int64_t length) { other.Add(at, length); });
    }).join();
  });
  outer.ExpectEach(1);
  inner.ExpectEach(begun ? 1 : 0);
  other.ExpectEach(begun ? 1 : 0);
  EXPECT_LE(inner.pieces(), 1);
  EXPECT_LE(other.pieces(), 1);
}

TEST(KernelThreads, ManyObjectsAndManyCallers) {
  constexpr int kCallers = 4, kPasses = 20;
  KernelThreads common(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      for (int pass = 0; pass < kPasses; ++pass) {
        KernelThreads own(2);
        for (KernelThreads* const threads : {&own, &common}) {
          const KernelThreads::Scope scope(threads);
          Visits visits(kMuch);
          ForPieces(kMuch, 64, [&](int64_t first, int64_t count) { visits.Add(first, count); });
          visits.ExpectEach(1);
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
}

TEST(KernelThreads, ScopesNest) {
  KernelThreads one(1), two(2);
  EXPECT_EQ(KernelThreads::Current(), nullptr);
  {
    const KernelThreads::Scope outer(&one);
    {
      const KernelThreads::Scope inner(&two);
      EXPECT_EQ(KernelThreads::Current(), &two);
      const KernelThreads::Scope none(nullptr);
      EXPECT_EQ(KernelThreads::Current(), nullptr);
    }
    EXPECT_EQ(KernelThreads::Current(), &one);
  }
  EXPECT_EQ(KernelThreads::Current(), nullptr);
}

// ---- The loops ---------------------------------------------------------------------------------

std::vector<float> Values(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = (static_cast<uint32_t>(i) + seed) * 2654435761u;
    values[i] = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
  }
  return values;
}

void ExpectSame(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
}

TEST(SharedKernels, HaveTheBitsOfTheKernelsOfOneThread) {
  const std::vector<float> a = Values(kMuch, 1), b = Values(kMuch, 2), c = Values(kMuch, 3);
  const auto run = [&](const Kernels& kernels) {
    std::vector<std::vector<float>> results(5, std::vector<float>(static_cast<size_t>(kMuch)));
    kernels.weighted_delta(results[0].data(), a.data(), b.data(), 0.3f, kMuch);
    results[1] = a;
    kernels.axpy(results[1].data(), -0.7f, b.data(), kMuch);
    kernels.scale_any(DType::kF32, results[2].data(), a.data(), kMuch, 1.0 / 3);
    const void* const three[] = {a.data(), b.data(), c.data()};
    const double weights[] = {0.2, -1, 1.0 / 7};
    kernels.combine_weighted(DType::kF32, results[3].data(), three, weights, 3, kMuch);
    std::vector<std::byte> narrow(static_cast<size_t>(kMuch * SizeOf(DType::kBF16)));
    kernels.cast(narrow.data(), DType::kBF16, a.data(), DType::kF32, kMuch);
    kernels.cast(results[4].data(), DType::kF32, narrow.data(), DType::kBF16, kMuch);
    return results;
  };
  const auto want = run(BestKernels());
  for (const int number : kNumbers) {
    KernelThreads threads(number);
    const KernelThreads::Scope scope(&threads);
    const auto got = run(SharedKernels());
    for (size_t i = 0; i < want.size(); ++i) {
      ExpectSame(got[i], want[i]);
    }
  }
}

}  // namespace
}  // namespace entrain
