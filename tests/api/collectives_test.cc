// Every collective of the C ABI, with every element type and operator, against a scalar reference.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/elements.h"
#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr size_t kCount = 37;  // no multiple of any tested number of ranks

std::vector<entrain_dtype_t> AllTypes() {
  std::vector<entrain_dtype_t> types;
  for (entrain_dtype_t dtype = ENTRAIN_F32; dtype <= ENTRAIN_U64; ++dtype) {
    types.push_back(dtype);
  }
  return types;
}

bool Reducible(entrain_dtype_t dtype) {
  return dtype != ENTRAIN_F8_E4M3 && dtype != ENTRAIN_F8_E5M2;
}

class Collectives : public testing::TestWithParam<int> {};

void ExpectReduced(const Elements& got, entrain_dtype_t dtype, entrain_op_t op, int size,
                   size_t first, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    ASSERT_NEAR(got.Get(i), Reduced(dtype, op, size, first + i), Tolerance(dtype, op))
        << entrain_dtype_name(dtype) << " " << entrain_op_name(op) << " element " << first + i;
  }
}

void FillContribution(Elements* elements, entrain_dtype_t dtype, entrain_op_t op, int rank,
                      size_t count) {
  for (size_t i = 0; i < count; ++i) {
    elements->Set(i, Contribution(dtype, op, rank, i));
  }
}

template <typename Body>
void ForEachReduction(const Body& body) {
  for (entrain_dtype_t dtype : AllTypes()) {
    for (entrain_op_t op = ENTRAIN_SUM; Reducible(dtype) && op <= ENTRAIN_AVG; ++op) {
      body(dtype, op);
    }
  }
}

TEST_P(Collectives, AllReduceMatchesTheReference) {
  RunWorld(GetParam(), [](const Rank& self) {
    ForEachReduction([&](entrain_dtype_t dtype, entrain_op_t op) {
      Elements in(dtype, kCount), out(dtype, kCount);
      FillContribution(&in, dtype, op, self.rank, kCount);
      ASSERT_OK(entrain_all_reduce(self.comm, in.data(), out.data(), kCount, dtype, op, nullptr,
                                   nullptr));
      ExpectReduced(out, dtype, op, self.size, 0, kCount);
    });
  });
}

TEST_P(Collectives, AllReduceInPlaceMatchesTheReference) {
  RunWorld(GetParam(), [](const Rank& self) {
    ForEachReduction([&](entrain_dtype_t dtype, entrain_op_t op) {
      Elements data(dtype, kCount);
      FillContribution(&data, dtype, op, self.rank, kCount);
      ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), kCount, dtype, op, nullptr,
                                   nullptr));
      ExpectReduced(data, dtype, op, self.size, 0, kCount);
    });
  });
}

TEST_P(Collectives, ReduceScatterMatchesTheReference) {
  RunWorld(GetParam(), [](const Rank& self) {
    const size_t whole = kCount * static_cast<size_t>(self.size);
    const size_t first = kCount * static_cast<size_t>(self.rank);
    ForEachReduction([&](entrain_dtype_t dtype, entrain_op_t op) {
      Elements in(dtype, whole), out(dtype, kCount);
      FillContribution(&in, dtype, op, self.rank, whole);
      ASSERT_OK(entrain_reduce_scatter(self.comm, in.data(), out.data(), kCount, dtype, op, nullptr,
                                       nullptr));
      ExpectReduced(out, dtype, op, self.size, first, kCount);
      // In place, the result goes to this rank's part of the input.
      ASSERT_OK(entrain_reduce_scatter(self.comm, in.data(), in.at(first), kCount, dtype, op,
                                       nullptr, nullptr));
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(in.Get(first + i), out.Get(i));
      }
    });
  });
}

TEST_P(Collectives, AllGatherMovesEveryType) {
  RunWorld(GetParam(), [](const Rank& self) {
    const size_t whole = kCount * static_cast<size_t>(self.size);
    const size_t first = kCount * static_cast<size_t>(self.rank);
    for (entrain_dtype_t dtype : AllTypes()) {
      Elements in(dtype, kCount), out(dtype, whole), same(dtype, whole);
      for (size_t i = 0; i < kCount; ++i) {
        in.Set(i, Contribution(dtype, ENTRAIN_SUM, self.rank, i));
        same.Set(first + i, in.Get(i));
      }
      ASSERT_OK(
          entrain_all_gather(self.comm, in.data(), out.data(), kCount, dtype, nullptr, nullptr));
      ASSERT_OK(entrain_all_gather(self.comm, same.at(first), same.data(), kCount, dtype, nullptr,
                                   nullptr));
      for (size_t i = 0; i < whole; ++i) {
        const int from = static_cast<int>(i / kCount);
        ASSERT_EQ(out.Get(i), Contribution(dtype, ENTRAIN_SUM, from, i % kCount))
            << entrain_dtype_name(dtype);
        ASSERT_EQ(same.Get(i), out.Get(i)) << "in place, " << entrain_dtype_name(dtype);
      }
    }
  });
}

TEST_P(Collectives, BroadcastMovesEveryTypeFromEveryRoot) {
  RunWorld(GetParam(), [](const Rank& self) {
    for (entrain_dtype_t dtype : AllTypes()) {
      for (int root = 0; root < self.size; ++root) {
        Elements data(dtype, kCount);
        FillContribution(&data, dtype, ENTRAIN_SUM, self.rank, kCount);
        ASSERT_OK(entrain_broadcast(self.comm, data.data(), kCount, dtype, root, nullptr, nullptr));
        for (size_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(data.Get(i), Contribution(dtype, ENTRAIN_SUM, root, i))
              << entrain_dtype_name(dtype);
        }
      }
    }
  });
}

TEST_P(Collectives, SendAndRecvGoAroundTheRing) {
  RunWorld(GetParam(), [](const Rank& self) {
    if (self.size == 1) {
      return;  // there is no other rank
    }
    const int next = (self.rank + 1) % self.size;
    const int previous = (self.rank + self.size - 1) % self.size;
    for (entrain_dtype_t dtype : AllTypes()) {
      Elements out(dtype, kCount), in(dtype, kCount);
      FillContribution(&out, dtype, ENTRAIN_SUM, self.rank, kCount);
      entrain_work_t* sent = nullptr;
      ASSERT_OK(entrain_send(self.comm, out.data(), kCount, dtype, next, nullptr, &sent));
      ASSERT_OK(entrain_recv(self.comm, in.data(), kCount, dtype, previous, nullptr, nullptr));
      ASSERT_OK(entrain_work_wait(sent, -1));
      entrain_work_free(sent);
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(in.Get(i), Contribution(dtype, ENTRAIN_SUM, previous, i))
            << entrain_dtype_name(dtype);
      }
    }
  });
}

TEST_P(Collectives, ZeroElementsAreLegalAndNeedNoBuffers) {
  RunWorld(GetParam(), [](const Rank& self) {
    EXPECT_OK(entrain_all_reduce(self.comm, nullptr, nullptr, 0, ENTRAIN_F32, ENTRAIN_SUM, nullptr,
                                 nullptr));
    EXPECT_OK(entrain_reduce_scatter(self.comm, nullptr, nullptr, 0, ENTRAIN_F32, ENTRAIN_SUM,
                                     nullptr, nullptr));
    EXPECT_OK(entrain_all_gather(self.comm, nullptr, nullptr, 0, ENTRAIN_F32, nullptr, nullptr));
    EXPECT_OK(entrain_broadcast(self.comm, nullptr, 0, ENTRAIN_F32, 0, nullptr, nullptr));
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST_P(Collectives, IntegerSumsWrap) {
  RunWorld(GetParam(), [](const Rank& self) {
    uint8_t data = 200;
    ASSERT_OK(
        entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_U8, ENTRAIN_SUM, nullptr, nullptr));
    EXPECT_EQ(data, (200 * self.size) % 256);
  });
}

TEST_P(Collectives, LargeBuffersMatchOverTheSameBits) {
  RunWorld(GetParam(), [](const Rank& self) {
    constexpr size_t kLarge = 300'001;
    std::vector<float> data(kLarge), all(static_cast<size_t>(self.size));
    for (size_t i = 0; i < kLarge; ++i) {
      data[i] = 1.0f / static_cast<float>(i + 1 + static_cast<size_t>(self.rank));
    }
    ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), kLarge, ENTRAIN_F32,
                                 ENTRAIN_SUM, nullptr, nullptr));
    double exact = 0;
    for (int rank = 0; rank < self.size; ++rank) {
      exact += 1.0 / (kLarge + static_cast<size_t>(rank));
    }
    EXPECT_NEAR(data.back(), exact, exact * 1e-6);
    uint64_t hash = 14695981039346656037u;
    for (float value : data) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      hash = (hash ^ bits) * 1099511628211u;
    }
    uint64_t low = hash, high = hash;
    ASSERT_OK(
        entrain_all_reduce(self.comm, &low, &low, 1, ENTRAIN_U64, ENTRAIN_MIN, nullptr, nullptr));
    ASSERT_OK(
        entrain_all_reduce(self.comm, &high, &high, 1, ENTRAIN_U64, ENTRAIN_MAX, nullptr, nullptr));
    EXPECT_EQ(low, high) << "ranks have different bits";
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 4, 5),
                         [](const auto& rank_count) {
                           return std::string("n").append(std::to_string(rank_count.param));
                         });

}  // namespace
}  // namespace entrain_test
