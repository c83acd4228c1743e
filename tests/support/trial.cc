#include "tests/support/trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>

#include "gtest/gtest.h"

namespace entrain {
namespace {

constexpr int64_t kUnset = -7777;

BufferView View(std::vector<std::byte>& data) {
  return {data.data(), static_cast<int64_t>(data.size()), MemoryKind::kHost};
}

// Two operators of i64. The result of the first depends on the order of the ranks, the result of
// the second does not.
int32_t KeepFirst(void* /*dst*/, const void* /*src*/, size_t /*count*/, int32_t /*dtype*/, void*) {
  return 0;
}
int32_t AddUp(void* dst, const void* src, size_t count, int32_t /*dtype*/, void*) {
  auto* const sums = static_cast<int64_t*>(dst);
  for (size_t i = 0; i < count; ++i) {
    sums[i] += static_cast<const int64_t*>(src)[i];
  }
  return 0;
}

struct Operator {
  DType dtype;
  ReduceOp op;
  int32_t (*combine)(void*, const void*, size_t, int32_t, void*) = nullptr;
};
constexpr Operator kOperators[] = {
    {DType::kI64, ReduceOp::kSum},
    {DType::kI64, ReduceOp::kMax},
    {DType::kF32, ReduceOp::kSum},
    {DType::kF64, ReduceOp::kMin},
    {DType::kI32, ReduceOp::kProd},
    {DType::kF32, ReduceOp::kPreMultipliedSum},
    {DType::kI64, ReduceOp::kCustom, KeepFirst},
    {DType::kI16, ReduceOp::kBitXor},
    {DType::kF32, ReduceOp::kAvg},
    {DType::kI64, ReduceOp::kCustom, AddUp},
    {DType::kF64, ReduceOp::kSum},
    {DType::kI32, ReduceOp::kBitAnd},
    {DType::kF32, ReduceOp::kMax},
};

template <typename T>
std::vector<std::byte> StoredAs(const std::vector<int64_t>& values, int divisor) {
  std::vector<std::byte> stored(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T value = static_cast<T>(values[i]);
    if constexpr (std::is_floating_point_v<T>) {
      value /= static_cast<T>(divisor);
    }
    std::memcpy(&stored[i * sizeof(T)], &value, sizeof(T));
  }
  return stored;
}

}  // namespace

Trial::Trial(const TrialSpec& spec, int rank, int size) : spec_(spec), rank_(rank), size_(size) {
  spec_.uneven = spec.uneven && HasParts(spec.kind);
  call.kind = spec.kind;
  DrawOperator();
  if (spec.kind == CallKind::kSend) {
    takes_part_ = IsMessage();
    return;
  }
  call.root = HasRoot(spec.kind) ? spec.root : 0;
  call.count = spec.kind == CallKind::kBarrier ? 0 : spec.count;
  spec_.count = call.count;
  if (spec_.uneven) {
    CountParts();
  }
  std::vector<int64_t> values;
  AppendValues(rank, 0, InElements(), &values);
  in_ = Stored(values, 1);
  out_ = Stored(std::vector<int64_t>(static_cast<size_t>(OutElements()), kUnset), 1);
  const int64_t before = PartsOf(0, 0, rank) * SizeOf(call.dtype);
  const bool alike =
      in_.size() == out_.size() && (spec.kind != CallKind::kAllToAll || !spec_.uneven);
  if (spec.kind == CallKind::kBroadcast) {
    if (rank == call.root) {
      out_ = in_;
    }
    call.in = call.out = View(out_);
  } else if (spec.in_place && OwnPartIsIn()) {
    call.in = View(in_);
    call.out = {in_.data() + before, static_cast<int64_t>(out_.size()), MemoryKind::kHost};
  } else if (spec.in_place && OwnPartIsOut()) {
    std::copy(in_.begin(), in_.end(), out_.begin() + before);
    call.out = View(out_);
    call.in = {out_.data() + before, static_cast<int64_t>(in_.size()), MemoryKind::kHost};
  } else if (spec.in_place && alike) {
    out_ = in_;
    call.in = call.out = View(out_);
  } else {
    call.in = View(in_);
    call.out = View(out_);
  }
}

bool Trial::OwnPartIsIn() const {
  return spec_.kind == CallKind::kReduceScatter ||
         (spec_.kind == CallKind::kScatter && rank_ == call.root);
}
bool Trial::OwnPartIsOut() const {
  return spec_.kind == CallKind::kAllGather ||
         (spec_.kind == CallKind::kGather && rank_ == call.root);
}

void Trial::DrawOperator() {
  const Operator& drawn = kOperators[spec_.number % std::size(kOperators)];
  call.dtype = drawn.dtype;
  if (!Reduces(spec_.kind)) {
    return;
  }
  const bool scans = spec_.kind == CallKind::kScan || spec_.kind == CallKind::kExclusiveScan;
  call.reduction.op = scans && drawn.op == ReduceOp::kAvg ? ReduceOp::kSum : drawn.op;
  call.reduction.combine = drawn.combine;
  call.reduction.commutative = drawn.combine != KeepFirst;
  call.reduction.signature = drawn.combine == nullptr ? 0 : drawn.combine == AddUp ? 1 : 2;
  call.reduction.factor = drawn.op == ReduceOp::kPreMultipliedSum ? rank_ + 1 : 1;
}

bool Trial::IsMessage() {
  const int from = spec_.root, to = (spec_.root + 1) % size_;
  if (from == to || (rank_ != from && rank_ != to)) {
    return false;
  }
  const bool sends = rank_ == from;
  call.kind = sends ? CallKind::kSend : CallKind::kRecv;
  call.root = sends ? to : from;
  call.count = spec_.count;
  std::vector<int64_t> values;
  AppendValues(from, 0, spec_.count, &values);
  if (sends) {
    in_ = Stored(values, 1);
    call.in = View(in_);
  } else {
    out_ = Stored(std::vector<int64_t>(values.size(), kUnset), 1);
    call.out = View(out_);
  }
  return true;
}

std::vector<std::byte> Trial::Stored(const std::vector<int64_t>& values, int divisor) const {
  switch (call.dtype) {
    case DType::kI16:
      return StoredAs<int16_t>(values, divisor);
    case DType::kI32:
      return StoredAs<int32_t>(values, divisor);
    case DType::kF32:
      return StoredAs<float>(values, divisor);
    case DType::kF64:
      return StoredAs<double>(values, divisor);
    default:
      return StoredAs<int64_t>(values, divisor);
  }
}

int64_t Trial::PartOf(int from, int to) const {
  if (!spec_.uneven) {
    return spec_.count;
  }
  const int both = spec_.kind == CallKind::kAllToAll ? from * 5 + to * 3 : to;
  return (static_cast<int64_t>(spec_.number) + both * 7) % (spec_.count + 1);
}

int64_t Trial::PartsOf(int from, int first_to, int last_to) const {
  int64_t sum = 0;
  for (int to = first_to; to < last_to; ++to) {
    sum += PartOf(from, to);
  }
  return sum;
}

void Trial::CountParts() {
  PartCounts counts;
  const bool rooted = HasRoot(spec_.kind);
  for (int r = 0; r < size_; ++r) {
    const bool known = !rooted || rank_ == call.root || r == rank_;
    counts.in.push_back(known ? PartOf(rank_, r) : 0);
    counts.out.push_back(spec_.kind == CallKind::kAllToAll ? PartOf(r, rank_) : counts.in.back());
  }
  const bool all_know =
      spec_.kind == CallKind::kAllGather || spec_.kind == CallKind::kReduceScatter;
  call.count = all_know ? PartsOf(rank_, 0, size_) : 0;
  call.uneven = std::make_shared<const PartCounts>(std::move(counts));
}

int64_t Trial::InElements() const {
  switch (spec_.kind) {
    case CallKind::kReduceScatter:
    case CallKind::kAllToAll:
      return PartsOf(rank_, 0, size_);
    case CallKind::kScatter:
      return rank_ == call.root ? PartsOf(rank_, 0, size_) : 0;
    case CallKind::kAllGather:
    case CallKind::kGather:
      return PartOf(rank_, rank_);
    default:
      return spec_.count;
  }
}

int64_t Trial::OutElements() const {
  switch (spec_.kind) {
    case CallKind::kReduce:
      return rank_ == call.root ? spec_.count : 0;
    case CallKind::kReduceScatter:
      return PartOf(rank_, rank_);
    case CallKind::kScatter:
      return PartOf(call.root, rank_);
    case CallKind::kAllToAll: {
      int64_t sum = 0;
      for (int from = 0; from < size_; ++from) {
        sum += PartOf(from, rank_);
      }
      return sum;
    }
    case CallKind::kAllGather:
      return PartsOf(rank_, 0, size_);
    case CallKind::kGather:
      return rank_ == call.root ? PartsOf(rank_, 0, size_) : 0;
    default:
      return spec_.count;
  }
}

void Trial::AppendCombined(int ranks, int64_t first, int64_t count,
                           std::vector<int64_t>* to) const {
  const size_t begin = to->size();
  AppendValues(0, first, count, to);
  std::vector<int64_t> values;
  for (int r = 1; r < ranks; ++r) {
    values.clear();
    AppendValues(r, first, count, &values);
    const auto combine = [&](auto operation) {
      for (size_t i = 0; i < values.size(); ++i) {
        int64_t& result = (*to)[begin + i];
        result = operation(result, values[i]);
      }
    };
    const int64_t factor = call.reduction.op == ReduceOp::kPreMultipliedSum ? r + 1 : 1;
    switch (call.reduction.op) {
      case ReduceOp::kMax:
        combine([](int64_t a, int64_t b) { return std::max(a, b); });
        break;
      case ReduceOp::kMin:
        combine([](int64_t a, int64_t b) { return std::min(a, b); });
        break;
      case ReduceOp::kProd:  // low bits of a narrow type depend on low bits only
        combine([](int64_t a, int64_t b) {
          return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        });
        break;
      case ReduceOp::kBitAnd:
        combine([](int64_t a, int64_t b) { return a & b; });
        break;
      case ReduceOp::kBitXor:
        combine([](int64_t a, int64_t b) { return a ^ b; });
        break;
      case ReduceOp::kCustom:
        if (call.reduction.combine == AddUp) {
          combine([](int64_t a, int64_t b) { return a + b; });
        }
        break;
      default:
        combine([factor](int64_t a, int64_t b) { return a + factor * b; });
    }
  }
}

void Trial::AppendValues(int from, int64_t first, int64_t count, std::vector<int64_t>* to) const {
  constexpr int64_t kModulus = 1009, kLeast = -300;
  int64_t residue = (static_cast<int64_t>(spec_.number) * 131 + from * 17 + first) % kModulus;
  size_t at = to->size();
  to->resize(at + static_cast<size_t>(count));
  for (; at < to->size(); ++at) {
    (*to)[at] = residue + kLeast;
    residue = residue + 1 == kModulus ? 0 : residue + 1;
  }
}

std::vector<int64_t> Trial::Wanted() const {
  std::vector<int64_t> wanted;
  const auto combine = [&](int ranks, int64_t first, int64_t count) {
    AppendCombined(ranks, first, count, &wanted);
  };
  const bool at_root = rank_ == call.root;
  switch (spec_.kind) {
    case CallKind::kAllReduce:
      combine(size_, 0, spec_.count);
      break;
    case CallKind::kReduce:
      combine(size_, 0, at_root ? spec_.count : 0);
      break;
    case CallKind::kReduceScatter:
      combine(size_, PartsOf(rank_, 0, rank_), PartOf(rank_, rank_));
      break;
    case CallKind::kScan:
      combine(rank_ + 1, 0, spec_.count);
      break;
    case CallKind::kExclusiveScan:
      if (rank_ == 0) {  // the output keeps its old content
        wanted.assign(static_cast<size_t>(spec_.count), kUnset);
        if (spec_.in_place) {
          wanted.clear();
          AppendValues(0, 0, spec_.count, &wanted);
        }
      } else {
        combine(rank_, 0, spec_.count);
      }
      break;
    case CallKind::kSend:
      AppendValues(spec_.root, 0, call.kind == CallKind::kRecv ? spec_.count : 0, &wanted);
      break;
    case CallKind::kBroadcast:
      AppendValues(spec_.root, 0, spec_.count, &wanted);
      break;
    case CallKind::kScatter:
      AppendValues(call.root, PartsOf(call.root, 0, rank_), PartOf(call.root, rank_), &wanted);
      break;
    case CallKind::kAllToAll:
      for (int from = 0; from < size_; ++from) {
        AppendValues(from, PartsOf(from, 0, rank_), PartOf(from, rank_), &wanted);
      }
      break;
    case CallKind::kAllGather:
    case CallKind::kGather:
      for (int from = 0; from < size_ && (at_root || spec_.kind == CallKind::kAllGather); ++from) {
        AppendValues(from, 0, PartOf(from, from), &wanted);
      }
      break;
    default:
      break;
  }
  return wanted;
}

void Trial::Check(float near) const {
  const bool averages = Reduces(spec_.kind) && call.reduction.op == ReduceOp::kAvg;
  const std::vector<std::byte> wanted = Stored(Wanted(), averages ? size_ : 1);
  const auto width = static_cast<size_t>(SizeOf(call.dtype));
  const auto* const out = static_cast<const std::byte*>(call.out.data);
  ASSERT_EQ(wanted.size(), static_cast<size_t>(call.out.bytes));
  if (wanted.empty() || std::memcmp(out, wanted.data(), wanted.size()) == 0) {
    return;
  }
  const auto strays = [&](size_t at) {  // averages have type f32
    float got, want;
    std::memcpy(&got, out + at, sizeof(got));
    std::memcpy(&want, &wanted[at], sizeof(want));
    return std::abs(got - want);
  };
  for (size_t at = 0; at < wanted.size(); at += width) {
    ASSERT_TRUE(std::memcmp(out + at, &wanted[at], width) == 0 || (averages && strays(at) < near))
        << NameOf(spec_.kind) << " " << NameOf(call.reduction.op) << " " << spec_.number << " of "
        << spec_.count << (spec_.uneven ? " at most " : " ") << NameOf(call.dtype) << ", rank "
        << rank_ << " of " << size_ << ", element " << at / width;
  }
}

}  // namespace entrain
