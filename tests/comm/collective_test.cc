// End to end, with ranks as threads: every collective with several sizes, algorithms and
// transports, against a scalar reference.

#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"
#include "tests/support/ranks.h"
#include "tests/support/transports.h"
#include "tests/support/trial.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;

int64_t Value(int rank, int64_t i) {
  return (i * 7 + rank * 3) % 13 - 4;
}

template <typename T>
Call CallOf(CallKind kind, DType dtype, const std::vector<T>& in, std::vector<T>& out,
            int64_t count) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.in = {const_cast<T*>(in.data()), static_cast<int64_t>(in.size() * sizeof(T))};
  call.out = {out.data(), static_cast<int64_t>(out.size() * sizeof(T))};
  call.count = count;
  return call;
}

void CheckAllReduce(const Comm& comm, int64_t count, bool in_place) {
  const int n = comm->size();
  std::vector<int64_t> in(static_cast<size_t>(count)), out(static_cast<size_t>(count), -99);
  for (int64_t i = 0; i < count; ++i) {
    in[static_cast<size_t>(i)] = Value(comm->rank(), i);
  }
  Call call = CallOf(CallKind::kAllReduce, DType::kI64, in, in_place ? in : out, count);
  ASSERT_EQ(comm->Run(call), absl::OkStatus());
  const std::vector<int64_t>& result = in_place ? in : out;
  for (int64_t i = 0; i < count; ++i) {
    int64_t want = 0;
    for (int r = 0; r < n; ++r) {
      want += Value(r, i);
    }
    ASSERT_EQ(result[static_cast<size_t>(i)], want)
        << "rank " << comm->rank() << " element " << i << " of " << count;
  }
}

void CheckReduceScatter(const Comm& comm, int64_t count) {
  const int n = comm->size();
  std::vector<int64_t> in(static_cast<size_t>(count * n)), out(static_cast<size_t>(count), -99);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = Value(comm->rank(), static_cast<int64_t>(i));
  }
  Call call = CallOf(CallKind::kReduceScatter, DType::kI64, in, out, count);
  call.reduction.op = ReduceOp::kMax;
  ASSERT_EQ(comm->Run(call), absl::OkStatus());
  for (int64_t i = 0; i < count; ++i) {
    int64_t want = -100;
    for (int r = 0; r < n; ++r) {
      want = std::max(want, Value(r, comm->rank() * count + i));
    }
    ASSERT_EQ(out[static_cast<size_t>(i)], want) << "rank " << comm->rank() << " element " << i;
  }
}

void CheckAllGather(const Comm& comm, int64_t count) {
  const int n = comm->size();
  std::vector<int64_t> in(static_cast<size_t>(count)), out(static_cast<size_t>(count * n), -99);
  for (int64_t i = 0; i < count; ++i) {
    in[static_cast<size_t>(i)] = Value(comm->rank(), i);
  }
  ASSERT_EQ(comm->Run(CallOf(CallKind::kAllGather, DType::kI64, in, out, count)), absl::OkStatus());
  for (int r = 0; r < n; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(out[static_cast<size_t>(r * count + i)], Value(r, i))
          << "part " << r << " element " << i;
    }
  }
}

void CheckBroadcast(const Comm& comm, int64_t count, int root) {
  std::vector<int64_t> data(static_cast<size_t>(count), -99);
  if (comm->rank() == root) {
    for (int64_t i = 0; i < count; ++i) {
      data[static_cast<size_t>(i)] = Value(root, i);
    }
  }
  ASSERT_EQ(comm->Broadcast(data.data(), count, DType::kI64, root), absl::OkStatus());
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(data[static_cast<size_t>(i)], Value(root, i)) << "root " << root << " element " << i;
  }
}

void CheckSendRecv(const Comm& comm, int64_t count) {
  const int n = comm->size(), next = (comm->rank() + 1) % n, before = (comm->rank() + n - 1) % n;
  if (n == 1) {
    return;
  }
  std::vector<int64_t> in(static_cast<size_t>(count)), out(static_cast<size_t>(count), -99);
  for (int64_t i = 0; i < count; ++i) {
    in[static_cast<size_t>(i)] = Value(comm->rank(), i);
  }
  Call recv = CallOf(CallKind::kRecv, DType::kI64, in, out, count);
  recv.root = before;
  Call send = CallOf(CallKind::kSend, DType::kI64, in, out, count);
  send.root = next;
  const auto receiving = comm->Start(recv);
  ASSERT_TRUE(receiving.ok()) << receiving.status();
  ASSERT_EQ(comm->Run(send), absl::OkStatus());
  ASSERT_TRUE((*receiving)->Wait(Deadline::After(20 * kSecond)));
  ASSERT_EQ((*receiving)->status(), absl::OkStatus());
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(out[static_cast<size_t>(i)], Value(before, i));
  }
}

class Collective : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Collective, EveryKindGivesTheReference) {
  const auto& [transport, ranks] = GetParam();
  RanksOptions options;
  options.transports = transport;
  RunRanks(ranks, options, [](const Comm& comm) {
    for (const int64_t count : {0, 1, 2, 5, 1001, 70000}) {
      CheckAllReduce(comm, count, false);
      CheckAllReduce(comm, count, true);
      CheckReduceScatter(comm, count);
      CheckAllGather(comm, count);
      CheckBroadcast(comm, count, static_cast<int>(count) % comm->size());
      CheckSendRecv(comm, count);
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Collective,
                         testing::Combine(testing::ValuesIn(WithUcx({"inproc", "shm", "tcp"})),
                                          testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& param) {
                           return absl::StrCat(std::get<0>(param.param), "_n",
                                               std::get<1>(param.param));
                         });

TEST(CollectiveAlgorithms, EachOneCanBeForced) {
  for (const Algorithm& algorithm : Catalog()) {
    const int ranks = 5;
    RanksOptions options;
    options.algorithms = absl::StrCat(NameOf(algorithm.kind), ":", algorithm.name);
    options.host_id = [](int rank) {
      return absl::StrCat("host", rank / 2);
    };  // for the composed algorithms
    RunRanks(ranks, options, [&](const Comm& comm) {
      const auto name = comm->AlgorithmFor(algorithm.kind, 1000, DType::kI64);
      ASSERT_TRUE(name.ok()) << name.status();
      EXPECT_STREQ(*name, algorithm.name);
      for (uint32_t number = 0; number < 24; ++number) {
        // Even and uneven parts, in place and not, with one lane and with several.
        const int64_t count = number % 6 == 0 ? 150000 : number * 10;
        Trial trial({algorithm.kind, count, static_cast<int>(number) % ranks, number % 2 == 0,
                     number % 4 < 2, number},
                    comm->rank(), ranks);
        ASSERT_EQ(comm->Run(trial.call), absl::OkStatus());
        ASSERT_NO_FATAL_FAILURE(trial.Check());
      }
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    });
  }
}

TEST(CollectiveOrder, ManyInFlightAndTagsInAnyOrder) {
  RunRanks(4, [](const Comm& comm) {
    constexpr int kCalls = 40;
    std::vector<std::vector<int64_t>> in(kCalls), out(kCalls);
    std::vector<RefPtr<Work>> works;
    for (int k = 0; k < kCalls; ++k) {
      // Every rank starts the tagged calls in a different order.
      const int tag = (k * 7 + comm->rank() * 11) % kCalls;
      auto& mine = in[static_cast<size_t>(tag)];
      mine.assign(2000, tag + comm->rank());
      out[static_cast<size_t>(tag)].assign(2000, -1);
      Call call =
          CallOf(CallKind::kAllReduce, DType::kI64, mine, out[static_cast<size_t>(tag)], 2000);
      call.options.user_tag = tag;
      auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    for (const auto& work : works) {
      ASSERT_TRUE(work->Wait(Deadline::After(20 * kSecond)));
      ASSERT_EQ(work->status(), absl::OkStatus());
    }
    for (int tag = 0; tag < kCalls; ++tag) {
      EXPECT_THAT(out[static_cast<size_t>(tag)], testing::Each(4 * tag + 6));
    }
  });
}

TEST(CollectiveProgress, CallersAloneCanMakeIt) {
  RanksOptions options;
  options.own_thread = false;
  RunRanks(3, options, [](const Comm& comm) {
    CheckAllReduce(comm, 5000, false);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(CollectiveSplit, PartsWorkSideBySide) {
  RunRanks(6, [](const Comm& comm) {
    auto part = comm->Split(comm->rank() % 2, -comm->rank());  // reversed order
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_EQ((*part)->size(), 3);
    EXPECT_EQ((*part)->rank(), 2 - comm->rank() / 2);
    for (int k = 0; k < 20; ++k) {
      CheckAllReduce(*part, 300, false);
      CheckAllReduce(comm, 300, true);
    }
    auto none = comm->Split(comm->rank() == 0 ? -1 : 5, 0);
    ASSERT_TRUE(none.ok());
    EXPECT_EQ(*none == nullptr, comm->rank() == 0);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(CollectiveReduction, UserFunctionInRankOrder) {
  // Not commutative: it keeps the first and the last digit string, so another order gives another
  // result.
  const auto combine = [](void* dst, const void* src, size_t count, int32_t, void*) {
    auto* d = static_cast<int64_t*>(dst);
    const auto* s = static_cast<const int64_t*>(src);
    for (size_t i = 0; i < count; ++i) {
      int64_t shift = 10;
      while (shift <= s[i]) {
        shift *= 10;
      }
      d[i] = d[i] * shift + s[i];
    }
    return 0;
  };
  RunRanks(5, [&](const Comm& comm) {
    std::vector<int64_t> in(3, comm->rank() + 1), out(3);
    Call call = CallOf(CallKind::kAllReduce, DType::kI64, in, out, 3);
    call.reduction.op = ReduceOp::kCustom;
    call.reduction.combine = combine;
    call.reduction.commutative = false;
    ASSERT_EQ(comm->Run(call), absl::OkStatus());
    EXPECT_THAT(out, testing::Each(12345));
  });
}

}  // namespace
}  // namespace entrain
