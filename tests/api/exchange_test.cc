// The collectives that move and combine parts: rooted ones, all_to_all, scans, uneven parts, and
// batches. Every element is compared with the result of a loop over the ranks.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <poll.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

using Values = std::vector<int64_t>;

// Returns element `i` of the data that rank `rank` sends.
int64_t Value(int rank, size_t i) {
  return (rank + 1) * 1000 + static_cast<int64_t>(i) * 7;
}

Values Input(int rank, size_t count) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = Value(rank, i);
  }
  return values;
}

// Returns the sums over ranks first .. last-1.
Values SumOf(int first, int last, size_t count) {
  Values sum(count);
  for (int rank = first; rank < last; ++rank) {
    for (size_t i = 0; i < count; ++i) {
      sum[i] += Value(rank, i);
    }
  }
  return sum;
}

size_t At(int rank) {
  return static_cast<size_t>(rank);
}

Values Slice(const Values& values, size_t first, size_t count) {
  const auto begin = values.begin() + static_cast<ptrdiff_t>(first);
  return {begin, begin + static_cast<ptrdiff_t>(count)};
}

class Exchange : public testing::TestWithParam<int> {
 protected:
  // Calls `body` for each number of elements that the tests use.
  template <typename Body>
  static void ForEachCount(const Body& body) {
    for (const size_t count : {0u, 1u, 37u, 70'001u}) {
      SCOPED_TRACE("count " + std::to_string(count));
      body(count);
    }
  }
};

TEST_P(Exchange, ReduceGivesTheRootTheSum) {
  RunWorld(GetParam(), [](const Rank& self) {
    ForEachCount([&](size_t count) {
      for (int root = 0; root < self.size; ++root) {
        Values in = Input(self.rank, count);
        Values out(count, -1);
        ASSERT_OK(entrain_reduce(self.comm, in.data(), self.rank == root ? out.data() : nullptr,
                                 count, ENTRAIN_I64, ENTRAIN_SUM, root, nullptr, nullptr));
        EXPECT_EQ(out, self.rank == root ? SumOf(0, self.size, count) : Values(count, -1));
        EXPECT_EQ(in, Input(self.rank, count));
        ASSERT_OK(entrain_reduce(self.comm, in.data(), self.rank == root ? in.data() : nullptr,
                                 count, ENTRAIN_I64, ENTRAIN_SUM, root, nullptr, nullptr));
        EXPECT_EQ(in, self.rank == root ? SumOf(0, self.size, count) : Input(self.rank, count));
      }
    });
  });
}

TEST_P(Exchange, GatherAndScatterAreInverse) {
  RunWorld(GetParam(), [](const Rank& self) {
    ForEachCount([&](size_t count) {
      for (int root = 0; root < self.size; ++root) {
        const bool is_root = self.rank == root;
        const Values in = Input(self.rank, count);
        Values all(is_root ? count * At(self.size) : 0), back(count);
        ASSERT_OK(entrain_gather(self.comm, in.data(), is_root ? all.data() : nullptr, count,
                                 ENTRAIN_I64, root, nullptr, nullptr));
        for (int rank = 0; is_root && rank < self.size; ++rank) {
          EXPECT_EQ(Slice(all, count * At(rank), count), Input(rank, count));
        }
        ASSERT_OK(entrain_scatter(self.comm, is_root ? all.data() : nullptr, back.data(), count,
                                  ENTRAIN_I64, root, nullptr, nullptr));
        EXPECT_EQ(back, in);
        // In place, the root's own part is already where it belongs.
        int64_t* const part = is_root ? all.data() + count * At(root) : back.data();
        ASSERT_OK(entrain_gather(self.comm, part, is_root ? all.data() : nullptr, count,
                                 ENTRAIN_I64, root, nullptr, nullptr));
        ASSERT_OK(entrain_scatter(self.comm, is_root ? all.data() : nullptr, part, count,
                                  ENTRAIN_I64, root, nullptr, nullptr));
        EXPECT_EQ(back, in);
        for (int rank = 0; is_root && rank < self.size; ++rank) {
          EXPECT_EQ(Slice(all, count * At(rank), count), Input(rank, count));
        }
      }
    });
  });
}

TEST_P(Exchange, AllToAllTransposes) {
  RunWorld(GetParam(), [](const Rank& self) {
    ForEachCount([&](size_t count) {
      const size_t whole = count * At(self.size);
      Values in = Input(self.rank, whole);
      Values out(whole), expected;
      for (int rank = 0; rank < self.size; ++rank) {
        const Values theirs = Slice(Input(rank, whole), count * At(self.rank), count);
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      ASSERT_OK(entrain_all_to_all(self.comm, in.data(), out.data(), count, ENTRAIN_I64, nullptr,
                                   nullptr));
      EXPECT_EQ(out, expected);
      EXPECT_EQ(in, Input(self.rank, whole));
      ASSERT_OK(entrain_all_to_all(self.comm, in.data(), in.data(), count, ENTRAIN_I64, nullptr,
                                   nullptr));
      EXPECT_EQ(in, expected);
    });
  });
}

TEST_P(Exchange, ScansGivePrefixes) {
  RunWorld(GetParam(), [](const Rank& self) {
    ForEachCount([&](size_t count) {
      Values in = Input(self.rank, count);
      Values out(count, -1);
      ASSERT_OK(entrain_scan(self.comm, in.data(), out.data(), count, ENTRAIN_I64, ENTRAIN_SUM,
                             nullptr, nullptr));
      EXPECT_EQ(out, SumOf(0, self.rank + 1, count));
      out.assign(count, -1);
      ASSERT_OK(entrain_exclusive_scan(self.comm, in.data(), out.data(), count, ENTRAIN_I64,
                                       ENTRAIN_SUM, nullptr, nullptr));
      EXPECT_EQ(out, self.rank == 0 ? Values(count, -1) : SumOf(0, self.rank, count));
      ASSERT_OK(entrain_exclusive_scan(self.comm, in.data(), in.data(), count, ENTRAIN_I64,
                                       ENTRAIN_SUM, nullptr, nullptr));
      EXPECT_EQ(in, self.rank == 0 ? Input(0, count) : SumOf(0, self.rank, count));
    });
  });
}

// Rank r's part has r * 5 elements, so rank 0's part is empty.
std::vector<size_t> UnevenCounts(int size) {
  std::vector<size_t> counts;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back(At(rank) * 5);
  }
  return counts;
}

size_t Before(const std::vector<size_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
}

TEST_P(Exchange, UnevenPartsOfAllGatherAndReduceScatter) {
  RunWorld(GetParam(), [](const Rank& self) {
    const std::vector<size_t> counts = UnevenCounts(self.size);
    const size_t whole = Before(counts, self.size);
    const size_t mine = counts[At(self.rank)];
    const Values in = Input(self.rank, mine);
    Values all(whole, -1);
    ASSERT_OK(entrain_all_gather_v(self.comm, in.data(), all.data(), counts.data(), ENTRAIN_I64,
                                   nullptr, nullptr));
    for (int rank = 0; rank < self.size; ++rank) {
      EXPECT_EQ(Slice(all, Before(counts, rank), counts[At(rank)]), Input(rank, counts[At(rank)]));
    }
    const Values full = Input(self.rank, whole);
    Values part(mine, -1);
    ASSERT_OK(entrain_reduce_scatter_v(self.comm, full.data(), part.data(), counts.data(),
                                       ENTRAIN_I64, ENTRAIN_SUM, nullptr, nullptr));
    EXPECT_EQ(part, Slice(SumOf(0, self.size, whole), Before(counts, self.rank), mine));
  });
}

TEST_P(Exchange, UnevenPartsOfGatherAndScatter) {
  RunWorld(GetParam(), [](const Rank& self) {
    const std::vector<size_t> counts = UnevenCounts(self.size);
    const size_t mine = counts[At(self.rank)];
    const Values in = Input(self.rank, mine);
    for (int root = 0; root < self.size; ++root) {
      const bool is_root = self.rank == root;
      Values all(is_root ? Before(counts, self.size) : 0, -1), back(mine, -1);
      ASSERT_OK(entrain_gather_v(self.comm, in.data(), mine, is_root ? all.data() : nullptr,
                                 is_root ? counts.data() : nullptr, ENTRAIN_I64, root, nullptr,
                                 nullptr));
      for (int rank = 0; is_root && rank < self.size; ++rank) {
        EXPECT_EQ(Slice(all, Before(counts, rank), counts[At(rank)]),
                  Input(rank, counts[At(rank)]));
      }
      ASSERT_OK(entrain_scatter_v(self.comm, is_root ? all.data() : nullptr,
                                  is_root ? counts.data() : nullptr, back.data(), mine, ENTRAIN_I64,
                                  root, nullptr, nullptr));
      EXPECT_EQ(back, in);
    }
  });
}

TEST_P(Exchange, UnevenPartsOfAllToAll) {
  RunWorld(GetParam(), [](const Rank& self) {
    // Rank a sends (a + 2 b) % 4 elements to rank b. In the second call, which is in place, the
    // numbers are symmetric.
    const auto count = [](int from, int to) { return At((from + 2 * to) % 4); };
    const auto symmetric = [](int from, int to) { return At((from + to) % 3); };
    for (const bool in_place : {false, true}) {
      std::vector<size_t> in_counts, out_counts;
      Values expected;
      for (int rank = 0; rank < self.size; ++rank) {
        in_counts.push_back(in_place ? symmetric(self.rank, rank) : count(self.rank, rank));
        out_counts.push_back(in_place ? symmetric(rank, self.rank) : count(rank, self.rank));
        size_t before = 0;
        for (int to = 0; to < self.rank; ++to) {
          before += in_place ? symmetric(rank, to) : count(rank, to);
        }
        for (size_t i = 0; i < out_counts.back(); ++i) {
          expected.push_back(Value(rank, before + i));
        }
      }
      Values in = Input(self.rank, Before(in_counts, self.size));
      Values out(expected.size(), -1);
      ASSERT_OK(entrain_all_to_all_v(self.comm, in.data(), in_counts.data(),
                                     in_place ? in.data() : out.data(), out_counts.data(),
                                     ENTRAIN_I64, nullptr, nullptr));
      EXPECT_EQ(in_place ? in : out, expected);
    }
  });
}

TEST_P(Exchange, ABatchRunsItsCallsInOrderAndCanBeStartedAgain) {
  RunWorld(GetParam(), [](const Rank& self) {
    entrain_batch_t* batch = nullptr;
    ASSERT_OK(entrain_batch_create(self.comm, &batch));
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.batch = batch;
    int64_t sum = 0, most = 0, mine = 0;
    Values all(At(self.size));
    ASSERT_OK(
        entrain_all_reduce(self.comm, &mine, &sum, 1, ENTRAIN_I64, ENTRAIN_SUM, &options, nullptr));
    ASSERT_OK(entrain_all_reduce(self.comm, &mine, &most, 1, ENTRAIN_I64, ENTRAIN_MAX, &options,
                                 nullptr));
    ASSERT_OK(entrain_all_gather(self.comm, &mine, all.data(), 1, ENTRAIN_I64, &options, nullptr));
    for (int repeat = 1; repeat <= 3; ++repeat) {
      mine = repeat * (self.rank + 1);
      entrain_work_t* work = nullptr;
      ASSERT_OK(entrain_batch_start(batch, repeat == 3 ? nullptr : &work));
      if (work != nullptr) {
        ASSERT_OK(entrain_work_wait(work, -1));
        entrain_work_free(work);
      }
      EXPECT_EQ(sum, repeat * self.size * (self.size + 1) / 2);
      EXPECT_EQ(most, repeat * self.size);
      EXPECT_EQ(all.back(), repeat * self.size);
    }
    entrain_work_t* work = nullptr;
    EXPECT_FAILS(entrain_barrier(self.comm, &options, &work), ENTRAIN_INVALID_ARGUMENT,
                 "options.batch");
    entrain_batch_destroy(batch);
  });
}

TEST_P(Exchange, AnEmptyBatchIsDoneAtOnce) {
  RunWorld(GetParam(), [](const Rank& self) {
    entrain_batch_t* batch = nullptr;
    ASSERT_OK(entrain_batch_create(self.comm, &batch));
    EXPECT_OK(entrain_batch_start(batch, nullptr));
    entrain_batch_destroy(batch);
  });
}

TEST_P(Exchange, NotifiesAndSignalsADescriptor) {
  RunWorld(GetParam(), [](const Rank& self) {
    std::atomic<int> told{0};
    int64_t data = self.rank;
    entrain_work_t* work = nullptr;
    ASSERT_OK(
        entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_I64, ENTRAIN_SUM, nullptr, &work));
    const auto count = [](entrain_status_t status, void* user) {
      static_cast<std::atomic<int>*>(user)->fetch_add(status == ENTRAIN_OK ? 1 : 100);
    };
    ASSERT_OK(entrain_work_notify(work, count, &told));
    int fd = -1, same = -1;
    ASSERT_OK(entrain_work_descriptor(work, &fd));
    ASSERT_OK(entrain_work_descriptor(work, &same));
    EXPECT_EQ(fd, same);
    // No thread calls the library. Its own thread finishes the call.
    pollfd waited{fd, POLLIN, 0};
    ASSERT_EQ(poll(&waited, 1, 20'000), 1);
    EXPECT_OK(entrain_work_wait(work, 0));
    EXPECT_EQ(data, self.size * (self.size - 1) / 2);
    ASSERT_OK(entrain_work_notify(work, count, &told));  // already over: done() runs at once
    EXPECT_GE(told.load(), 1);
    for (int i = 0; i < 2000 && told.load() < 2; ++i) {
      poll(nullptr, 0, 1);  // the first done() may not have returned yet
    }
    EXPECT_EQ(told.load(), 2);
    entrain_work_free(work);
  });
}

TEST_P(Exchange, DuplicatesAreIndependent) {
  RunWorld(GetParam(), [](const Rank& self) {
    entrain_comm_t* copy = nullptr;
    ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
    // The calls are started in opposite orders, and neither waits for the other.
    int64_t first = 1, second = 2;
    entrain_work_t* works[2] = {};
    entrain_comm_t* const comms[2] = {self.comm, copy};
    int64_t* const data[2] = {&first, &second};
    for (int i = 0; i < 2; ++i) {
      const int which = self.rank % 2 == 0 ? i : 1 - i;
      ASSERT_OK(entrain_all_reduce(comms[which], data[which], data[which], 1, ENTRAIN_I64,
                                   ENTRAIN_SUM, nullptr, &works[which]));
    }
    for (entrain_work_t* work : works) {
      EXPECT_OK(entrain_work_wait(work, -1));
      entrain_work_free(work);
    }
    EXPECT_EQ(first, self.size);
    EXPECT_EQ(second, 2 * self.size);
    entrain_comm_destroy(copy);
  });
}

// Rank r's factor is r + 1.
TEST_P(Exchange, PreMultipliedSumTakesEachRanksFactor) {
  RunWorld(GetParam(), [](const Rank& self) {
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    ASSERT_OK(entrain_reduction_premultiplied_sum(self.rank + 1, &options.reduction));
    ForEachCount([&](size_t count) {
      Values expected(count);
      for (int rank = 0; rank < self.size; ++rank) {
        for (size_t i = 0; i < count; ++i) {
          expected[i] += (rank + 1) * Value(rank, i);
        }
      }
      Values data = Input(self.rank, count);
      Values out(count, -1);
      ASSERT_OK(entrain_all_reduce(self.comm, data.data(), out.data(), count, ENTRAIN_I64,
                                   ENTRAIN_REDUCTION, &options, nullptr));
      EXPECT_EQ(out, expected);
      EXPECT_EQ(data, Input(self.rank, count));
      ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), count, ENTRAIN_I64,
                                   ENTRAIN_REDUCTION, &options, nullptr));
      EXPECT_EQ(data, expected);
    });
    entrain_reduction_destroy(options.reduction);
    ASSERT_OK(entrain_reduction_premultiplied_sum(0.5, &options.reduction));
    int64_t one = 1;
    EXPECT_FAILS(entrain_all_reduce(self.comm, &one, &one, 1, ENTRAIN_I64, ENTRAIN_REDUCTION,
                                    &options, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "factor 0.5");
    entrain_reduction_destroy(options.reduction);
  });
}

// Weights are 0, 1, 2, ... Rank 0 does not count, not even its NaN.
TEST_P(Exchange, WeightedMeanIsOneMeanOnEveryRank) {
  RunWorld(GetParam(), [](const Rank& self) {
    std::vector<double> weights;
    for (int rank = 0; rank < self.size; ++rank) {
      weights.push_back(self.size == 1 ? 1 : rank);
    }
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    ASSERT_OK(entrain_reduction_weighted(weights.data(), self.size, &options.reduction));
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (const size_t count : {1u, 1000u, 300'001u}) {
      std::vector<float> data(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        float mean = 0;
        for (int rank = 0; rank < self.size; ++rank) {
          const auto value = static_cast<float>(Value(rank, i % 1000)) / 3;
          if (weights[At(rank)] != 0) {
            mean += static_cast<float>(weights[At(rank)] / sum) * value;
          }
          if (rank == self.rank) {
            data[i] = rank == 0 && self.size > 1 ? std::nanf("") : value;
          }
        }
        expected[i] = mean;
      }
      ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), count, ENTRAIN_F32,
                                   ENTRAIN_REDUCTION, &options, nullptr));
      EXPECT_EQ(data, expected);
    }
    int32_t integer = 1;
    EXPECT_FAILS(entrain_all_reduce(self.comm, &integer, &integer, 1, ENTRAIN_I32,
                                    ENTRAIN_REDUCTION, &options, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "floats only");
    entrain_reduction_destroy(options.reduction);
    weights.push_back(1);
    ASSERT_OK(entrain_reduction_weighted(weights.data(), self.size + 1, &options.reduction));
    float one = 1;
    EXPECT_FAILS(entrain_all_reduce(self.comm, &one, &one, 1, ENTRAIN_F32, ENTRAIN_REDUCTION,
                                    &options, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "weights for");
    entrain_reduction_destroy(options.reduction);
    weights[0] = -1;
    EXPECT_FAILS(entrain_reduction_weighted(weights.data(), self.size, &options.reduction),
                 ENTRAIN_INVALID_ARGUMENT, "weights[0] -1");
  });
}

TEST_P(Exchange, RefusesWhatCannotBe) {
  RunWorld(GetParam(), [](const Rank& self) {
    Values data(100);
    std::vector<size_t> counts(At(self.size), 1), other(At(self.size), 1);
    EXPECT_FAILS(entrain_reduce(self.comm, data.data(), data.data(), 1, ENTRAIN_I64, ENTRAIN_SUM,
                                self.size, nullptr, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "root");
    EXPECT_FAILS(
        entrain_gather(self.comm, nullptr, data.data(), 1, ENTRAIN_I64, 0, nullptr, nullptr),
        ENTRAIN_INVALID_ARGUMENT, "in is NULL");
    EXPECT_FAILS(entrain_scan(self.comm, data.data(), data.data(), 1, ENTRAIN_I64, ENTRAIN_AVG,
                              nullptr, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "avg");
    EXPECT_FAILS(entrain_all_gather_v(self.comm, data.data(), data.data(), nullptr, ENTRAIN_I64,
                                      nullptr, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "counts is NULL");
    counts[0] = SIZE_MAX / 2;
    EXPECT_FAILS(entrain_all_gather_v(self.comm, data.data(), data.data(), counts.data(),
                                      ENTRAIN_I64, nullptr, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "counts[0]");
    counts[0] = 1;
    counts[At(self.rank)] = 2;
    EXPECT_FAILS(entrain_all_to_all_v(self.comm, data.data(), counts.data(), data.data() + 50,
                                      other.data(), ENTRAIN_I64, nullptr, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "in_counts[");
    EXPECT_FAILS(entrain_all_to_all(self.comm, data.data(), data.data() + 1, 3, ENTRAIN_I64,
                                    nullptr, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "overlap");
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.determinism = 3;
    EXPECT_FAILS(entrain_barrier(self.comm, &options, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "options.determinism 3");
    options.determinism = ENTRAIN_DETERMINISM_RANK_ORDER;
    options.reserved = 1;
    EXPECT_FAILS(entrain_barrier(self.comm, &options, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "options.reserved 1 is not 0");
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));  // the communicator works
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exchange, testing::Values(1, 2, 3, 4, 5),
                         [](const auto& rank_count) {
                           return std::string("n").append(std::to_string(rank_count.param));
                         });

// Both sides of a part must agree on its length, and all ranks must agree on the call. A call that
// equals the previous one takes a shorter path to the same checks.
TEST(ExchangeAgain, ChecksEachCallAsTheFirst) {
  RunWorld(1, [](const Rank& self) {
    alignas(64) float a[32] = {}, b[32] = {};
    const auto sum = [&](const float* in, float* out) {
      return entrain_all_reduce(self.comm, in, out, 8, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr);
    };
    const auto odd = reinterpret_cast<float*>(reinterpret_cast<char*>(a) + 2);
    for (int turn = 0; turn < 3; ++turn) {
      a[0] = static_cast<float>(turn + 1);
      b[0] = -1;
      ASSERT_OK(sum(a, b));
      EXPECT_EQ(b[0], a[0]);
      ASSERT_OK(sum(a, a));  // in place
      ASSERT_OK(sum(b, b));
      ASSERT_OK(sum(a, a + 8));  // next to each other
      EXPECT_EQ(a[8], a[0]);
      EXPECT_EQ(sum(nullptr, b), ENTRAIN_INVALID_ARGUMENT);
      EXPECT_THAT(entrain_last_error(), testing::HasSubstr("in is NULL"));
      EXPECT_EQ(sum(a, nullptr), ENTRAIN_INVALID_ARGUMENT);
      EXPECT_EQ(sum(odd, b), ENTRAIN_INVALID_ARGUMENT);
      EXPECT_THAT(entrain_last_error(), testing::HasSubstr("not aligned"));
      EXPECT_EQ(sum(a, a + 1), ENTRAIN_INVALID_ARGUMENT);
      EXPECT_THAT(entrain_last_error(), testing::HasSubstr("overlap"));
      EXPECT_EQ(sum(a + 4, a), ENTRAIN_INVALID_ARGUMENT);
      EXPECT_EQ(entrain_all_reduce(self.comm, a, b, 8, ENTRAIN_F32, ENTRAIN_BAND, nullptr, nullptr),
                ENTRAIN_INVALID_ARGUMENT);
      ASSERT_OK(entrain_all_gather(self.comm, a, b, 8, ENTRAIN_F32, nullptr, nullptr));
      EXPECT_EQ(entrain_all_gather(self.comm, a + 1, a, 8, ENTRAIN_F32, nullptr, nullptr),
                ENTRAIN_INVALID_ARGUMENT);
    }
  });
}

TEST(ExchangeMismatch, FailsOnAllRanks) {
  RunWorld(2, [](const Rank& self) {
    Values in(8), out(8);
    const std::vector<size_t> counts = {At(self.rank), 2};
    EXPECT_EQ(entrain_all_gather_v(self.comm, in.data(), out.data(), counts.data(), ENTRAIN_I64,
                                   nullptr, nullptr),
              ENTRAIN_MISMATCH)
        << LastError();
  });
  RunWorld(2, [](const Rank& self) {
    Values in(8), out(8);
    const std::vector<size_t> one = {1, 1}, more = {1, 3};
    const entrain_status_t status =
        entrain_all_to_all_v(self.comm, in.data(), self.rank == 0 ? more.data() : one.data(),
                             out.data(), one.data(), ENTRAIN_I64, nullptr, nullptr);
    // Rank 0 received the expected data and may be done before rank 1 finds the error. Then rank
    // 0's next call fails.
    EXPECT_TRUE(status == ENTRAIN_MISMATCH || (self.rank == 0 && status == ENTRAIN_OK)) << status;
    EXPECT_EQ(entrain_barrier(self.comm, nullptr, nullptr), ENTRAIN_MISMATCH) << LastError();
  });
}

}  // namespace
}  // namespace entrain_test
