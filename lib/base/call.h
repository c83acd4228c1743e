// One collective as asked for, and its descriptor: the 16 bytes that ride in every message, so that
// ranks which called different things find out instead of hanging or mixing data.
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
  kSplit = 8,   // the all-gather behind entrain_comm_split
  kCreate = 9,  // the one by which ranks that meet prove that all reach all
  kReduce = 10,
  kGather = 11,
  kScatter = 12,
  kAllToAll = 13,
  kScan = 14,
  kExclusiveScan = 15,
  kRecvAny = 16,  // from whichever peer's message comes; matches kSend
};
absl::string_view NameOf(CallKind kind);  // "all_reduce"
// Finds the collective of which NameOf gives this name. Send, recv, recv_any, split and create are none.
std::optional<CallKind> CollectiveFromName(absl::string_view name);
// "barrier, broadcast, all_reduce, ..."
std::string CollectiveNames();
// Contributions are combined.
bool Reduces(CallKind kind);
// One rank is unlike the others: Call::root says which.
bool HasRoot(CallKind kind);
// Between two ranks: send, recv, recv_any.
bool IsMessage(CallKind kind);
// Every rank has a part of its own: Call::count is that part's elements, and parts may be uneven.
bool HasParts(CallKind kind);

// Values are the C ABI's (types.h).
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
  // Made as objects only; the numbers are the library's own.
  kPreMultipliedSum = 101,
  kWeightedMean = 102,
  kGta = 103,
};
constexpr int kBuiltinOps = 13;         // those before kCustom
absl::string_view NameOf(ReduceOp op);  // "sum"
bool IsBuiltin(ReduceOp op);
// Why `op` cannot reduce elements of this type, naming both: bit operators take integers, minloc
// and maxloc take pairs, and nothing else takes pairs; a weighted mean and gta take floats. kCustom takes
// every type.
absl::Status CheckReduction(ReduceOp op, DType dtype);

// How contributions are combined.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  // The caller's own function: dst = dst ⊕ src over `count` elements; not 0: it failed. kCustom only.
  int32_t (*combine)(void* dst, const void* src, size_t count, int32_t dtype, void* user) = nullptr;
  void* user = nullptr;
  // kCustom: how many threads are in `combine`, for calls that are over too; null: nobody asks.
  std::shared_ptr<std::atomic<int32_t>> inside;
  uint32_t signature =
      0;  // kCustom: the caller's number for this function; must agree on all ranks
  bool commutative = true;
  double factor = 1;  // kPreMultipliedSum: of this rank's contribution; whole for integers
  std::shared_ptr<const Merging> merging;  // kWeightedMean, kGta; else null
  // What calls with this reduction remember of each other (lib/comm/merge_state.h); not null where merging->Packs().
  std::shared_ptr<MergeState> merge_state;
};

// What all ranks must agree on. Compared byte for byte by receivers; travels in every message.
struct Descriptor {
  CallKind kind = CallKind::kBarrier;
  uint8_t dtype = 0;  // DType
  uint8_t op = 0;     // ReduceOp
  // kInRankOrder, kUneven, two bits of Determinism above kDeterminismShift, kDevice
  uint8_t flags = 0;
  // The root, or a number that stands for what else must agree: a custom reduction's signature, uneven counts; mixed
  // where there are several.
  uint32_t root = 0;
  int64_t count = 0;  // as the caller gave it; uneven: the sum where all know it, else 0
  static constexpr uint8_t kInRankOrder = 1, kUneven = 2, kDeterminismShift = 2, kDevice = 16;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};
static_assert(sizeof(Descriptor) == 16, "rides in every message");

// "all_reduce sum of 1024 f32", "broadcast of 8 u8 from rank 2", "barrier".
std::string ToString(const Descriptor& descriptor);

// What the bits of a reduction may depend on.
enum class Determinism : uint8_t {
  kDefault = 0,    // as the communicator was made; there: kAlgorithm
  kAlgorithm = 1,  // contributions, ranks and algorithm
  kRankOrder = 2,  // contributions in rank order, and nothing else
};
// "default", "algorithm" or "rank_order".
absl::string_view NameOf(Determinism determinism);
// Of the last two; INVALID_ARGUMENT with the value otherwise.
absl::StatusOr<Determinism> ParseDeterminism(absl::string_view text);

struct CallOptions {
  Deadline deadline;        // absolute
  int64_t timeout_ns = 0;   // what the deadline was made from, for messages
  int64_t user_tag = -1;    // -1: untagged, in program order; else 0..2^20-2
  bool background = false;  // the waiter sleeps at once instead of spinning
  Determinism determinism = Determinism::kDefault;  // must agree on all ranks, where Reduces(kind)
  bool device =
      false;  // the buffers are in device memory, on all ranks (lib/device/calls/device_runner.h)
  bool on_stream = false;  // starts after what is on `stream`, and what follows there waits for it
  void* stream = nullptr;  // null: the device's default stream
};

// Elements by rank where parts are uneven. all_gather, reduce_scatter: of every part, the same on all ranks, in both.
// gather, scatter: likewise on the root; elsewhere only the own entry is not 0. all_to_all: in[r] go to rank r, out[r]
// come from it.
struct PartCounts {
  std::vector<int64_t> in, out;
};

// `in` and `out` may be the same memory. count: where HasParts(kind), the elements of one part; otherwise those of the
// buffer. Uneven: the sum of all parts where all know it, else 0.
struct Call {
  CallKind kind = CallKind::kBarrier;
  Reduction reduction;
  DType dtype = DType::kU8;
  BufferView in, out;
  int64_t count = 0;
  int root = 0;  // where HasRoot(kind). send, recv: the peer. recv_any: -1
  int32_t* source =
      nullptr;  // recv_any, when it has succeeded: the sender goes there; null: nowhere
  std::shared_ptr<const PartCounts> uneven;  // null: even parts
  CallOptions options;
  std::shared_ptr<const Call>
      whole;  // not null: this is a part of it, made by the library (lib/comm/packed_call.h)

  // The call as its caller knows it.
  const Call& named() const { return whole == nullptr ? *this : *whole; }
  // The same on every rank when the ranks agree. send, recv and recv_any give kSend, so that a pair
  // matches.
  Descriptor descriptor() const;
};

}  // namespace entrain
