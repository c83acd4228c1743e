// NCCL with one rank: the only test of the real library that is possible on a machine with one GPU
// (TEST_GPU=1). Without TEST_GPU the test uses the fakes.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "lib/device/offload.h"
#include "tests/device/cuda/on_device.h"
#include "tests/device/nccl/begun.h"

namespace entrain {
namespace {

constexpr int64_t kCount = 100'000, kBytes = kCount * 4;

TEST(NcclOfOneRank, EveryCallComesOut) {
  if (!OnRealDevice()) {
    setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
  }
  Device& device = TestDevice();
  const auto library = OpenOffloadLibrary();
  if (!library.ok() && OnRealDevice()) {
    GTEST_SKIP() << library.status();
  }
  ASSERT_TRUE(library.ok()) << library.status();
  std::printf("%s %s on %s\n", (*library)->name(), (*library)->version().c_str(),
              device.name().c_str());
  const auto id = (*library)->NewId();
  ASSERT_TRUE(id.ok()) << id.status();
  auto joined = (*library)->Join(*id, 0, 1, device);
  ASSERT_TRUE(joined.ok()) << joined.status();
  const std::unique_ptr<Offload> offload = *std::move(joined);
  ASSERT_EQ(AwaitBegun(*offload, Deadline::After(60 * kSecond)), absl::OkStatus());

  TestStream stream(device);
  const TestMemory in(device, kBytes), out(device, kBytes);
  std::vector<float> given(kCount), got(kCount);
  for (size_t i = 0; i < given.size(); ++i) {
    given[i] = static_cast<float>(i % 1000);
  }
  ASSERT_TRUE(device.Copy(in.get(), given.data(), kBytes, stream.get()).ok());
  for (const CallKind kind :
       {CallKind::kAllReduce, CallKind::kReduce, CallKind::kReduceScatter, CallKind::kBroadcast,
        CallKind::kAllGather, CallKind::kGather, CallKind::kScatter, CallKind::kAllToAll}) {
    for (const double factor : {1.0, 0.5}) {
      if (factor != 1 && !Reduces(kind)) {
        continue;
      }
      SCOPED_TRACE(NameOf(kind));
      Call call;
      call.kind = kind;
      call.dtype = DType::kF32;
      call.count = kCount;
      call.in = {in.get(), kBytes, MemoryKind::kDevice};
      call.out = {out.get(), kBytes, MemoryKind::kDevice};
      call.options.deadline = Deadline::After(60 * kSecond);
      if (factor != 1) {
        call.reduction.op = ReduceOp::kPreMultipliedSum;
        call.reduction.factor = factor;
      }
      ASSERT_TRUE(device.Fill(out.get(), 0xff, kBytes, stream.get()).ok());
      const absl::Status status = offload->Enqueue(call, stream.get(), nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(AwaitBegun(*offload, Deadline::After(60 * kSecond)), absl::OkStatus());
      ASSERT_TRUE(device.Copy(got.data(), out.get(), kBytes, stream.get()).ok());
      stream.Finish();
      ASSERT_TRUE(offload->AsyncStatus().ok());
      for (size_t i = 0; i < given.size(); ++i) {
        ASSERT_EQ(got[i], given[i] * static_cast<float>(factor)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace entrain
