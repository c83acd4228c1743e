#include "tools/perf/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace entrain::perf {
namespace {

constexpr int64_t kProductPeriod = 4;
constexpr int64_t kLargestPeriod = 13;
constexpr int64_t kChunk = 4096;
// A pair's value and location as one number: value * kLocations + location.
constexpr int64_t kLocations = 4096;

// Returns the largest number up to which sums are exact in the type.
int64_t LargestSum(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return 16;
    case DType::kF8E5M2:
      return 8;
    default:
      return 120;  // fits i8 too
  }
}

int64_t PeriodFor(const Case& measured) {
  if (Reduces(measured.collective) && measured.op == ReduceOp::kProd) {
    return kProductPeriod;
  }
  return std::clamp<int64_t>(LargestSum(measured.dtype) / measured.ranks + 1, 1, kLargestPeriod);
}

// Returns the relative error that an average may have: the rounding of one division.
double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-15;
    case DType::kF32:
      return 1.2e-7;
    case DType::kBF16:
      return 1.0 / 128;
    case DType::kF8E4M3:
      return 1.0 / 8;
    case DType::kF8E5M2:
      return 1.0 / 4;
    default:
      return 1.0 / 1024;
  }
}

template <typename T>
void StoreAs(std::byte* at, T typed) {
  std::memcpy(at, &typed, sizeof(T));
}

template <typename T, typename L>
void StorePair(std::byte* at, double both) {
  const auto whole = static_cast<int64_t>(both);
  StoreAs<T>(at, static_cast<T>(whole / kLocations));
  StoreAs<L>(at + sizeof(T), static_cast<L>(whole % kLocations));
}

// Returns the pair that minloc or maxloc selects. `a` and `b` each combine a value and a location.
double Located(ReduceOp op, double a, double b) {
  const double a_value = std::floor(a / kLocations), b_value = std::floor(b / kLocations);
  if (a_value == b_value) {
    return std::min(a, b);
  }
  return (a_value < b_value) == (op == ReduceOp::kMinLoc) ? a : b;
}

double Combined(ReduceOp op, double a, double b) {
  const auto a_bits = static_cast<int64_t>(a), b_bits = static_cast<int64_t>(b);
  switch (op) {
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBitAnd:
      return static_cast<double>(a_bits & b_bits);
    case ReduceOp::kBitOr:
      return static_cast<double>(a_bits | b_bits);
    case ReduceOp::kBitXor:
      return static_cast<double>(a_bits ^ b_bits);
    case ReduceOp::kLogicalAnd:
      return a != 0 && b != 0 ? 1 : 0;
    case ReduceOp::kLogicalOr:
      return a != 0 || b != 0 ? 1 : 0;
    case ReduceOp::kLogicalXor:
      return (a != 0) != (b != 0) ? 1 : 0;
    case ReduceOp::kMinLoc:
    case ReduceOp::kMaxLoc:
      return Located(op, a, b);
    default:
      return a + b;
  }
}

}  // namespace

Pattern::Pattern(const Case& measured)
    : case_(measured),
      width_(SizeOf(measured.dtype)),
      period_(PeriodFor(measured)),
      chunk_(kChunk / period_ * period_) {}

double Pattern::Contribution(int rank, int64_t i) const {
  if (Reduces(case_.collective) && case_.op == ReduceOp::kProd) {
    // One rank in four has a 2, so products are powers of two, and in range in every type.
    return (i + rank) % kProductPeriod == 0 ? 2 : 1;
  }
  const auto value = static_cast<double>((i * 7 + rank * 3) % period_);
  return IsPair(case_.dtype) ? value * kLocations + rank : value;
}

double Pattern::Reduced(int64_t i, int ranks) const {
  double result = Contribution(0, i);
  for (int r = 1; r < ranks; ++r) {
    result = Combined(case_.op, result, Contribution(r, i));
  }
  if (case_.op == ReduceOp::kAvg) {
    result /= ranks;
    return IsFloat(case_.dtype) ? result : std::trunc(result);
  }
  return result;
}

void Pattern::Store(std::byte* at, double value) const {
  const auto single = static_cast<float>(value);
  switch (case_.dtype) {
    case DType::kF64:
      return StoreAs(at, value);
    case DType::kF32:
      return StoreAs(at, single);
    case DType::kBF16:
      return StoreAs(at, FloatToBF16(single));
    case DType::kF16:
      return StoreAs(at, FloatToF16(single));
    case DType::kF8E4M3:
      return StoreAs(at, FloatToF8E4M3(single));
    case DType::kF8E5M2:
      return StoreAs(at, FloatToF8E5M2(single));
    case DType::kF32I32:
      return StorePair<float, int32_t>(at, value);
    case DType::kF64I64:
      return StorePair<double, int64_t>(at, value);
    case DType::kI32I32:
      return StorePair<int32_t, int32_t>(at, value);
    case DType::kI64I64:
      return StorePair<int64_t, int64_t>(at, value);
    default:
      break;
  }
  // Only products become large. They are powers of two, so above 64 bits the low bits are all zero.
  const auto integer = value < 0x1p63 ? static_cast<int64_t>(value) : 0;
  std::memcpy(at, &integer, static_cast<size_t>(width_));
}

double Pattern::Load(const std::byte* at) const {
  uint8_t byte = 0;
  uint16_t half = 0;
  float single = 0;
  double result = 0;
  switch (case_.dtype) {
    case DType::kF64:
      std::memcpy(&result, at, sizeof(result));
      return result;
    case DType::kF32:
      std::memcpy(&single, at, sizeof(single));
      return single;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      std::memcpy(&byte, at, sizeof(byte));
      return case_.dtype == DType::kF8E4M3 ? F8E4M3ToFloat(byte) : F8E5M2ToFloat(byte);
    default:
      std::memcpy(&half, at, sizeof(half));
      return case_.dtype == DType::kBF16 ? BF16ToFloat(half) : F16ToFloat(half);
  }
}

bool Pattern::Close(const std::byte* got, const std::byte* want) const {
  if (std::memcmp(got, want, static_cast<size_t>(width_)) == 0) {
    return true;
  }
  const bool rounded =
      Reduces(case_.collective) && case_.op == ReduceOp::kAvg && IsFloat(case_.dtype);
  if (!rounded) {
    return false;
  }
  const double expected = Load(want);
  return std::abs(Load(got) - expected) <= Tolerance(case_.dtype) * std::abs(expected);
}

template <typename Value>
std::vector<std::byte> Pattern::Block(Value value) const {
  std::vector<std::byte> block(static_cast<size_t>((chunk_ + period_) * width_));
  for (int64_t i = 0; i < chunk_ + period_; ++i) {
    Store(block.data() + i * width_, value(i % period_));
  }
  return block;
}

void Pattern::Copy(std::byte* out, int64_t count, const std::vector<std::byte>& block) const {
  for (int64_t i = 0; i < count; i += chunk_) {
    std::memcpy(out + i * width_, block.data(),
                static_cast<size_t>(std::min(chunk_, count - i) * width_));
  }
}

int64_t Pattern::Compare(const std::byte* out, int64_t count, int64_t first,
                         const std::vector<std::byte>& block) const {
  const std::byte* const want = block.data() + first % period_ * width_;
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; i += chunk_) {
    const int64_t elements = std::min(chunk_, count - i);
    const std::byte* const got = out + i * width_;
    if (std::memcmp(got, want, static_cast<size_t>(elements * width_)) == 0) {
      continue;
    }
    for (int64_t k = 0; k < elements; ++k) {
      wrong += Close(got + k * width_, want + k * width_) ? 0 : 1;
    }
  }
  return wrong;
}

void Pattern::FillInput(int rank, void* in) const {
  Copy(static_cast<std::byte*>(in), case_.in_count(),
       Block([&](int64_t i) { return Contribution(rank, i); }));
}

void Pattern::Spoil(void* out, int64_t bytes) {
  // In every type this pattern is larger than any result.
  std::memset(out, 0x7f, static_cast<size_t>(bytes));
}

int64_t Pattern::CountWrong(int rank, const void* out) const {
  const auto* const got = static_cast<const std::byte*>(out);
  const auto of_rank = [&](int r) {
    return Block([&, r](int64_t i) { return Contribution(r, i); });
  };
  const bool only_root =
      case_.collective == CallKind::kReduce || case_.collective == CallKind::kGather;
  if ((only_root && rank != case_.root) ||
      (case_.collective == CallKind::kExclusiveScan && rank == 0)) {
    return 0;  // this rank gets nothing
  }
  switch (case_.collective) {
    case CallKind::kAllReduce:
    case CallKind::kReduceScatter:
    case CallKind::kReduce:
    case CallKind::kScan:
    case CallKind::kExclusiveScan: {
      const bool prefix =
          case_.collective == CallKind::kScan || case_.collective == CallKind::kExclusiveScan;
      const int ranks = !prefix                               ? case_.ranks
                        : case_.collective == CallKind::kScan ? rank + 1
                                                              : rank;
      const int64_t first = case_.collective == CallKind::kReduceScatter ? rank * case_.count : 0;
      return Compare(got, case_.count, first, Block([&](int64_t i) { return Reduced(i, ranks); }));
    }
    case CallKind::kAllGather:
    case CallKind::kGather:
    case CallKind::kAllToAll: {
      const int64_t first = case_.collective == CallKind::kAllToAll ? rank * case_.count : 0;
      int64_t wrong = 0;
      for (int r = 0; r < case_.ranks; ++r) {
        wrong += Compare(got + r * case_.count * width_, case_.count, first, of_rank(r));
      }
      return wrong;
    }
    case CallKind::kScatter:
      return Compare(got, case_.count, rank * case_.count, of_rank(case_.root));
    case CallKind::kBroadcast:
      return Compare(got, case_.count, 0, of_rank(case_.root));
    case CallKind::kSend: {
      const int peer = rank ^ 1;
      return peer < case_.ranks ? Compare(got, case_.count, 0, of_rank(peer)) : 0;
    }
    default:
      return 0;  // a barrier moves nothing
  }
}

}  // namespace entrain::perf
