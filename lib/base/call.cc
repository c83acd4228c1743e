#include "lib/base/call.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/merging.h"

namespace entrain {
namespace {

constexpr CallKind kCollectives[] = {
    CallKind::kBarrier,       CallKind::kBroadcast, CallKind::kReduce,       CallKind::kAllReduce,
    CallKind::kReduceScatter, CallKind::kAllGather, CallKind::kGather,       CallKind::kScatter,
    CallKind::kAllToAll,      CallKind::kScan,      CallKind::kExclusiveScan};

// Adds the bytes of `next` to an FNV-1a hash. All processes compute the same hash from the same
// numbers.
uint32_t Mix(uint32_t hash, uint32_t next) {
  for (int i = 0; i < 4; ++i) {
    hash = (hash ^ (next >> (8 * i) & 0xff)) * 16777619u;
  }
  return hash;
}

uint32_t MixLong(uint32_t hash, uint64_t next) {
  return Mix(Mix(hash, static_cast<uint32_t>(next)), static_cast<uint32_t>(next >> 32));
}

uint32_t Mix(uint32_t hash, const Merging& merging) {
  for (const double weight : merging.weights) {
    hash = MixLong(hash, std::bit_cast<uint64_t>(weight));
  }
  hash = Mix(hash, static_cast<uint32_t>(merging.consensus) << 1 | (merging.normalize ? 1 : 0));
  if (!merging.Packs()) {
    return hash;
  }
  hash = MixLong(MixLong(hash, merging.seed), std::bit_cast<uint64_t>(merging.density));
  hash = MixLong(hash, std::bit_cast<uint64_t>(merging.error_decay));
  for (const uint32_t next :
       {static_cast<uint32_t>(merging.sparsification), static_cast<uint32_t>(merging.wire_format),
        static_cast<uint32_t>(merging.wire_block), static_cast<uint32_t>(merging.wire_rounding),
        static_cast<uint32_t>(merging.error_feedback),
        static_cast<uint32_t>(merging.sparsify_chunk)}) {
    hash = Mix(hash, next);
  }
  return hash;
}

}  // namespace

absl::string_view NameOf(CallKind kind) {
  switch (kind) {
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kSend:
      return "send";
    case CallKind::kRecv:
      return "recv";
    case CallKind::kSplit:
      return "split";
    case CallKind::kCreate:
      return "create";
    case CallKind::kReduce:
      return "reduce";
    case CallKind::kGather:
      return "gather";
    case CallKind::kScatter:
      return "scatter";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kScan:
      return "scan";
    case CallKind::kExclusiveScan:
      return "exclusive_scan";
    case CallKind::kRecvAny:
      return "recv_any";
    case CallKind::kGrow:
      return "grow";
  }
  return "unknown call";
}

std::optional<CallKind> CollectiveFromName(absl::string_view name) {
  for (const CallKind kind : kCollectives) {
    if (NameOf(kind) == name) {
      return kind;
    }
  }
  return std::nullopt;
}

std::string CollectiveNames() {
  return absl::StrJoin(kCollectives, ", ", [](std::string* text, CallKind kind) {
    absl::StrAppend(text, NameOf(kind));
  });
}

bool Reduces(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
    case CallKind::kReduceScatter:
    case CallKind::kReduce:
    case CallKind::kScan:
    case CallKind::kExclusiveScan:
      return true;
    default:
      return false;
  }
}

bool HasRoot(CallKind kind) {
  return kind == CallKind::kBroadcast || kind == CallKind::kReduce || kind == CallKind::kGather ||
         kind == CallKind::kScatter;
}

bool IsMessage(CallKind kind) {
  return kind == CallKind::kSend || kind == CallKind::kRecv || kind == CallKind::kRecvAny;
}

bool HasParts(CallKind kind) {
  switch (kind) {
    case CallKind::kReduceScatter:
    case CallKind::kAllGather:
    case CallKind::kGather:
    case CallKind::kScatter:
    case CallKind::kAllToAll:
      return true;
    default:
      return false;
  }
}

absl::string_view NameOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kProd:
      return "prod";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kBitAnd:
      return "band";
    case ReduceOp::kBitOr:
      return "bor";
    case ReduceOp::kBitXor:
      return "bxor";
    case ReduceOp::kLogicalAnd:
      return "land";
    case ReduceOp::kLogicalOr:
      return "lor";
    case ReduceOp::kLogicalXor:
      return "lxor";
    case ReduceOp::kMinLoc:
      return "minloc";
    case ReduceOp::kMaxLoc:
      return "maxloc";
    case ReduceOp::kCustom:
      return "user reduction";
    case ReduceOp::kPreMultipliedSum:
      return "pre-multiplied sum";
    case ReduceOp::kWeightedMean:
      return "weighted mean";
    case ReduceOp::kGta:
      return "gta";
  }
  return "unknown operator";
}

absl::string_view NameOf(Determinism determinism) {
  switch (determinism) {
    case Determinism::kDefault:
      return "default";
    case Determinism::kAlgorithm:
      return "algorithm";
    case Determinism::kRankOrder:
      return "rank_order";
  }
  return "unknown";
}

absl::StatusOr<Determinism> ParseDeterminism(absl::string_view text) {
  for (const Determinism one : {Determinism::kAlgorithm, Determinism::kRankOrder}) {
    if (text == NameOf(one)) {
      return one;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not algorithm or rank_order"));
}

bool IsBuiltin(ReduceOp op) {
  return static_cast<int32_t>(op) >= 0 && static_cast<int32_t>(op) < kBuiltinOps;
}

absl::Status CheckReduction(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kCustom) {
    return absl::OkStatus();
  }
  const bool locates = op == ReduceOp::kMinLoc || op == ReduceOp::kMaxLoc;
  if (locates && !IsPair(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("op ", NameOf(op), " reduces pairs of value and location (f32_i32, f64_i64, ",
                     "i32_i32, i64_i64), not dtype ", NameOf(dtype)));
  }
  if (!locates && IsPair(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype ", NameOf(dtype), " is reduced by minloc and maxloc only, not op ", NameOf(op)));
  }
  const bool of_bits = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  if (of_bits && !IsInteger(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("op ", NameOf(op), " reduces integers only, not dtype ", NameOf(dtype)));
  }
  if ((op == ReduceOp::kWeightedMean || op == ReduceOp::kGta) && !IsFloat(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("op ", NameOf(op), " reduces floats only, not dtype ", NameOf(dtype)));
  }
  return absl::OkStatus();
}

std::string ToString(const Descriptor& d) {
  const bool uneven = (d.flags & Descriptor::kUneven) != 0;
  std::string text(d.kind == CallKind::kSend ? "send/recv" : NameOf(d.kind));
  bool mixed = uneven && d.count > 0;  // true: d.root is a hash, not a rank
  if (Reduces(d.kind)) {
    absl::StrAppend(&text, " ", NameOf(static_cast<ReduceOp>(d.op)));
    if (static_cast<ReduceOp>(d.op) == ReduceOp::kCustom) {
      mixed |= HasRoot(d.kind);
      if (!mixed) {
        absl::StrAppend(&text, " ", d.root);
      }
      absl::StrAppend(&text, (d.flags & Descriptor::kInRankOrder) != 0 ? " in rank order" : "");
    }
    mixed |= static_cast<ReduceOp>(d.op) == ReduceOp::kWeightedMean ||
             static_cast<ReduceOp>(d.op) == ReduceOp::kGta;
  }
  const auto determinism = static_cast<Determinism>((d.flags >> Descriptor::kDeterminismShift) & 3);
  if (uneven && d.count == 0) {
    absl::StrAppend(&text, " of uneven parts of ", NameOf(static_cast<DType>(d.dtype)));
  } else if (d.kind != CallKind::kBarrier) {
    absl::StrAppend(&text, " of ", d.count, " ", NameOf(static_cast<DType>(d.dtype)),
                    uneven ? " in uneven parts" : "");
  }
  if (mixed) {
    absl::StrAppend(&text, " (the rest in a number: ", absl::Hex(d.root, absl::kZeroPad8), ")");
  } else if (HasRoot(d.kind)) {
    absl::StrAppend(&text,
                    d.kind == CallKind::kBroadcast || d.kind == CallKind::kScatter ? " from rank "
                                                                                   : " to rank ",
                    d.root);
  }
  if (determinism != Determinism::kDefault) {
    absl::StrAppend(&text, ", determinism ", NameOf(determinism));
  }
  if ((d.flags & Descriptor::kDevice) != 0) {
    absl::StrAppend(&text, " in device memory");
  }
  return text;
}

Descriptor Call::descriptor() const {
  if (whole != nullptr) {
    return whole->descriptor();
  }
  Descriptor d;
  d.kind = IsMessage(kind) ? CallKind::kSend : kind;
  d.count = count;
  if (kind != CallKind::kBarrier) {
    d.dtype = static_cast<uint8_t>(dtype);
  }
  d.root = HasRoot(kind) ? static_cast<uint32_t>(root) : 0;
  if (Reduces(kind)) {
    d.op = static_cast<uint8_t>(reduction.op);
    d.flags = static_cast<uint8_t>(static_cast<uint8_t>(options.determinism)
                                   << Descriptor::kDeterminismShift);
    if (reduction.op == ReduceOp::kCustom) {
      d.root = HasRoot(kind) ? Mix(d.root, reduction.signature) : reduction.signature;
      d.flags |= reduction.commutative ? 0 : Descriptor::kInRankOrder;
    } else if (reduction.merging != nullptr) {
      d.root = Mix(d.root, *reduction.merging);
    }
  }
  d.flags |= options.device ? Descriptor::kDevice : 0;
  if (uneven != nullptr) {
    d.flags |= Descriptor::kUneven;
    if (kind == CallKind::kAllGather || kind == CallKind::kReduceScatter) {
      for (const int64_t one : uneven->in) {
        d.root = MixLong(d.root, static_cast<uint64_t>(one));
      }
    }
  }
  return d;
}

}  // namespace entrain
