// Call: one operation of a communicator, with all its arguments. Descriptor: the 16 bytes that
// every message of a call carries. Ranks that called different things notice it by the descriptors,
// and report an error instead of hanging or mixing data.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/base/dtype.h"

namespace entrain {

struct Merging;
class MergeState;

enum class CallKind : uint8_t {
  kBarrier = 1,
  kBroadcast = 2,
  kAllReduce = 3,
  kReduceScatter = 4,
  kAllGather = 5,
  kSend = 6,
  kRecv = 7,
  kSplit = 8,  // the all-gather behind entrain_comm_split
  // the all-gather by which the ranks of a new communicator prove that all ranks reach each other
  kCreate = 9,
  kReduce = 10,
  kGather = 11,
  kScatter = 12,
  kAllToAll = 13,
  kScan = 14,
  kExclusiveScan = 15,
  kRecvAny = 16,  // receives from the first peer whose message comes; matches kSend
  kGrow = 17,     // an all-gather of entrain_comm_grow
};
absl::string_view NameOf(CallKind kind);  // "all_reduce"
// Returns the collective to which NameOf gives this name. Returns nullopt for send, recv, recv_any,
// split, create and grow.
std::optional<CallKind> CollectiveFromName(absl::string_view name);
// Returns "barrier, broadcast, all_reduce, ...".
std::string CollectiveNames();
// Returns true if the call combines contributions.
bool Reduces(CallKind kind);
// Returns true if one rank, Call::root, has another role than the other ranks.
bool HasRoot(CallKind kind);
// Returns true for calls between two ranks: send, recv, recv_any.
bool IsMessage(CallKind kind);
// Returns true if every rank has a part of its own. Call::count is then the number of elements of a
// part, and parts may be uneven.
bool HasParts(CallKind kind);

// The values are those of the C ABI (types.h).
enum class ReduceOp : int32_t {
  kSum = 0,
  kProd = 1,
  kMin = 2,
  kMax = 3,
  kAvg = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
  kLogicalAnd = 8,
  kLogicalOr = 9,
  kLogicalXor = 10,
  kMinLoc = 11,
  kMaxLoc = 12,
  kCustom = 100,
  // The C ABI has no constants for these values. Calls get them only through reduction objects.
  kPreMultipliedSum = 101,
  kWeightedMean = 102,
  kGta = 103,
};
constexpr int kBuiltinOps = 13;         // the operators before kCustom
absl::string_view NameOf(ReduceOp op);  // "sum"
bool IsBuiltin(ReduceOp op);
// Returns an error if `op` cannot reduce elements of this type. The error names the operator and
// the type. Bit operators take integers. minloc and maxloc take pairs, and no other operator does.
// A weighted mean and gta take floats. kCustom takes every type.
absl::Status CheckReduction(ReduceOp op, DType dtype);

// How a call combines contributions.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  // kCustom only: the caller's own function. It computes dst = dst ⊕ src over `count` elements and
  // returns 0, or another number if it failed.
  int32_t (*combine)(void* dst, const void* src, size_t count, int32_t dtype, void* user) = nullptr;
  void* user = nullptr;
  // kCustom: the number of threads inside `combine`. Threads of calls that are over count too. May
  // be null.
  std::shared_ptr<std::atomic<int32_t>> inside;
  // kCustom: the caller's number for this function; must be equal on all ranks
  uint32_t signature = 0;
  bool commutative = true;
  // kPreMultipliedSum: the factor of this rank's contribution. If the elements are integers, the
  // factor is a whole number.
  double factor = 1;
  std::shared_ptr<const Merging> merging;  // kWeightedMean, kGta; else null
  // The state that a call with this reduction passes on to the next call (lib/comm/merge_state.h).
  // Not null if merging->Packs().
  std::shared_ptr<MergeState> merge_state;
};

// The arguments that all ranks must agree on. Every message carries them, and receivers compare
// them byte for byte.
struct Descriptor {
  CallKind kind = CallKind::kBarrier;
  uint8_t dtype = 0;  // DType
  uint8_t op = 0;     // ReduceOp
  // The bits kInRankOrder, kUneven and kDevice. The two bits from kDeterminismShift on hold the
  // Determinism.
  uint8_t flags = 0;
  // The root, or a number that stands for other arguments that must agree: the signature of a
  // custom reduction, or a hash of a Merging or of uneven counts. A call with several of these has
  // a hash of all of them.
  uint32_t root = 0;
  // Call::count. With uneven parts: the sum of all parts if all ranks know the sum, else 0.
  int64_t count = 0;
  static constexpr uint8_t kInRankOrder = 1, kUneven = 2, kDeterminismShift = 2, kDevice = 16;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};
static_assert(sizeof(Descriptor) == 16, "rides in every message");

// Returns "all_reduce sum of 1024 f32", "broadcast of 8 u8 from rank 2" or "barrier", for example.
std::string ToString(const Descriptor& descriptor);

// The inputs that may change the bits of a reduction's result.
enum class Determinism : uint8_t {
  kDefault = 0,    // the communicator's setting, or kAlgorithm if the communicator has none
  kAlgorithm = 1,  // the contributions, the ranks and the algorithm
  kRankOrder = 2,  // only the contributions in rank order
};
// Returns "default", "algorithm" or "rank_order".
absl::string_view NameOf(Determinism determinism);
// Accepts "algorithm" and "rank_order". INVALID_ARGUMENT names any other value.
absl::StatusOr<Determinism> ParseDeterminism(absl::string_view text);

struct CallOptions {
  Deadline deadline;        // absolute
  int64_t timeout_ns = 0;   // the time limit from which `deadline` was computed; for error messages
  int64_t user_tag = -1;    // -1: untagged, in program order; else 0..2^20-2
  bool background = false;  // the waiter sleeps at once instead of spinning
  Determinism determinism = Determinism::kDefault;  // must be equal on all ranks if Reduces(kind)
  // the buffers are in device memory, on all ranks (lib/device/calls/device_runner.h)
  bool device = false;
  // The call starts after the work that is already on `stream`. Later work on `stream` waits for
  // this call.
  bool on_stream = false;
  void* stream = nullptr;  // null: the device's default stream
};

// The number of elements of each rank's part in a call with uneven parts. all_gather,
// reduce_scatter: `in` and `out` both hold the counts of all parts, equal on all ranks. gather,
// scatter: on the root `in` and `out` both hold the counts of all parts; on other ranks all entries
// but their own are 0. all_to_all: in[r] elements go to rank r, and out[r] elements come from rank
// r.
struct PartCounts {
  std::vector<int64_t> in, out;
};

// `in` and `out` may be the same memory. If HasParts(kind), `count` is the number of elements of
// one part, else of the buffer. With uneven parts `count` is the sum of all parts if all ranks know
// the sum, else 0.
struct Call {
  CallKind kind = CallKind::kBarrier;
  Reduction reduction;
  DType dtype = DType::kU8;
  BufferView in, out;
  int64_t count = 0;
  int root = 0;  // used if HasRoot(kind). send, recv: the peer. recv_any: -1
  // recv_any: where a successful call stores the sender's rank; may be null
  int32_t* source = nullptr;
  std::shared_ptr<const PartCounts> uneven;  // null: even parts
  CallOptions options;
  // If not null, the library made this call as a step of the caller's call `whole`
  // (lib/comm/packed_call.h).
  std::shared_ptr<const Call> whole;

  // Returns the call that the caller made.
  const Call& named() const { return whole == nullptr ? *this : *whole; }
  // Returns equal descriptors on all ranks if the ranks agree. send, recv and recv_any all give
  // kSend, so that the two calls of a pair match.
  Descriptor descriptor() const;
};

}  // namespace entrain
