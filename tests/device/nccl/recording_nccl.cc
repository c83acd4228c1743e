#include "tests/device/nccl/recording_nccl.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace entrain::nccl {
namespace {

std::mutex mutex;
Recorded recorded;
uintptr_t next_memory;

std::string Hex(const void* address) {
  return absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(address)));
}

template <typename... Words>
void Note(const Words&... words) {
  const std::lock_guard<std::mutex> lock(mutex);
  recorded.lines.push_back(absl::StrCat(words...));
}

const char* NameOf(DataType type) {
  constexpr const char* kNames[] = {"i8",  "u8",  "i32", "u32", "i64",
                                    "u64", "f16", "f32", "f64", "bf16"};
  return kNames[type];
}
std::string NameOf(RedOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg"};
  return op <= kAvg ? kNames[op] : absl::StrCat("made", static_cast<int>(op));
}

Comm TheComm() {
  return reinterpret_cast<Comm>(uintptr_t{0xc0});
}

// Returns the answer of a call.
Result Answer() {
  const std::lock_guard<std::mutex> lock(mutex);
  recorded.outside = recorded.outside || recorded.entered == 0;
  return recorded.call;
}

void Gone() {
  const std::lock_guard<std::mutex> lock(mutex);
  --recorded.communicators;
}

Result InitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  Note("Init ", ranks, " ", rank, " ", id.bytes, " blocking ", config->blocking);
  const std::lock_guard<std::mutex> lock(mutex);
  recorded.outside = recorded.outside || recorded.entered == 0;
  *comm = TheComm();
  ++recorded.communicators;
  return recorded.init;
}

Result GetAsyncError(Comm, Result* error) {
  const std::lock_guard<std::mutex> lock(mutex);
  *error = recorded.polls_in_progress > 0 ? kInProgress : recorded.async;
  recorded.polls_in_progress -= recorded.polls_in_progress > 0 ? 1 : 0;
  return kSuccess;
}

Result CreatePreMulSum(RedOp* op, void* scalar, DataType type, ScalarResidence residence, Comm) {
  uint64_t bits = 0;
  const size_t width = type == kInt8 || type == kUint8                         ? 1
                       : type == kInt32 || type == kUint32 || type == kFloat32 ? 4
                                                                               : 8;
  std::memcpy(&bits, scalar, width);
  Note("PreMulSum ", absl::Hex(bits), " ", NameOf(type), residence == 1 ? " now" : " later");
  *op = static_cast<RedOp>(17);
  return Answer();
}

}  // namespace

Recorded& StartRecording() {
  const std::lock_guard<std::mutex> lock(mutex);
  recorded = Recorded();
  next_memory = 0xa000;
  return recorded;
}

Functions RecordingFunctions() {
  Functions f;
  f.version = kOldestVersion;
  f.ncclGetErrorString = [](Result) { return "an error"; };
  f.ncclGetLastError = [](Comm) { return "its reason"; };
  f.ncclCommInitRankConfig = InitRankConfig;
  f.ncclCommGetAsyncError = GetAsyncError;
  f.ncclCommFinalize = [](Comm) {
    Note("Finalize");
    return kInProgress;
  };
  f.ncclCommDestroy = [](Comm) {
    Note("Destroy");
    Gone();
    const std::lock_guard<std::mutex> lock(mutex);
    return recorded.destroy;
  };
  f.ncclCommAbort = [](Comm) {
    Note("Abort");
    Gone();
    return kSuccess;
  };
  f.ncclRedOpCreatePreMulSum = CreatePreMulSum;
  f.ncclRedOpDestroy = [](RedOp op, Comm) {
    Note("DestroyOp ", NameOf(op));
    return Answer();
  };
  f.ncclAllReduce = [](const void* in, void* out, size_t count, DataType type, RedOp op, Comm,
                       Stream) {
    Note("AllReduce ", Hex(in), " ", Hex(out), " ", count, " ", NameOf(type), " ", NameOf(op));
    return Answer();
  };
  f.ncclReduce = [](const void* in, void* out, size_t count, DataType type, RedOp op, int root,
                    Comm, Stream) {
    Note("Reduce ", Hex(in), " ", Hex(out), " ", count, " ", NameOf(type), " ", NameOf(op), " to ",
         root);
    return Answer();
  };
  f.ncclReduceScatter = [](const void* in, void* out, size_t count, DataType type, RedOp op, Comm,
                           Stream) {
    Note("ReduceScatter ", Hex(in), " ", Hex(out), " ", count, " ", NameOf(type), " ", NameOf(op));
    return Answer();
  };
  f.ncclBroadcast = [](const void* in, void* out, size_t count, DataType type, int root, Comm,
                       Stream) {
    Note("Broadcast ", Hex(in), " ", Hex(out), " ", count, " ", NameOf(type), " from ", root);
    return Answer();
  };
  f.ncclAllGather = [](const void* in, void* out, size_t count, DataType type, Comm, Stream) {
    Note("AllGather ", Hex(in), " ", Hex(out), " ", count, " ", NameOf(type));
    return Answer();
  };
  f.ncclSend = [](const void* in, size_t count, DataType type, int peer, Comm, Stream) {
    Note("Send ", Hex(in), " ", count, " ", NameOf(type), " to ", peer);
    return Answer();
  };
  f.ncclRecv = [](void* out, size_t count, DataType type, int peer, Comm, Stream) {
    Note("Recv ", Hex(out), " ", count, " ", NameOf(type), " from ", peer);
    return Answer();
  };
  f.ncclGroupStart = [] {
    Note("{");
    return kSuccess;
  };
  f.ncclGroupEnd = [] {
    Note("}");
    return kInProgress;
  };
  return f;
}

absl::Status RecordingDevice::Enter() {
  const std::lock_guard<std::mutex> lock(mutex);
  ++recorded.entered;
  return absl::OkStatus();
}

void RecordingDevice::Leave() {
  const std::lock_guard<std::mutex> lock(mutex);
  --recorded.entered;
}

absl::StatusOr<void*> RecordingDevice::Allocate(int64_t bytes) {
  void* const memory = reinterpret_cast<void*>(next_memory);
  next_memory += 0x1000;
  Note("Allocate ", bytes);
  return memory;
}

void RecordingDevice::Free(void* memory) {
  Note("Free ", Hex(memory));
}

absl::Status RecordingDevice::Copy(void* dst, const void* src, int64_t bytes, StreamHandle) {
  Note("Copy ", Hex(dst), " ", Hex(src), " ", bytes);
  return absl::OkStatus();
}

absl::Status RecordingDevice::Record(EventHandle, StreamHandle stream) {
  Note("Record ", Hex(stream));
  return absl::OkStatus();
}

absl::Status RecordingDevice::AwaitEvent(StreamHandle stream, EventHandle) {
  Note("AwaitEvent ", Hex(stream));
  return absl::OkStatus();
}

const Kernels& RecordingDevice::kernels() const {
  std::abort();
}

}  // namespace entrain::nccl
