// NCCL's functions (those that lib/device/nccl uses), as NCCL documents them: README.md.
#include "tests/support/fake_nccl/fake_nccl.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include "lib/device/nccl/nccl_abi.h"
#include "tests/support/fake_nccl/communicator.h"
#include "tests/support/fake_nccl/cuda_of_fake.h"

namespace fake_nccl {
namespace {

using namespace entrain::nccl;  // NOLINT(google-build-using-namespace): the names of its interface

std::mutex mutex;
std::string last_error;
std::map<Comm, std::shared_ptr<Communicator>> communicators;

std::shared_ptr<Communicator> Find(Comm comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = communicators.find(comm);
  return found == communicators.end() ? nullptr : found->second;
}

std::shared_ptr<Communicator> Take(Comm comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = communicators.find(comm);
  if (found == communicators.end()) {
    return nullptr;
  }
  auto taken = std::move(found->second);
  communicators.erase(found);
  return taken;
}

Result Refuse(Result result, const char* why) {
  SetLastError(why);
  return result;
}

// ---- Groups: each belongs to a thread

struct Grouped {
  std::shared_ptr<Communicator> communicator;
  void* stream;
  Operation operation;
};
thread_local int depth = 0;
thread_local std::vector<Grouped> grouped;

Result SubmitGroup() {
  std::vector<Grouped> all = std::exchange(grouped, {});
  if (all.empty()) {
    return kSuccess;
  }
  Grouped whole = std::move(all.front());
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].communicator != whole.communicator || all[i].stream != whole.stream) {
      return Refuse(kInvalidUsage, "the fake takes groups of one communicator and stream");
    }
    whole.operation.Append(std::move(all[i].operation));
  }
  return whole.communicator->Submit(std::move(whole.operation), whole.stream);
}

// Every collective goes through this function.
template <typename Make>
Result Submit(Comm comm, void* stream, Make make) {
  const std::shared_ptr<Communicator> communicator = Find(comm);
  if (communicator == nullptr) {
    return Refuse(kInvalidArgument, "no such communicator");
  }
  if (!communicator->Ready()) {
    return Refuse(kInvalidUsage, "the communicator is not ready");
  }
  int device = -1;
  if (TheCuda().cuCtxGetDevice(&device) != 0) {
    return Refuse(kInvalidUsage, "the thread is on no device");
  }
  grouped.push_back({communicator, stream, make(*communicator)});
  return depth > 0 ? kSuccess : SubmitGroup();
}

bool Understand(Communicator& communicator, DataType type, RedOp op, Combination* how) {
  *how = {type, op};
  return op <= kAvg || (communicator.FindOperator(op, how) && how->type == type);
}

Result SubmitReduce(const void* in, void* out, size_t count, DataType type, RedOp op, int root,
                    bool parts, Comm comm, void* stream) {
  Combination how;
  const auto communicator = Find(comm);
  if (communicator != nullptr && !Understand(*communicator, type, op, &how)) {
    return Refuse(kInvalidArgument, "no such operator for the type");
  }
  return Submit(comm, stream, [&](const Communicator& of) {
    return Reduce(of.place(), in, out, count, how, root, parts);
  });
}

}  // namespace

void SetLastError(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex);
  last_error = why;
}

const Cuda& TheCuda() {
  static const Cuda cuda = [] {
    Cuda found;
    const char* const name = std::getenv("ENTRAIN_CUDA_LIBRARY");
    void* const library = name == nullptr ? nullptr : dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      const auto find = [&](auto& function, const char* symbol) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
        if (function == nullptr) {
          std::fprintf(stderr, "fake_nccl: %s has no %s\n", name, symbol);
          std::abort();
        }
      };
      find(found.cuLaunchHostFunc, "cuLaunchHostFunc");
      find(found.cuCtxGetDevice, "cuCtxGetDevice");
      find(found.cuCtxGetCurrent, "cuCtxGetCurrent");
      find(found.cuCtxPushCurrent_v2, "cuCtxPushCurrent_v2");
      find(found.cuCtxPopCurrent_v2, "cuCtxPopCurrent_v2");
      find(found.cuMemAlloc_v2, "cuMemAlloc_v2");
      find(found.cuMemFree_v2, "cuMemFree_v2");
      find(found.Seen, "FakeCudaSeen");
    }
    return found;
  }();
  return cuda;
}

}  // namespace fake_nccl

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

// NOLINTNEXTLINE(google-build-using-namespace): the names of its interface
using namespace entrain::nccl;
using fake_nccl::Combination;
using fake_nccl::Communicator;
using fake_nccl::Find;
using fake_nccl::Place;
using fake_nccl::Refuse;
using fake_nccl::Settings;

// ---- For tests

FAKE_EXPORT int FakeNcclCommunicators() {
  return Communicator::live();
}
FAKE_EXPORT int FakeNcclOperators() {
  return Communicator::live_operators();
}

FAKE_EXPORT int FakeNcclLaunches() {
  return Communicator::launches();
}

FAKE_EXPORT int FakeNcclOperations() {
  return Communicator::operations();
}

// ---- Communicators

FAKE_EXPORT Result ncclGetVersion(int* version) {
  *version = Settings::Read().version;
  return kSuccess;
}

FAKE_EXPORT const char* ncclGetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kUnhandledCudaError:
      return "unhandled cuda error";
    case kSystemError:
      return "unhandled system error";
    case kInternalError:
      return "internal error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

FAKE_EXPORT const char* ncclGetLastError(Comm) {
  thread_local std::string copy;
  const std::lock_guard<std::mutex> lock(fake_nccl::mutex);
  copy = fake_nccl::last_error;
  return copy.c_str();
}

FAKE_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  *id = fake_nccl::Board::Make();
  return kSuccess;
}

FAKE_EXPORT Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank,
                                          Config* config) {
  if (config->magic != 0xcafebeef || config->size < sizeof(Config)) {
    return Refuse(kInvalidArgument, "the config is none");
  }
  if (config->blocking != 0) {
    return Refuse(kInvalidArgument, "the fake's communicators do not block");
  }
  int device = -1;
  if (fake_nccl::TheCuda().cuCtxGetDevice == nullptr ||
      fake_nccl::TheCuda().cuCtxGetDevice(&device) != 0) {
    return Refuse(kUnhandledCudaError, "the thread is on no device");
  }
  const auto board = fake_nccl::Board::Open(id);
  if (board == nullptr || ranks < 1 || ranks > fake_nccl::kMostRanks || rank < 0 || rank >= ranks) {
    return Refuse(kInvalidArgument, "no such id, or no such rank");
  }
  auto made = std::make_shared<Communicator>(board, Place{rank, ranks}, Settings::Read());
  *comm = reinterpret_cast<Comm>(made.get());
  made->Join(device);
  const std::lock_guard<std::mutex> lock(fake_nccl::mutex);
  fake_nccl::communicators.emplace(*comm, std::move(made));
  return kInProgress;
}

FAKE_EXPORT Result ncclCommGetAsyncError(Comm comm, Result* error) {
  const auto communicator = Find(comm);
  if (communicator == nullptr) {
    return Refuse(kInvalidArgument, "no such communicator");
  }
  *error = communicator->AsyncError();
  return kSuccess;
}

FAKE_EXPORT Result ncclCommFinalize(Comm comm) {
  const auto communicator = Find(comm);
  if (communicator == nullptr || !communicator->Ready()) {
    return Refuse(kInvalidArgument, "no such communicator, or not ready");
  }
  return communicator->Finalize();
}

FAKE_EXPORT Result ncclCommDestroy(Comm comm) {
  const auto communicator = Find(comm);
  if (communicator == nullptr || !communicator->finalized()) {
    return Refuse(kInvalidUsage, "no such communicator, or not finalized: NCCL would wait");
  }
  fake_nccl::Take(comm)->FreeMemory();
  return kSuccess;
}

FAKE_EXPORT Result ncclCommAbort(Comm comm) {
  const auto communicator = fake_nccl::Take(comm);
  if (communicator == nullptr) {
    return Refuse(kInvalidArgument, "no such communicator");
  }
  communicator->Abort();
  return kSuccess;
}

FAKE_EXPORT Result ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, DataType type,
                                            ScalarResidence residence, Comm comm) {
  const auto communicator = Find(comm);
  if (communicator == nullptr || !communicator->Ready() || residence != kScalarHostImmediate) {
    return Refuse(kInvalidArgument, "no such communicator, not ready, or a scalar of the device");
  }
  *op = communicator->AddOperator({type, kSum, true, fake_nccl::ReadScalar(scalar, type)});
  return kSuccess;
}

FAKE_EXPORT Result ncclRedOpDestroy(RedOp op, Comm comm) {
  const auto communicator = Find(comm);
  return communicator != nullptr && communicator->RemoveOperator(op)
             ? kSuccess
             : Refuse(kInvalidArgument, "no such operator");
}

// ---- Collectives

FAKE_EXPORT Result ncclAllReduce(const void* in, void* out, size_t count, DataType type, RedOp op,
                                 Comm comm, Stream stream) {
  return fake_nccl::SubmitReduce(in, out, count, type, op, -1, false, comm, stream);
}

FAKE_EXPORT Result ncclReduce(const void* in, void* out, size_t count, DataType type, RedOp op,
                              int root, Comm comm, Stream stream) {
  return fake_nccl::SubmitReduce(in, out, count, type, op, root, false, comm, stream);
}

FAKE_EXPORT Result ncclReduceScatter(const void* in, void* out, size_t count, DataType type,
                                     RedOp op, Comm comm, Stream stream) {
  return fake_nccl::SubmitReduce(in, out, count, type, op, -1, true, comm, stream);
}

FAKE_EXPORT Result ncclBroadcast(const void* in, void* out, size_t count, DataType type, int root,
                                 Comm comm, Stream stream) {
  return fake_nccl::Submit(comm, stream, [&](const Communicator& of) {
    return fake_nccl::Broadcast(of.place(), in, out, count * fake_nccl::SizeOf(type), root);
  });
}

FAKE_EXPORT Result ncclAllGather(const void* in, void* out, size_t count, DataType type, Comm comm,
                                 Stream stream) {
  return fake_nccl::Submit(comm, stream, [&](const Communicator& of) {
    return fake_nccl::AllGather(of.place(), in, out, count * fake_nccl::SizeOf(type));
  });
}

FAKE_EXPORT Result ncclSend(const void* in, size_t count, DataType type, int peer, Comm comm,
                            Stream stream) {
  return fake_nccl::Submit(comm, stream, [&](const Communicator&) {
    return fake_nccl::Send(in, count * fake_nccl::SizeOf(type), peer);
  });
}

FAKE_EXPORT Result ncclRecv(void* out, size_t count, DataType type, int peer, Comm comm,
                            Stream stream) {
  return fake_nccl::Submit(comm, stream, [&](const Communicator&) {
    return fake_nccl::Receive(out, count * fake_nccl::SizeOf(type), peer);
  });
}

FAKE_EXPORT Result ncclGroupStart() {
  ++fake_nccl::depth;
  return kSuccess;
}

FAKE_EXPORT Result ncclGroupEnd() {
  if (fake_nccl::depth == 0) {
    return Refuse(kInvalidUsage, "no group was started");
  }
  return --fake_nccl::depth > 0 ? kSuccess : fake_nccl::SubmitGroup();
}
