// The part of NCCL's binary interface that the library uses. This header declares that part itself,
// so that the build needs neither NCCL's header nor CUDA's. Values and layouts are those of nccl.h
// from 2.19 on. tests/device/nccl/abi_test.cc compares them with nccl.h if that header is
// installed. NCCL's documentation describes the functions.
#pragma once

#include <climits>
#include <cstddef>

namespace entrain::nccl {

constexpr int kOldestVersion = 21900;  // ncclGetVersion: 10000 * major + 100 * minor + patch

using Comm = struct OpaqueComm*;  // ncclComm_t
using Stream = void*;             // cudaStream_t, which is CUstream

struct UniqueId {  // ncclUniqueId; by value
  char bytes[128];
};

enum Result : int {  // ncclResult_t
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int {  // ncclDataType_t
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum RedOp : int {  // ncclRedOp_t; operators made by ncclRedOpCreatePreMulSum have other values
  kSum = 0,
  kProd = 1,
  kMax = 2,
  kMin = 3,
  kAvg = 4,
};

enum ScalarResidence : int {  // ncclScalarResidence_t
  kScalarDevice = 0,
  kScalarHostImmediate = 1,  // read before the function returns
};

// ncclConfig_t as of 2.18. NCCL reads `size` bytes, or fewer if its own struct is smaller. It uses
// its defaults for fields that were added after `version`.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;  // INT_MIN and null: NCCL's default
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// Each row is name, result, parameters.
#define ENTRAIN_NCCL_FUNCTIONS(X)                                                                 \
  X(ncclGetVersion, Result, (int* version))                                                       \
  X(ncclGetUniqueId, Result, (UniqueId * id))                                                     \
  X(ncclCommInitRankConfig, Result, (Comm * comm, int ranks, UniqueId id, int rank, Config*))     \
  X(ncclCommFinalize, Result, (Comm comm))                                                        \
  X(ncclCommDestroy, Result, (Comm comm))                                                         \
  X(ncclCommAbort, Result, (Comm comm))                                                           \
  X(ncclCommGetAsyncError, Result, (Comm comm, Result * error))                                   \
  X(ncclGetErrorString, const char*, (Result result))                                             \
  X(ncclGetLastError, const char*, (Comm comm))                                                   \
  X(ncclRedOpCreatePreMulSum, Result,                                                             \
    (RedOp * op, void* scalar, DataType type, ScalarResidence residence, Comm comm))              \
  X(ncclRedOpDestroy, Result, (RedOp op, Comm comm))                                              \
  X(ncclAllReduce, Result,                                                                        \
    (const void* in, void* out, size_t count, DataType type, RedOp op, Comm comm, Stream))        \
  X(ncclReduce, Result,                                                                           \
    (const void* in, void* out, size_t count, DataType type, RedOp op, int root, Comm comm,       \
     Stream))                                                                                     \
  X(ncclReduceScatter, Result,                                                                    \
    (const void* in, void* out, size_t out_count, DataType type, RedOp op, Comm comm, Stream))    \
  X(ncclBroadcast, Result,                                                                        \
    (const void* in, void* out, size_t count, DataType type, int root, Comm comm, Stream))        \
  X(ncclAllGather, Result,                                                                        \
    (const void* in, void* out, size_t in_count, DataType type, Comm comm, Stream))               \
  X(ncclSend, Result, (const void* in, size_t count, DataType type, int peer, Comm comm, Stream)) \
  X(ncclRecv, Result, (void* out, size_t count, DataType type, int peer, Comm comm, Stream))      \
  X(ncclGroupStart, Result, ())                                                                   \
  X(ncclGroupEnd, Result, ())

}  // namespace entrain::nccl
