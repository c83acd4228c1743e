// Invariants of ACCO and its baselines, checked by an optimizer that records its calls.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "lib/train/acco/gradient_channel.h"
#include "tests/support/ranks.h"
#include "tests/train/arrays.h"

namespace entrain {
namespace {

constexpr DelayMethod kMethods[] = {DelayMethod::kAcco, DelayMethod::kDpu, DelayMethod::kWp,
                                    DelayMethod::kZero1};

// ---- Every micro-batch is in one commit --------------------------------------------------------

constexpr int kRanks = 3;
constexpr int64_t kMost = 400;  // micro-batches per rank

// Micro-batch j of rank r is 1 in element r kMost + j of the gradient, and 0 elsewhere.
struct Seen {
  // Number of commits that contained each micro-batch.
  std::vector<int> commits = std::vector<int>(kRanks * kMost);
  std::mutex mutex;
};

struct Looker {
  Seen* seen;
  int64_t first;  // first element of the shard
};

int32_t Look(void* user, int32_t preview, int64_t, double, size_t first, size_t count,
             const void* grads, void* master, void* out) {
  const Looker& looker = *static_cast<const Looker*>(user);
  const auto* const g = static_cast<const float*>(grads);
  if (preview != 0) {
    std::memcpy(out, master, count * sizeof(float));
    return 0;
  }
  const std::lock_guard<std::mutex> lock(looker.seen->mutex);
  for (size_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(looker.first) + first + i;
    looker.seen->commits[at] += g[i] != 0 ? 1 : 0;
  }
  return 0;
}

TEST(Invariants, EveryMicroBatchIsInExactlyOneCommitOrDropped) {
  for (const DelayMethod method : kMethods) {
    Seen seen;
    int64_t made[kRanks] = {}, dropped[kRanks] = {}, gradients = 0;
    RunRanks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
      const auto rank = static_cast<size_t>(comm->rank());
      std::vector<float> params(kRanks * kMost);
      Looker looker{&seen, 0};
      ChannelOptions options;
      options.method = method;
      options.count = kRanks * kMost;
      options.params = params.data();
      options.step = Look;
      options.user = &looker;
      options.limit_unit = ProgressUnit::kGradients;
      options.limit = 120;
      auto channel = GradientChannel::Create(*comm, options);
      ASSERT_TRUE(channel.ok()) << channel.status();
      looker.first = (*channel)->slab().layer(0).first;
      void* const sums = (*channel)->gradients();
      while (!(*channel)->info().finished && made[rank] < kMost) {
        // One rank is fast, one is slow, and one varies.
        const int64_t ms = rank == 0 ? 0 : rank == 1 ? 3 : made[rank] % 4;
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        auto values = ReadArray<float>(sums, kRanks * kMost);
        values[rank * kMost + static_cast<size_t>(made[rank]++)] += 1;
        WriteArray(sums, values);
        ASSERT_EQ((*channel)->Add(1, 1), absl::OkStatus());
        const bool full = made[rank] % 20 == 0;  // otherwise the fast rank makes thousands
        while (full && !*(*channel)->Poll()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        if (*(*channel)->Poll()) {
          ASSERT_EQ((*channel)->Install(), absl::OkStatus());
        }
      }
      ASSERT_TRUE((*channel)->info().finished);
      dropped[rank] = (*channel)->info().dropped;
      const std::lock_guard<std::mutex> lock(seen.mutex);
      gradients = (*channel)->info().gradients;
    });
    int64_t committed = 0;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      for (int64_t j = 0; j < kMost; ++j) {
        const bool in = j < made[rank] - dropped[rank];
        EXPECT_EQ(seen.commits[rank * kMost + static_cast<size_t>(j)], in ? 1 : 0)
            << "method " << static_cast<int>(method) << ", rank " << rank << ", micro-batch " << j
            << " of " << made[rank] << ", of which " << dropped[rank] << " dropped";
        committed += in ? 1 : 0;
      }
    }
    EXPECT_EQ(committed, gradients);
    EXPECT_GE(committed, 120);
  }
}

// ---- The number of ranks does not matter --------------------------------------------------------

// The gradients of |theta - target|^2 / 2 consist of small whole numbers, so sums are exact in any
// order.
std::vector<double> Train(DelayMethod method, int ranks) {
  // kTogether: micro-batches of all ranks in a round.
  constexpr int64_t kCount = 37, kTogether = 4;
  std::vector<double> result;
  RunRanks(ranks, [&](const std::shared_ptr<Communicator>& comm) {
    std::vector<double> params(kCount, 1.0);
    ChannelOptions options;
    options.method = method;
    options.count = kCount;
    options.params = params.data();
    options.params_dtype = options.grads_dtype = options.wire_dtype = DType::kF64;
    options.scripted.assign(24, static_cast<int32_t>(kTogether / ranks));
    options.limit = 10;
    options.lr = 0.25;
    options.step = [](void*, int32_t preview, int64_t, double lr, size_t, size_t count,
                      const void* grads, void* master, void* out) {
      const auto* const g = static_cast<const double*>(grads);
      auto* const theta = static_cast<double*>(master);
      double* const to = preview != 0 ? static_cast<double*>(out) : theta;
      for (size_t i = 0; i < count; ++i) {
        to[i] = theta[i] - lr * g[i];
      }
      return 0;
    };
    auto channel = GradientChannel::Create(*comm, options);
    ASSERT_TRUE(channel.ok()) << channel.status();
    for (int64_t round = 0; !(*channel)->info().finished; ++round) {
      for (int64_t j = comm->rank(); j < kTogether; j += ranks) {
        auto sums = ReadArray<double>((*channel)->gradients(), kCount);
        const std::vector<double> theta = params;
        for (int64_t i = 0; i < kCount; ++i) {
          const auto n = static_cast<size_t>(i);
          sums[n] += theta[n] - static_cast<double>((3 * round + 5 * j + i) % 8);
        }
        WriteArray((*channel)->gradients(), sums);
        ASSERT_EQ((*channel)->Add(1, 1), absl::OkStatus());
      }
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
    }
    if (comm->rank() == 0) {
      result = params;
    }
  });
  return result;
}

TEST(Invariants, OneRankIsAsGoodAsManyWithTheSameGradients) {
  for (const DelayMethod method : kMethods) {
    const std::vector<double> one = Train(method, 1);
    for (const int ranks : {2, 4}) {
      const std::vector<double> many = Train(method, ranks);
      ASSERT_EQ(many.size(), one.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(many[i], one[i], 1e-12) << static_cast<int>(method) << " " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace entrain
