#include "tests/support/trial.h"

#include <algorithm>
#include <memory>

#include "gtest/gtest.h"

namespace entrain {
namespace {

constexpr int64_t kUnset = -7777;

int64_t Value(uint32_t trial, int rank, int64_t i) {
  return (static_cast<int64_t>(trial) * 131 + rank * 17 + i) % 1009 - 300;
}

BufferView View(std::vector<int64_t>& data, int64_t first = 0) {
  return {data.data() + first,
          static_cast<int64_t>((data.size() - static_cast<size_t>(first)) * sizeof(int64_t)),
          MemoryKind::kHost};
}

}  // namespace

Trial::Trial(const TrialSpec& spec, int rank, int size) : spec_(spec), rank_(rank), size_(size) {
  spec_.uneven = spec.uneven && HasParts(spec.kind);
  call.kind = spec.kind;
  call.dtype = DType::kI64;
  call.reduction.op = spec.number % 3 == 0 ? ReduceOp::kMax : ReduceOp::kSum;
  call.root = HasRoot(spec.kind) ? spec.root : 0;
  call.count = spec.kind == CallKind::kBarrier ? 0 : spec.count;
  spec_.count = call.count;
  if (spec_.uneven) {
    CountParts();
  }
  in_.resize(static_cast<size_t>(InElements()));
  for (size_t i = 0; i < in_.size(); ++i) {
    in_[i] = Value(spec.number, rank, static_cast<int64_t>(i));
  }
  out_.assign(static_cast<size_t>(OutElements()), kUnset);
  const bool alike =
      in_.size() == out_.size() && (spec.kind != CallKind::kAllToAll || !spec_.uneven);
  if (spec.kind == CallKind::kBroadcast) {
    if (rank == call.root) {
      out_ = in_;
    }
    call.in = call.out = View(out_);
  } else if (spec.in_place && alike) {
    out_ = in_;
    call.in = call.out = View(out_);
  } else if (spec.in_place && spec.kind == CallKind::kAllGather) {
    const int64_t before = PartsOf(0, 0, rank);
    std::copy(in_.begin(), in_.end(), out_.begin() + before);
    call.out = View(out_);
    call.in = {out_.data() + before, static_cast<int64_t>(in_.size()) * 8, MemoryKind::kHost};
  } else {
    call.in = View(in_);
    call.out = View(out_);
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
  return static_cast<int64_t>(Wanted().size());
}

int64_t Trial::Combined(int ranks, int64_t i) const {
  int64_t result = Value(spec_.number, 0, i);
  for (int r = 1; r < ranks; ++r) {
    const int64_t value = Value(spec_.number, r, i);
    result = call.reduction.op == ReduceOp::kMax ? std::max(result, value) : result + value;
  }
  return result;
}

void Trial::AppendValues(int from, int64_t first, int64_t count, std::vector<int64_t>* to) const {
  for (int64_t i = first; i < first + count; ++i) {
    to->push_back(Value(spec_.number, from, i));
  }
}

std::vector<int64_t> Trial::Wanted() const {
  std::vector<int64_t> wanted;
  const auto combine = [&](int ranks, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      wanted.push_back(Combined(ranks, i));
    }
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
      if (rank_ == 0) {  // stays as it is
        wanted.assign(static_cast<size_t>(spec_.count), kUnset);
        if (spec_.in_place) {
          wanted.clear();
          AppendValues(0, 0, spec_.count, &wanted);
        }
      } else {
        combine(rank_, 0, spec_.count);
      }
      break;
    case CallKind::kBroadcast:
      AppendValues(call.root, 0, spec_.count, &wanted);
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

void Trial::Check() const {
  const std::vector<int64_t> wanted = Wanted();
  for (size_t i = 0; i < out_.size(); ++i) {
    ASSERT_EQ(out_[i], wanted[i]) << NameOf(spec_.kind) << " " << spec_.number << " of "
                                  << spec_.count << (spec_.uneven ? " at most" : "") << ", rank "
                                  << rank_ << " of " << size_ << ", element " << i;
  }
}

}  // namespace entrain
