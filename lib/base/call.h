// Call: one operation of a communicator on one rank, with all its arguments. Descriptor: the 16
// bytes that every message of a call carries. If ranks make different calls, their descriptors
// differ. The ranks then report an error instead of hanging or mixing data.
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
  kSplit = 8,  // the all-gather inside entrain_comm_split
  // the all-gather inside the creation of a communicator; it proves that every rank reaches every
  // other rank
  kCreate = 9,
  kReduce = 10,
  kGather = 11,
  kScatter = 12,
  kAllToAll = 13,
  kScan = 14,
  kExclusiveScan = 15,
  kRecvAny = 16,  // receives the first message from any peer; matches kSend
  kGrow = 17,     // an all-gather inside entrain_comm_grow
};
absl::string_view NameOf(CallKind kind);  // "all_reduce"
// Returns the collective whose NameOf is `name`. Returns nullopt for send, recv, recv_any, split,
// create, grow and unknown names.
std::optional<CallKind> CollectiveFromName(absl::string_view name);
// Returns "barrier, broadcast, all_reduce, ...".
std::string CollectiveNames();
// Returns true if the call combines contributions.
bool Reduces(CallKind kind);
// Returns true if the rank Call::root has a role that the other ranks do not have.
bool HasRoot(CallKind kind);
// Returns true for calls between two ranks: send, recv, recv_any.
bool IsMessage(CallKind kind);
// Returns true if the data consists of one part per rank. In such a call, Call::count is the number
// of elements of one part. The parts may be uneven (PartCounts).
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
  // The C ABI has no constants for these values. A call gets them only through a reduction object.
  kPreMultipliedSum = 101,
  kWeightedMean = 102,
  kGta = 103,
};
constexpr int kBuiltinOps = 13;         // the operators before kCustom
absl::string_view NameOf(ReduceOp op);  // "sum"
bool IsBuiltin(ReduceOp op);
// Returns an error if `op` cannot reduce elements of this type. The error text contains the
// operator and the type. Bit operators take integers. minloc and maxloc take pairs; no other
// built-in operator takes pairs. A weighted mean and gta take floats. kCustom takes every type.
absl::Status CheckReduction(ReduceOp op, DType dtype);

// Describes how a call combines contributions.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  // kCustom only: the caller's function. It computes dst = dst ⊕ src over `count` elements. It
  // returns 0, or any other number if it failed.
  int32_t (*combine)(void* dst, const void* src, size_t count, int32_t dtype, void* user) = nullptr;
  void* user = nullptr;
  // kCustom: the number of threads that are inside `combine`. A thread still counts after its call
  // is over. May be null.
  std::shared_ptr<std::atomic<int32_t>> inside;
  // kCustom: the number that the caller gave to this function; must be equal on all ranks
  uint32_t signature = 0;
  bool commutative = true;
  // kPreMultipliedSum: the factor of this rank's contribution. A whole number if the elements are
  // integers.
  double factor = 1;
  std::shared_ptr<const Merging> merging;  // kWeightedMean, kGta; else null
  // State that is passed from one call with this reduction to the next (lib/comm/merge_state.h).
  // Not null if merging->Packs().
  std::shared_ptr<MergeState> merge_state;
};

// The arguments that must be equal on all ranks. Every message carries a descriptor. The receiver
// compares it byte for byte with the descriptor of its own call.
struct Descriptor {
  CallKind kind = CallKind::kBarrier;
  uint8_t dtype = 0;  // DType
  uint8_t op = 0;     // ReduceOp
  // The bits kInRankOrder, kUneven and kDevice, and a Determinism in the two bits from
  // kDeterminismShift.
  uint8_t flags = 0;
  // Stands for the arguments that have no field of their own: the rank of the root, the signature
  // of a custom reduction, a Merging, and uneven counts. If a call has only a root or only a
  // signature, this is that number. Otherwise it is a hash of all of them.
  uint32_t root = 0;
  // Call::count. If parts are uneven and not every rank knows their sum: 0.
  int64_t count = 0;
  static constexpr uint8_t kInRankOrder = 1, kUneven = 2, kDeterminismShift = 2, kDevice = 16;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};
static_assert(sizeof(Descriptor) == 16, "rides in every message");

// Returns "all_reduce sum of 1024 f32", "broadcast of 8 u8 from rank 2" or "barrier", for example.
std::string ToString(const Descriptor& descriptor);

// The inputs on which the bits of a reduction's result may depend.
enum class Determinism : uint8_t {
  kDefault = 0,    // the communicator's setting, or kAlgorithm if the communicator has none
  kAlgorithm = 1,  // the contributions, the ranks and the algorithm
  kRankOrder = 2,  // only the contributions, combined in rank order
};
// Returns "default", "algorithm" or "rank_order".
absl::string_view NameOf(Determinism determinism);
// Accepts "algorithm" and "rank_order". Returns INVALID_ARGUMENT for any other text.
absl::StatusOr<Determinism> ParseDeterminism(absl::string_view text);

struct CallOptions {
  Deadline deadline;        // absolute
  int64_t timeout_ns = 0;   // the time limit from which `deadline` follows; for error messages
  int64_t user_tag = -1;    // -1: no tag, calls match in program order; else 0..2^20-2
  bool background = false;  // a waiting thread sleeps at once instead of spinning
  Determinism determinism = Determinism::kDefault;  // must be equal on all ranks if Reduces(kind)
  // all buffers, on all ranks, are in device memory (lib/device/calls/device_runner.h)
  bool device = false;
  // The call starts after all work that was queued on `stream` before. Work that is queued on
  // `stream` later waits for this call.
  bool on_stream = false;
  void* stream = nullptr;  // null: the device's default stream
};

// The number of elements of each rank's part, for a call with uneven parts.
// - all_gather, reduce_scatter: `in` and `out` are equal. Each has the counts of all parts. All
//   ranks have the same counts.
// - gather, scatter: `in` and `out` are equal. On the root they have the counts of all parts. On
//   another rank all entries except its own are 0.
// - all_to_all: this rank sends in[r] elements to rank r and receives out[r] elements from rank r.
struct PartCounts {
  std::vector<int64_t> in, out;
};

// `in` and `out` may be the same memory. If HasParts(kind), `count` is the number of elements of
// one part. Otherwise `count` is the number of elements of the buffer. With uneven parts, `count`
// is the sum of all parts if every rank knows the sum, else 0.
struct Call {
  CallKind kind = CallKind::kBarrier;
  Reduction reduction;
  DType dtype = DType::kU8;
  BufferView in, out;
  int64_t count = 0;
  int root = 0;  // if HasRoot(kind): the root. send, recv: the peer. recv_any: -1
  // recv_any: a successful call stores the sender's rank here; may be null
  int32_t* source = nullptr;
  std::shared_ptr<const PartCounts> uneven;  // null: even parts
  CallOptions options;
  // Not null if the library made this call as a step of another call. `whole` is that other call,
  // which the caller made (lib/comm/packed_call.h).
  std::shared_ptr<const Call> whole;

  // Returns the call that the caller made: `whole`, or this call.
  const Call& named() const { return whole == nullptr ? *this : *whole; }
  // If all ranks pass matching arguments, all ranks get equal descriptors. For recv and recv_any
  // the kind is kSend, so that the descriptor equals that of the peer's send.
  Descriptor descriptor() const;
};

// The shape of a call without options. Two calls with equal keys differ only in their addresses.
struct CallKey {
  CallKind kind;
  DType dtype;
  ReduceOp op;
  int root;
  int64_t count;
  friend bool operator==(const CallKey&, const CallKey&) = default;
};

}  // namespace entrain
