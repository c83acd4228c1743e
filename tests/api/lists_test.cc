// Calls whose parts do not lie next to each other.
#include <cstdint>
#include <deque>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr int kRanks = 3;
constexpr entrain_status_t kInvalid = ENTRAIN_INVALID_ARGUMENT;
using Values = std::vector<int32_t>;

// Separate parts, often in descending order of addresses, or parts next to each other.
struct List {
  List(const std::vector<size_t>& counts, bool side_by_side) {
    size_t sum = 0;
    for (const size_t count : counts) {
      sum += count;
    }
    memory.assign(2 * sum + 1, -1);
    size_t from_front = 0, from_back = memory.size();
    for (const size_t count : counts) {
      from_back -= count;
      addresses.push_back(memory.data() + (side_by_side ? from_front : from_back));
      from_front += count;
    }
  }
  int32_t* at(int rank) const {
    return static_cast<int32_t*>(addresses[static_cast<size_t>(rank)]);
  }
  // The lists of one call. The function Do destroys them when the call has begun.
  const void* const* ins() const { return const_cast<const void* const*>(outs()); }
  void* const* outs() const { return Lent().emplace_back(addresses).data(); }
  static std::deque<std::vector<void*>>& Lent() {
    thread_local std::deque<std::vector<void*>> lent;
    return lent;
  }

  Values memory;
  std::vector<void*> addresses;
};

// Returns element i of the data that rank `from` sends to rank `to`.
int32_t Value(int from, int to, size_t i) {
  return 1000 * from + 100 * to + static_cast<int32_t>(i);
}

// Makes a blocking call, or starts it as a work.
template <typename Call>
void Do(bool by_work, const Call& call) {
  entrain_work_t* work = nullptr;
  ASSERT_OK(call(by_work ? &work : nullptr));
  List::Lent().clear();
  if (by_work) {
    entrain_work_info_t info;
    entrain_work_info_init(&info);
    EXPECT_OK(entrain_work_info(work, &info));
    EXPECT_GT(info.sequence, 0u);
    ASSERT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
  }
}

// Parts that are apart and next to each other, blocking and started calls, even and uneven parts.
// Rank 0 makes the plain call if there is a matching one.
class Lists : public testing::TestWithParam<int> {
 protected:
  bool side_by_side() const { return (GetParam() & 1) != 0; }
  bool by_work() const { return (GetParam() & 2) != 0; }
  bool uneven() const { return (GetParam() & 4) != 0; }
  std::vector<size_t> Counts() const {
    return uneven() ? std::vector<size_t>{2, 0, 5} : std::vector<size_t>{3, 3, 3};
  }
};

TEST_P(Lists, AllGather) {
  RunWorld(kRanks, [&](const Rank& self) {
    const auto counts = Counts();
    const size_t count = counts[static_cast<size_t>(self.rank)];
    Values in;
    for (size_t i = 0; i < count; ++i) {
      in.push_back(Value(self.rank, 0, i));
    }
    List outs(counts, side_by_side() || self.rank == 0);
    Do(by_work(), [&](entrain_work_t** work) {
      if (self.rank == 0) {
        return uneven() ? entrain_all_gather_v(self.comm, in.data(), outs.at(0), counts.data(),
                                               ENTRAIN_I32, nullptr, work)
                        : entrain_all_gather(self.comm, in.data(), outs.at(0), count, ENTRAIN_I32,
                                             nullptr, work);
      }
      return entrain_all_gather_list(self.comm, in.data(), count, outs.outs(),
                                     uneven() ? counts.data() : nullptr, ENTRAIN_I32, nullptr,
                                     work);
    });
    for (int r = 0; r < kRanks; ++r) {
      for (size_t i = 0; i < counts[static_cast<size_t>(r)]; ++i) {
        EXPECT_EQ(outs.at(r)[i], Value(r, 0, i));
      }
    }
  });
}

TEST_P(Lists, ReduceScatter) {
  RunWorld(kRanks, [&](const Rank& self) {
    const auto counts = Counts();
    const size_t count = counts[static_cast<size_t>(self.rank)];
    List ins(counts, side_by_side());
    for (int r = 0; r < kRanks; ++r) {
      for (size_t i = 0; i < counts[static_cast<size_t>(r)]; ++i) {
        ins.at(r)[i] = Value(self.rank, r, i);
      }
    }
    Values out(count + 1, -1);
    Do(by_work(), [&](entrain_work_t** work) {
      return entrain_reduce_scatter_list(self.comm, ins.ins(), uneven() ? counts.data() : nullptr,
                                         out.data(), count, ENTRAIN_I32, ENTRAIN_SUM, nullptr,
                                         work);
    });
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(out[i], Value(0, self.rank, i) + Value(1, self.rank, i) + Value(2, self.rank, i));
    }
    EXPECT_EQ(out[count], -1);
  });
}

TEST_P(Lists, GatherAndScatter) {
  RunWorld(kRanks, [&](const Rank& self) {
    const auto counts = Counts();
    const size_t count = counts[static_cast<size_t>(self.rank)];
    constexpr int kRoot = 1;
    const bool is_root = self.rank == kRoot;
    List parts(counts, side_by_side());
    for (int r = 0; r < kRanks && is_root; ++r) {
      for (size_t i = 0; i < counts[static_cast<size_t>(r)]; ++i) {
        parts.at(r)[i] = Value(kRoot, r, i);
      }
    }
    Values mine(count + 1, -1);
    Do(by_work(), [&](entrain_work_t** work) {
      return entrain_scatter_list(self.comm, is_root ? parts.ins() : nullptr,
                                  uneven() ? counts.data() : nullptr, mine.data(), count,
                                  ENTRAIN_I32, kRoot, nullptr, work);
    });
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(mine[i], Value(kRoot, self.rank, i));
      mine[i] += 1;
    }
    EXPECT_EQ(mine[count], -1);
    Do(by_work(), [&](entrain_work_t** work) {
      return entrain_gather_list(self.comm, mine.data(), count, is_root ? parts.outs() : nullptr,
                                 uneven() ? counts.data() : nullptr, ENTRAIN_I32, kRoot, nullptr,
                                 work);
    });
    for (int r = 0; r < kRanks && is_root; ++r) {
      for (size_t i = 0; i < counts[static_cast<size_t>(r)]; ++i) {
        EXPECT_EQ(parts.at(r)[i], Value(kRoot, r, i) + 1);
      }
    }
  });
}

TEST_P(Lists, AllToAll) {
  RunWorld(kRanks, [&](const Rank& self) {
    // Rank f sends Counts()[(f + t) % 3] elements to rank t.
    const auto counts = Counts();
    std::vector<size_t> by_rank;
    for (int r = 0; r < kRanks; ++r) {
      by_rank.push_back(counts[static_cast<size_t>((self.rank + r) % kRanks)]);
    }
    List ins(by_rank, side_by_side()), outs(by_rank, side_by_side());
    for (int r = 0; r < kRanks; ++r) {
      for (size_t i = 0; i < by_rank[static_cast<size_t>(r)]; ++i) {
        ins.at(r)[i] = Value(self.rank, r, i);
      }
    }
    Do(by_work(), [&](entrain_work_t** work) {
      return entrain_all_to_all_list(self.comm, ins.ins(), by_rank.data(), outs.outs(),
                                     by_rank.data(), ENTRAIN_I32, nullptr, work);
    });
    for (int r = 0; r < kRanks; ++r) {
      for (size_t i = 0; i < by_rank[static_cast<size_t>(r)]; ++i) {
        EXPECT_EQ(outs.at(r)[i], Value(r, self.rank, i));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Every, Lists, testing::Range(0, 8));

TEST(ListArguments, AreNamed) {
  RunWorld(1, [](const Rank& self) {
    int32_t in = 1, out = 0;
    const void* ins[] = {&in};
    void* outs[] = {&out};
    void* none[] = {nullptr};
    const size_t counts[] = {1}, other[] = {2};
    EXPECT_FAILS(
        entrain_all_gather_list(nullptr, &in, 1, outs, nullptr, ENTRAIN_I32, nullptr, nullptr),
        kInvalid, "comm is NULL");
    EXPECT_FAILS(
        entrain_all_gather_list(self.comm, &in, 1, nullptr, nullptr, ENTRAIN_I32, nullptr, nullptr),
        kInvalid, "outs is NULL");
    EXPECT_FAILS(
        entrain_all_gather_list(self.comm, &in, 1, none, nullptr, ENTRAIN_I32, nullptr, nullptr),
        kInvalid, "outs[0] is NULL");
    EXPECT_FAILS(entrain_all_gather_list(self.comm, &in, 1, outs, nullptr, 99, nullptr, nullptr),
                 kInvalid, "dtype 99");
    EXPECT_FAILS(entrain_reduce_scatter_list(self.comm, nullptr, nullptr, &out, 1, ENTRAIN_I32,
                                             ENTRAIN_SUM, nullptr, nullptr),
                 kInvalid, "ins is NULL");
    EXPECT_FAILS(
        entrain_gather_list(self.comm, &in, 1, nullptr, nullptr, ENTRAIN_I32, 0, nullptr, nullptr),
        kInvalid, "outs is NULL");
    EXPECT_FAILS(
        entrain_gather_list(self.comm, &in, 1, outs, other, ENTRAIN_I32, 0, nullptr, nullptr),
        kInvalid, "counts[0] 2 is not the root's own count 1");
    EXPECT_FAILS(entrain_scatter_list(self.comm, nullptr, nullptr, &out, 1, ENTRAIN_I32, 0, nullptr,
                                      nullptr),
                 kInvalid, "ins is NULL");
    EXPECT_FAILS(
        entrain_scatter_list(self.comm, ins, nullptr, &out, 1, ENTRAIN_I32, 5, nullptr, nullptr),
        kInvalid, "root 5");
    EXPECT_FAILS(entrain_all_to_all_list(self.comm, ins, nullptr, outs, counts, ENTRAIN_I32,
                                         nullptr, nullptr),
                 kInvalid, "in_counts is NULL");
    EXPECT_FAILS(entrain_all_to_all_list(self.comm, ins, counts, outs, nullptr, ENTRAIN_I32,
                                         nullptr, nullptr),
                 kInvalid, "out_counts is NULL");
    const size_t huge[] = {SIZE_MAX / 2};
    EXPECT_FAILS(
        entrain_all_to_all_list(self.comm, ins, huge, outs, huge, ENTRAIN_I32, nullptr, nullptr),
        kInvalid, "count");
  });
}

TEST(ListArguments, AreToldToRanksThatWait) {
  for (const int64_t tag : {-1, 5}) {
    RunWorld(2, [tag](const Rank& self) {
      entrain_call_options_t options;
      entrain_call_options_init(&options);
      options.tag = tag;
      int32_t in = 1;
      int32_t out[2] = {};
      void* outs[] = {&out[1], self.rank == 1 ? nullptr : &out[0]};
      const entrain_status_t code =
          entrain_all_gather_list(self.comm, &in, 1, outs, nullptr, ENTRAIN_I32, &options, nullptr);
      if (self.rank == 1) {
        EXPECT_EQ(code, kInvalid);
        entrain_error_t error;
        entrain_error_init(&error);
        ASSERT_OK(entrain_last_error_record(&error));
        EXPECT_STREQ(error.operation, "all_gather");
        EXPECT_EQ(error.tag, tag);
        return;  // destroys its communicator
      }
      EXPECT_EQ(code, ENTRAIN_PEER_LOST);
      EXPECT_THAT(LastError(), testing::HasSubstr("its call failed: all_gather: outs[1] is NULL"));
    });
  }
}

// Pinned memory is host memory. Without a stream, no order is needed.
TEST(ListArguments, PartsApartMayBePinnedAndAreNotForAStream) {
  RunWorld(2, [](const Rank& self) {
    int32_t in = 1 + self.rank, out[3] = {};
    void* outs[] = {&out[2], &out[0]};
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.memory = ENTRAIN_MEMORY_HOST_PINNED;
    EXPECT_OK(
        entrain_all_gather_list(self.comm, &in, 1, outs, nullptr, ENTRAIN_I32, &options, nullptr));
    EXPECT_THAT(out, testing::ElementsAre(2, 0, 1));
    options.stream = &options;
    EXPECT_FAILS(
        entrain_all_gather_list(self.comm, &in, 1, outs, nullptr, ENTRAIN_I32, &options, nullptr),
        ENTRAIN_UNIMPLEMENTED, "without a stream");
    ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(ListArguments, PartsApartAreNotForABatch) {
  RunWorld(2, [](const Rank& self) {
    int32_t in = 1, out[3] = {};
    void* outs[] = {&out[2], &out[0]};
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    ASSERT_OK(entrain_batch_create(self.comm, &options.batch));
    EXPECT_FAILS(
        entrain_all_gather_list(self.comm, &in, 1, outs, nullptr, ENTRAIN_I32, &options, nullptr),
        ENTRAIN_UNIMPLEMENTED, "outs");
    entrain_batch_destroy(options.batch);
    ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

}  // namespace
}  // namespace entrain_test
