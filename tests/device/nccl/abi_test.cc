// The declarations of nccl_abi.h, compared with NVIDIA's header.
#include <cstddef>
#include <type_traits>

#include <nccl.h>

#include "gtest/gtest.h"

#include "lib/device/nccl/nccl_abi.h"

namespace entrain::nccl {
namespace {

#define SAME(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs))
SAME(sizeof(UniqueId), sizeof(ncclUniqueId));
SAME(sizeof(Result), sizeof(ncclResult_t));
SAME(sizeof(DataType), sizeof(ncclDataType_t));
SAME(sizeof(RedOp), sizeof(ncclRedOp_t));
SAME(sizeof(ScalarResidence), sizeof(ncclScalarResidence_t));
SAME(kSuccess, ncclSuccess);
SAME(kUnhandledCudaError, ncclUnhandledCudaError);
SAME(kSystemError, ncclSystemError);
SAME(kInternalError, ncclInternalError);
SAME(kInvalidArgument, ncclInvalidArgument);
SAME(kInvalidUsage, ncclInvalidUsage);
SAME(kRemoteError, ncclRemoteError);
SAME(kInProgress, ncclInProgress);
SAME(kInt8, ncclInt8);
SAME(kUint8, ncclUint8);
SAME(kInt32, ncclInt32);
SAME(kUint32, ncclUint32);
SAME(kInt64, ncclInt64);
SAME(kUint64, ncclUint64);
SAME(kFloat16, ncclFloat16);
SAME(kFloat32, ncclFloat32);
SAME(kFloat64, ncclFloat64);
SAME(kBfloat16, ncclBfloat16);
SAME(kSum, ncclSum);
SAME(kProd, ncclProd);
SAME(kMax, ncclMax);
SAME(kMin, ncclMin);
SAME(kAvg, ncclAvg);
SAME(kScalarDevice, ncclScalarDevice);
SAME(kScalarHostImmediate, ncclScalarHostImmediate);
SAME(offsetof(Config, size), offsetof(ncclConfig_t, size));
SAME(offsetof(Config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(Config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(Config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(Config, cga_cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
SAME(offsetof(Config, min_ctas), offsetof(ncclConfig_t, minCTAs));
SAME(offsetof(Config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
SAME(offsetof(Config, net_name), offsetof(ncclConfig_t, netName));
SAME(offsetof(Config, split_share), offsetof(ncclConfig_t, splitShare));

// Returns how many arguments a function takes.
template <typename R, typename... A>
constexpr size_t Arguments(R (*)(A...)) {
  return sizeof...(A);
}

TEST(NcclAbi, IsThatOfTheHeader) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.size, theirs.size);
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.net_name, theirs.netName);
#define COMPARE(name, result, parameters)  \
  using Our_##name = result(*) parameters; \
  EXPECT_EQ(Arguments(Our_##name{}), Arguments(decltype(&::name){})) << #name;
  ENTRAIN_NCCL_FUNCTIONS(COMPARE)
#undef COMPARE
}

}  // namespace
}  // namespace entrain::nccl
