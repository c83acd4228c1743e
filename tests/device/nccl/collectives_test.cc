// Collectives on device memory by the fake NCCL: their results, their order with other work on the
// streams, and their ends.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/device/nccl/communicator_handle.h"
#include "lib/device/nccl/nccl_library.h"
#include "lib/device/nccl/nccl_offload.h"
#include "tests/device/cuda/on_device.h"
#include "tests/device/nccl/begun.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace entrain::nccl {
namespace {

using ::testing::HasSubstr;

constexpr int kMostRanks = 4;

class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
};

template <typename F>
F* OfFakeNccl(const char* name) {
  void* const library = dlopen(FAKE_NCCL_LIBRARY, RTLD_NOW);
  return reinterpret_cast<F*>(dlsym(library, name));
}

// A rank: its device, its part of the communicator, and a stream.
struct Rank {
  int rank = 0, size = 1;
  Device* device = nullptr;
  std::unique_ptr<Offload> offload;
  std::vector<std::unique_ptr<TestMemory>> scratch = {};  // scratch of its calls
  std::unique_ptr<TestStream> stream;
};

class NcclCollectives : public testing::Test {
 protected:
  NcclCollectives() {
    setenv("FAKE_CUDA_DEVICES", absl::StrCat(kMostRanks).c_str(), 1);
    TestDevices();
    auto library = LoadNccl(FAKE_NCCL_LIBRARY);
    EXPECT_TRUE(library.ok()) << library.status();
    library_ = *std::move(library);
  }
  void TearDown() override {
    EXPECT_TRUE(CommunicatorHandle::AwaitEnds(Deadline::After(20 * kSecond)));
    // A thread of the fake may still use a communicator that was aborted while it joined.
    const Deadline give_up = Deadline::After(20 * kSecond);
    while (OfFakeNccl<int()>("FakeNcclCommunicators")() > 0 &&
           !give_up.Passed(Clock::Real().Now())) {
      std::this_thread::yield();
    }
    EXPECT_EQ(OfFakeNccl<int()>("FakeNcclCommunicators")(), 0);
    EXPECT_EQ(OfFakeNccl<int()>("FakeNcclOperators")(), 0);
  }

  // Runs all ranks at the same time, each in a thread.
  static void Each(int size, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back(body, r);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  std::string Id() const {
    const auto id = library_->NewId();
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }
  void Run(int size, const std::function<void(Rank&)>& body) {
    const std::string id = Id();
    Each(size, [&](int r) {
      Rank me{r, size, &TestDevice(r), nullptr, {}, nullptr};
      auto joined = library_->Join(id, r, size, *me.device);
      ASSERT_TRUE(joined.ok()) << joined.status();
      me.offload = *std::move(joined);
      ASSERT_EQ(AwaitBegun(*me.offload), absl::OkStatus());
      me.stream = std::make_unique<TestStream>(*me.device);
      body(me);
    });
  }

  std::unique_ptr<OffloadLibrary> library_;
};

// Bytes of the host that are copied to the device and back.
class OnDevice {
 public:
  OnDevice(Rank& me, const std::vector<char>& host)
      : me_(me), memory_(*me.device, static_cast<int64_t>(host.size()) + 1), host_(host) {
    EXPECT_TRUE(me.device->Copy(memory_.get(), host_.data(), Bytes(), me.stream->get()).ok());
  }
  BufferView view(int64_t first = 0, int64_t bytes = -1) const {
    return {memory_.get() + first, bytes < 0 ? Bytes() : bytes, MemoryKind::kDevice};
  }
  // Returns the bytes when everything on the stream is done.
  std::vector<char> Get() {
    EXPECT_TRUE(me_.device->Copy(host_.data(), memory_.get(), Bytes(), me_.stream->get()).ok());
    me_.stream->Finish();
    return host_;
  }

 private:
  int64_t Bytes() const { return static_cast<int64_t>(host_.size()); }
  Rank& me_;
  const TestMemory memory_;
  std::vector<char> host_;
};

template <typename T>
std::vector<char> Bytes(const std::vector<T>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  if (!values.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}
template <typename T>
std::vector<T> Values(const std::vector<char>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}

Call Of(CallKind kind, int64_t count, BufferView in, BufferView out) {
  Call call;
  call.kind = kind;
  call.dtype = DType::kI32;
  call.count = count;
  call.in = in;
  call.out = out;
  call.options.deadline = Deadline::After(20 * kSecond);
  return call;
}

// Returns element i of the data that rank `from` has for rank `to`.
int32_t Element(int from, int to, int64_t i) {
  return from * 1000003 + to * 10007 + static_cast<int32_t>(i);
}
std::vector<int32_t> Part(int from, int to, int64_t count) {
  std::vector<int32_t> part;
  for (int64_t i = 0; i < count; ++i) {
    part.push_back(Element(from, to, i));
  }
  return part;
}
void Append(std::vector<int32_t>* to, const std::vector<int32_t>& more) {
  to->insert(to->end(), more.begin(), more.end());
}
// Returns the sum over all ranks of their parts for rank `to`.
std::vector<int32_t> SumOf(int size, int to, int64_t count) {
  std::vector<int32_t> sum(static_cast<size_t>(count));
  for (int r = 0; r < size; ++r) {
    const auto part = Part(r, to, count);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += part[i];
    }
  }
  return sum;
}

void Enqueue(Rank& me, const Call& call) {
  const int64_t bytes = std::max<int64_t>(ScratchBytes(call), 1);
  me.scratch.push_back(std::make_unique<TestMemory>(*me.device, bytes));
  const absl::Status status = me.offload->Enqueue(call, me.stream->get(), me.scratch.back()->get());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(AwaitBegun(*me.offload), absl::OkStatus());
}

TEST_F(NcclCollectives, Reductions) {
  for (const int size : {1, 2, 3}) {
    for (const int64_t count : {0, 1, 1000, 40000}) {
      Run(size, [&](Rank& me) {
        const auto own = Bytes(Part(me.rank, 0, count));
        const auto sum = SumOf(size, 0, count);
        const std::vector<char> room(own.size());
        OnDevice in(me, own), out(me, room), in_place(me, own), of_root(me, room);
        Enqueue(me, Of(CallKind::kAllReduce, count, in.view(), out.view()));
        Enqueue(me, Of(CallKind::kAllReduce, count, in_place.view(), in_place.view()));
        Call reduce = Of(CallKind::kReduce, count, in.view(), of_root.view());
        reduce.root = size - 1;
        Enqueue(me, reduce);
        EXPECT_EQ(Values<int32_t>(out.Get()), sum);
        EXPECT_EQ(Values<int32_t>(in_place.Get()), sum);
        if (me.rank == size - 1) {
          EXPECT_EQ(Values<int32_t>(of_root.Get()), sum);
        }
      });
    }
  }
}

TEST_F(NcclCollectives, PartsOfAll) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{5, 5, 5}, {3, 0, 4}, {0, 0, 9000}, {7}}) {
    const int size = static_cast<int>(counts.size());
    const bool even = counts == std::vector<int64_t>(counts.size(), counts[0]);
    Run(size, [&](Rank& me) {
      const auto own = static_cast<size_t>(me.rank);
      std::vector<int32_t> all_parts, gathered;
      for (int r = 0; r < size; ++r) {
        Append(&all_parts, Part(me.rank, r, counts[static_cast<size_t>(r)]));
        Append(&gathered, Part(r, 0, counts[static_cast<size_t>(r)]));
      }
      OnDevice parts(me, Bytes(all_parts)), mine(me, Bytes(Part(me.rank, 0, counts[own])));
      OnDevice part(me, std::vector<char>(static_cast<size_t>(counts[own]) * 4)),
          whole(me, std::vector<char>(gathered.size() * 4));
      Call scatter = Of(CallKind::kReduceScatter, counts[0], parts.view(), part.view());
      Call gather = Of(CallKind::kAllGather, counts[0], mine.view(), whole.view());
      if (!even) {
        scatter.uneven = gather.uneven =
            std::make_shared<const PartCounts>(PartCounts{counts, counts});
      }
      Enqueue(me, scatter);
      Enqueue(me, gather);
      EXPECT_EQ(Values<int32_t>(part.Get()), SumOf(size, me.rank, counts[own]));
      EXPECT_EQ(Values<int32_t>(whole.Get()), gathered);
    });
  }
}

TEST_F(NcclCollectives, ToAndFromARoot) {
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{5, 5, 5}, {30000, 0, 4}, {7}}) {
    const int size = static_cast<int>(counts.size()), root = size / 2;
    const bool even = counts == std::vector<int64_t>(counts.size(), counts[0]);
    Run(size, [&](Rank& me) {
      const auto own = static_cast<size_t>(me.rank);
      const bool is_root = me.rank == root;
      std::vector<int32_t> scattered, gathered;
      for (int r = 0; is_root && r < size; ++r) {
        Append(&scattered, Part(root, r, counts[static_cast<size_t>(r)]));
        Append(&gathered, Part(r, 1, counts[static_cast<size_t>(r)]));
      }
      OnDevice parts(me, Bytes(scattered)), mine(me, Bytes(Part(me.rank, 1, counts[own])));
      OnDevice part(me, std::vector<char>(static_cast<size_t>(counts[own]) * 4)),
          whole(me, std::vector<char>(gathered.size() * 4)),
          all(me, Bytes(is_root ? Part(9, 9, 100) : std::vector<int32_t>(100)));
      Call scatter = Of(CallKind::kScatter, counts[0], parts.view(), part.view());
      Call gather = Of(CallKind::kGather, counts[0], mine.view(), whole.view());
      if (!even) {
        // Ranks other than the root know only their own part.
        std::vector<int64_t> known(counts.size());
        known[own] = counts[own];
        const auto& here = is_root ? counts : known;
        scatter.uneven = gather.uneven = std::make_shared<const PartCounts>(PartCounts{here, here});
      }
      Call broadcast = Of(CallKind::kBroadcast, 100, all.view(), all.view());
      scatter.root = gather.root = broadcast.root = root;
      Enqueue(me, scatter);
      Enqueue(me, gather);
      Enqueue(me, broadcast);
      EXPECT_EQ(Values<int32_t>(part.Get()), Part(root, me.rank, counts[own]));
      EXPECT_EQ(Values<int32_t>(whole.Get()), gathered);
      EXPECT_EQ(Values<int32_t>(all.Get()), Part(9, 9, 100));
    });
  }
}

TEST_F(NcclCollectives, AllToAll) {
  const int size = 3;
  for (const int64_t count : {0, 1, 20000}) {
    Run(size, [&](Rank& me) {
      std::vector<int32_t> to, from;
      for (int r = 0; r < size; ++r) {
        Append(&to, Part(me.rank, r, count));
        Append(&from, Part(r, me.rank, count));
      }
      OnDevice in(me, Bytes(to)), out(me, std::vector<char>(to.size() * 4)), both(me, Bytes(to));
      Enqueue(me, Of(CallKind::kAllToAll, count, in.view(), out.view()));
      Enqueue(me, Of(CallKind::kAllToAll, count, both.view(), both.view()));
      EXPECT_EQ(Values<int32_t>(out.Get()), from);
      EXPECT_EQ(Values<int32_t>(both.Get()), from);
    });
  }
}

TEST_F(NcclCollectives, AllToAllOfUnevenParts) {
  const int size = 3;
  const auto count = [](int from, int to) { return int64_t{(from * 5 + to * 3) % 4} * 2500; };
  Run(size, [&](Rank& me) {
    std::vector<int32_t> to, from;
    PartCounts counts;
    for (int r = 0; r < size; ++r) {
      Append(&to, Part(me.rank, r, count(me.rank, r)));
      Append(&from, Part(r, me.rank, count(r, me.rank)));
      counts.in.push_back(count(me.rank, r));
      counts.out.push_back(count(r, me.rank));
    }
    OnDevice in(me, Bytes(to)), out(me, std::vector<char>(from.size() * 4));
    Call call = Of(CallKind::kAllToAll, 0, in.view(), out.view());
    call.uneven = std::make_shared<const PartCounts>(counts);
    Enqueue(me, call);
    EXPECT_EQ(Values<int32_t>(out.Get()), from);
  });
}

TEST_F(NcclCollectives, OperatorsAndTypes) {
  Run(2, [&](Rank& me) {
    const auto own = static_cast<float>(me.rank + 1);
    OnDevice f(me, Bytes(std::vector<float>{own, -own})), out(me, std::vector<char>(8));
    Call call = Of(CallKind::kAllReduce, 2, f.view(), out.view());
    call.dtype = DType::kF32;
    call.reduction.op = ReduceOp::kAvg;
    Enqueue(me, call);
    EXPECT_EQ(Values<float>(out.Get()), (std::vector<float>{1.5, -1.5}));
    call.reduction.op = ReduceOp::kPreMultipliedSum;
    call.reduction.factor = me.rank == 0 ? 0.25 : 10;  // each rank has its own factor
    Enqueue(me, call);
    EXPECT_EQ(Values<float>(out.Get()), (std::vector<float>{20.25, -20.25}));
    call.reduction.op = ReduceOp::kProd;
    Enqueue(me, call);
    EXPECT_EQ(Values<float>(out.Get()), (std::vector<float>{2, 2}));

    OnDevice b(me, Bytes(std::vector<uint16_t>{FloatToBF16(own)})), sum(me, std::vector<char>(2));
    call = Of(CallKind::kAllReduce, 1, b.view(), sum.view());
    call.dtype = DType::kBF16;
    Enqueue(me, call);
    EXPECT_EQ(Values<uint16_t>(sum.Get())[0], FloatToBF16(3));

    OnDevice i(me, Bytes(std::vector<int64_t>{me.rank - 1})), least(me, std::vector<char>(8));
    call = Of(CallKind::kAllReduce, 1, i.view(), least.view());
    call.dtype = DType::kI64;
    call.reduction.op = ReduceOp::kMin;
    Enqueue(me, call);
    EXPECT_EQ(Values<int64_t>(least.Get())[0], -1);
  });
}

// The input is written, and the output read, on the stream. The host waits for neither.
TEST_F(NcclCollectives, StreamsKeepTheirOrder) {
  constexpr int64_t kCount = 10000;
  Run(2, [&](Rank& me) {
    Device& device = *me.device;
    const StreamHandle stream = me.stream->get();
    const TestMemory in(device, kCount * 4), out(device, kCount * 4), kept(device, kCount * 4);
    auto word = device.AllocatePinned(4);
    ASSERT_TRUE(word.ok());
    auto* const gate = static_cast<uint32_t*>(*word);
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    ASSERT_TRUE(device.AwaitWord(stream, gate, 1).ok());
    ASSERT_TRUE(device.Fill(in.get(), static_cast<uint8_t>(me.rank + 1), kCount * 4, stream).ok());
    Enqueue(me, Of(CallKind::kAllReduce, kCount, {in.get(), kCount * 4, MemoryKind::kDevice},
                   {out.get(), kCount * 4, MemoryKind::kDevice}));
    ASSERT_TRUE(device.Copy(kept.get(), out.get(), kCount * 4, stream).ok());
    ASSERT_TRUE(device.Fill(out.get(), 0, kCount * 4, stream).ok());
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    std::vector<char> host(kCount * 4);
    ASSERT_TRUE(device.Copy(host.data(), kept.get(), kCount * 4, stream).ok());
    me.stream->Finish();
    EXPECT_EQ(host, std::vector<char>(kCount * 4, 3));
    device.FreePinned(gate);
  });
}

TEST_F(NcclCollectives, TwoRanksOnOneDeviceAreRefused) {
  const std::string id = Id();
  Each(2, [&](int r) {
    const auto offload = library_->Join(id, r, 2, TestDevice(0));
    ASSERT_TRUE(offload.ok()) << offload.status();
    const absl::Status joined = AwaitBegun(**offload);
    EXPECT_EQ(joined.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(joined.message()), HasSubstr("Duplicate GPU"));
    (*offload)->Abort();
  });
}

TEST_F(NcclCollectives, JoiningWaitsForAllAndCanBeAborted) {
  const auto alone = library_->Join(Id(), 0, 2, TestDevice(0));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitBegun(**alone, Deadline::After(kSecond / 5))));
  (*alone)->Abort();
  EXPECT_TRUE(absl::IsAborted((*alone)->Begun().status()));
  const Setting hang("FAKE_NCCL_HANG", "1");
  const std::string id = Id();
  Each(2, [&](int r) {
    const auto joining = library_->Join(id, r, 2, TestDevice(r));
    ASSERT_TRUE(joining.ok()) << joining.status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitBegun(**joining, Deadline::After(kSecond / 5))));
    (*joining)->Abort();
  });
}

TEST_F(NcclCollectives, IdsOfOthersAreRefused) {
  EXPECT_EQ(library_->Join("short", 0, 1, TestDevice(0)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(library_->Join(std::string(128, 'x'), 0, 1, TestDevice(0)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Returns whether the stream finishes within this time.
bool Ends(Rank& me, int64_t within_ns) {
  const auto event = me.device->CreateEvent();
  EXPECT_TRUE(event.ok() && me.device->Record(*event, me.stream->get()).ok());
  const absl::Status waited = me.device->Wait(*event, Deadline::After(within_ns));
  me.device->DestroyEvent(*event);
  return waited.ok();
}
absl::Status AwaitError(Offload& offload) {
  const Deadline give_up = Deadline::After(20 * kSecond);
  while (!give_up.Passed(Clock::Real().Now())) {
    if (absl::Status status = offload.AsyncStatus(); !status.ok()) {
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::OkStatus();
}

TEST_F(NcclCollectives, ErrorsOfNobodysCallAreAskedFor) {
  const Setting fail("FAKE_NCCL_FAIL", "2:6");
  Run(2, [&](Rank& me) {
    OnDevice in(me, Bytes(Part(me.rank, 0, 10)));
    const Call call = Of(CallKind::kAllReduce, 10, in.view(), in.view());
    Enqueue(me, call);
    Enqueue(me, call);
    EXPECT_TRUE(Ends(me, 20 * kSecond));
    EXPECT_TRUE(me.offload->AsyncStatus().ok());
    Enqueue(me, call);
    EXPECT_TRUE(absl::IsUnavailable(AwaitError(*me.offload)));
    EXPECT_FALSE(Ends(me, 50 * kMillisecond));  // like NCCL's kernels, until they are aborted
    me.offload->Abort();
    EXPECT_TRUE(Ends(me, 5 * kSecond));
    EXPECT_TRUE(absl::IsAborted(me.offload->AsyncStatus()));
  });
}

TEST_F(NcclCollectives, AbortEndsACallThatAnotherRankDoesNotMake) {
  std::atomic<bool> seen{false};
  Run(2, [&](Rank& me) {
    if (me.rank == 1) {
      while (!seen.load()) {
        std::this_thread::yield();
      }
      // The rank is told that the other has exited.
      OnDevice in(me, Bytes(Part(me.rank, 0, 30000)));
      Enqueue(me, Of(CallKind::kAllReduce, 30000, in.view(), in.view()));
      EXPECT_TRUE(absl::IsUnavailable(AwaitError(*me.offload)));
      me.offload->Abort();
      EXPECT_TRUE(Ends(me, 5 * kSecond));
      return;
    }
    OnDevice in(me, Bytes(Part(me.rank, 0, 30000)));
    Enqueue(me, Of(CallKind::kAllReduce, 30000, in.view(), in.view()));
    EXPECT_FALSE(Ends(me, 50 * kMillisecond));
    std::thread([&] { me.offload->Abort(); }).join();
    EXPECT_TRUE(Ends(me, 5 * kSecond));
    seen.store(true);
  });
}

TEST_F(NcclCollectives, WhatOldVersionsAreIsSaid) {
  const Setting version("FAKE_NCCL_VERSION", "21805");
  const auto library = LoadNccl(FAKE_NCCL_LIBRARY);
  EXPECT_EQ(library.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(library.status().message()),
              testing::AllOf(HasSubstr("is version 2.18.5"), HasSubstr("2.19.0 or later")));
}

TEST_F(NcclCollectives, TheEnvironmentNamesTheLibrary) {
  const Setting name("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY);
  const auto library = OpenOffloadLibrary();
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_STREQ((*library)->name(), "nccl");
  EXPECT_EQ((*library)->version(), "2.28.9");
  EXPECT_EQ(*OpenOffloadLibrary(), *library);
}

// ---- Between processes: this program runs again as rank 1 of 2

constexpr char kIdVariable[] = "NCCL_TEST_ID", kDieVariable[] = "NCCL_TEST_DIES";

void OfTwoProcesses(OffloadLibrary& library, int rank, const std::string& id) {
  Rank me{rank, 2, &TestDevice(rank), nullptr, {}, nullptr};
  auto joined = library.Join(id, rank, 2, *me.device);
  ASSERT_TRUE(joined.ok()) << joined.status();
  me.offload = *std::move(joined);
  ASSERT_EQ(AwaitBegun(*me.offload), absl::OkStatus());
  me.stream = std::make_unique<TestStream>(*me.device);
  OnDevice in(me, Bytes(Part(rank, 0, 30000)));
  const Call call = Of(CallKind::kAllReduce, 30000, in.view(), in.view());
  Enqueue(me, call);
  EXPECT_EQ(Values<int32_t>(in.Get()), SumOf(2, 0, 30000));
  if (getenv(kDieVariable) == nullptr) {
    return;
  }
  if (rank == 1) {
    _exit(7);
  }
  Enqueue(me, call);
  EXPECT_TRUE(absl::IsUnavailable(AwaitError(*me.offload)));
  me.offload->Abort();
  EXPECT_TRUE(Ends(me, 5 * kSecond));
}

TEST_F(NcclCollectives, DISABLED_OtherProcess) {
  std::string id;
  ASSERT_TRUE(absl::WebSafeBase64Unescape(getenv(kIdVariable), &id));
  OfTwoProcesses(*library_, 1, id);
}

int WithAnotherProcess(OffloadLibrary& library, const std::string& id) {
  const Setting id_is(kIdVariable, absl::WebSafeBase64Escape(id));
  char self[4096] = "";
  EXPECT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  char filter[] = "--gtest_filter=*DISABLED_OtherProcess",
       also[] = "--gtest_also_run_disabled_tests";
  char* const arguments[] = {self, filter, also, nullptr};
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, self, nullptr, nullptr, arguments, environ), 0);
  OfTwoProcesses(library, 0, id);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

TEST_F(NcclCollectives, BetweenProcesses) {
  EXPECT_EQ(WithAnotherProcess(*library_, Id()), 0);
}

TEST_F(NcclCollectives, AProcessThatEndsIsAPeerLost) {
  const Setting dies(kDieVariable, "1");
  EXPECT_EQ(WithAnotherProcess(*library_, Id()), 7);
}

}  // namespace
}  // namespace entrain::nccl
