#include "lib/comm/packed_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/comm/merge_state.h"
#include "lib/kernels/merge.h"

namespace entrain {
namespace {

size_t At(int index) {
  return static_cast<size_t>(index);
}

int64_t SumOf(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

BufferView View(const void* data, int64_t bytes) {
  return {const_cast<void*>(data), bytes, MemoryKind::kHost};
}
BufferView View(const std::vector<int64_t>& values) {
  return View(values.data(), static_cast<int64_t>(values.size() * sizeof(int64_t)));
}

Packing PackingOf(const Call& call) {
  const Merging& merging = *call.reduction.merging;
  return {call.dtype, merging.wire_format,
          !IsScaled(merging.wire_format) ? 0
          : merging.wire_block == 0      ? kWireBlock
                                         : int64_t{merging.wire_block},
          merging.wire_rounding};
}

// Returns the wire format of results. A result is never sent as kInt2, for two reasons. A result
// may contain zeros, and kInt2 cannot express zero. And error feedback does not correct the
// rounding of results.
Packing ResultPackingOf(const Call& call) {
  Packing packing = PackingOf(call);
  if (packing.format == WireFormat::kInt2) {
    packing.format = WireFormat::kBF16;
    packing.block = 0;
  }
  return packing;
}

// Returns the slice that each rank owns.
Layout SlicesOf(const Call& call, int rank, int size) {
  const Spec spec{call.kind, rank, size};
  return call.uneven == nullptr ? UniformLayout(spec, call.count)
                                : UnevenLayout(spec, call.uneven->in);
}

absl::Status CheckElements(const Call& call, int64_t elements) {
  const Merging& merging = *call.reduction.merging;
  if (call.kind != CallKind::kAllReduce && call.kind != CallKind::kReduceScatter) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sparsified or encoded reduction is for all_reduce and reduce_scatter, not ",
                     NameOf(call.kind)));
  }
  if ((merging.wire_format != WireFormat::kFull || merging.error_feedback) &&
      call.dtype != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a wire_format or error_feedback is for f32 elements, not dtype ", NameOf(call.dtype)));
  }
  if (merging.sparsification == Sparsification::kMagnitude && elements > 0 &&
      merging.Kept(elements) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("density ", merging.density, " of ", elements, " elements keeps none"));
  }
  return absl::OkStatus();
}

// The purposes of random numbers. Each purpose has its own sequence of random numbers (DrawsFor).
enum : uint64_t { kMask = 1, kRounding = 2, kResultRounding = 3 };

}  // namespace

// ---- The thread that starts the call

PackedCall::PackedCall(const Parts& parts, const Call& call, int64_t now_ns)
    : Work(&parts.engine),
      with_(parts),
      call_(std::make_shared<const Call>(call)),
      merging_(*call_->reduction.merging),
      kernels_(BestKernels()),
      rank_(parts.config.rank),
      size_(static_cast<int>(parts.config.members.size())),
      now_ns_(now_ns),
      packing_(PackingOf(call)),
      result_packing_(ResultPackingOf(call)),
      slices_(SlicesOf(call, rank_, size_)),
      parts_(PartsFor(call)),
      to_(At(size_)),
      from_(At(size_)),
      results_(At(size_)) {}

std::vector<PackedCall::Part> PackedCall::PartsFor(const Call& call) {
  const bool sparse = call.reduction.merging->sparsification != Sparsification::kNone;
  const bool gathers = call.kind == CallKind::kAllReduce;
  std::vector<Part> parts;
  for (const auto& [part, needed] :
       {std::pair(Part::kLengths, sparse), std::pair(Part::kSlices, true),
        std::pair(Part::kResultLengths, sparse && gathers), std::pair(Part::kResults, gathers)}) {
    if (needed) {
      parts.push_back(part);
    }
  }
  return parts;
}

size_t PackedCall::PartsOf(const Call& call) {
  return PartsFor(call).size();
}

absl::Status PackedCall::Check(const Call& call, int size) {
  return CheckElements(call, SlicesOf(call, 0, size).first.back());
}

absl::StatusOr<RefPtr<PackedCall>> PackedCall::Make(const Parts& parts, const Call& call,
                                                    int64_t now_ns) {
  ENTRAIN_RETURN_IF_ERROR(Check(call, static_cast<int>(parts.config.members.size())));
  auto packed = RefPtr<PackedCall>::Adopt(new PackedCall(parts, call, now_ns));
  ENTRAIN_RETURN_IF_ERROR(packed->PackInput());
  return packed;
}

absl::StatusOr<RefPtr<Work>> PackedCall::Start(const Parts& parts, const Call& call,
                                               int64_t now_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<PackedCall> packed, Make(parts, call, now_ns));
  ENTRAIN_ASSIGN_OR_RETURN(std::vector<Wiring> numbers,
                           parts.funnel.TakeNumbers(call, PartsOf(call)));
  if (const absl::Status status = packed->Begin(std::move(numbers)); !status.ok()) {
    parts.shell->EndHere(status);  // the other ranks wait for the parts
    return status;
  }
  return RefPtr<Work>::Adopt(packed.Leak());
}

bool PackedCall::contributes(int rank) const {
  return merging_.weights.empty() || merging_.weights[At(rank)] != 0;
}

Draws PackedCall::DrawsFor(uint64_t purpose) const {
  return Draws(merging_.seed, static_cast<uint64_t>(rank_), draw_, purpose);
}

absl::Status PackedCall::PackInput() {
  draw_ = call_->reduction.merge_state->NextCall();
  // Compute the lengths of dense slices. They depend only on the call. If slices are sparsified,
  // the actual lengths replace these values later.
  for (int r = 0; r < size_; ++r) {
    to_[At(r)] = contributes(rank_) ? DenseBytes(packing_, elements(r)) : 0;
    from_[At(r)] = contributes(r) ? DenseBytes(packing_, elements(rank_)) : 0;
    results_[At(r)] = DenseBytes(result_packing_, elements(r));
  }
  if (!contributes(rank_)) {
    return absl::OkStatus();
  }
  const auto* const input = static_cast<const float*>(call_->in.data);
  const int64_t count = slices_.first.back();
  absl::Status status;
  if (!merging_.error_feedback) {
    return PackVector(call_->in.data, SieveFor(call_->in.data));
  }
  call_->reduction.merge_state->Settle(call_->options.user_tag, count, [&](float* owed) {
    if (merging_.error_decay != 1) {
      kernels_.scale_any(DType::kF32, owed, owed, count, merging_.error_decay);
    }
    kernels_.axpy(owed, 1, input, count);
    status = PackVector(owed, SieveFor(owed));
    if (status.ok()) {
      status = SubtractPacked(owed);
    }
  });
  return status;
}

Sieve PackedCall::SieveFor(const void* x) const {
  const int64_t count = slices_.first.back();
  switch (merging_.sparsification) {
    case Sparsification::kNone:
      return {};
    case Sparsification::kMagnitude:
      if (merging_.sparsify_chunk > 0) {
        Sieve by_chunks;
        by_chunks.kind = Sieve::kLargest;
        by_chunks.chunks = &merging_;
        return by_chunks;
      }
      return Sieve::Largest(call_->dtype, x, count, merging_.Kept(count));
    case Sparsification::kRescaledRandom:
    case Sparsification::kRandom:
      break;
  }
  Sieve sieve;
  sieve.kind = Sieve::kRandom;
  sieve.threshold = merging_.DrawsBelow();
  sieve.draws = DrawsFor(kMask);
  return sieve;
}

absl::Status PackedCall::PackVector(const void* x, Sieve sieve) {
  const int64_t width = SizeOf(call_->dtype);
  const double factor =
      merging_.sparsification == Sparsification::kRescaledRandom ? 1 / merging_.density : 1;
  const auto slice = [&](int owner) {
    return static_cast<const std::byte*>(x) + first(owner) * width;
  };
  std::vector<Chosen> chosen;
  for (int r = 0; r < size_; ++r) {
    chosen.push_back(Choose(packing_, sieve, slice(r), first(r), elements(r)));
    to_[At(r)] = chosen.back().bytes;
  }
  ENTRAIN_ASSIGN_OR_RETURN(packed_, with_.pool.Take(std::max<int64_t>(SumOf(to_), 1)));
  std::byte* out = packed_.data();
  for (int r = 0; r < size_; out += to_[At(r++)]) {
    Pack(kernels_, packing_, chosen[At(r)], slice(r), factor, DrawsFor(kRounding), first(r), out);
  }
  return absl::OkStatus();
}

// Subtracts the packed values from `owed`. Then `owed` holds the values that this call does not
// send. Replaces values that are not finite by 0. Otherwise they would stay in `owed` for ever.
absl::Status PackedCall::SubtractPacked(float* owed) const {
  const std::byte* packed = packed_.data();
  for (int r = 0; r < size_; packed += to_[At(r++)]) {
    ENTRAIN_ASSIGN_OR_RETURN(
        Unpacker sent,
        Unpacker::Open(packing_, {packed, static_cast<size_t>(to_[At(r)])}, elements(r)));
    float piece[Unpacker::kPiece];
    float* const slice = owed + first(r);
    for (int64_t start = 0; start < elements(r); start += Unpacker::kPiece) {
      const int64_t length = std::min(Unpacker::kPiece, elements(r) - start);
      sent.Next(kernels_, piece, length);
      for (int64_t i = 0; i < length; ++i) {
        const float rest = slice[start + i] - piece[i];
        slice[start + i] = std::isfinite(rest) ? rest : 0;
      }
    }
  }
  return absl::OkStatus();
}

WorkInfo PackedCall::Info() const {
  return InfoOf(with_.config.name, *call_, numbers_[0].sequence + 1, now_ns_);
}

absl::Status PackedCall::Begin(std::vector<Wiring> numbers) {
  numbers_ = std::move(numbers);
  return LaunchNext();
}

// ---- Parts

Call PackedCall::LengthsCall(bool to_all) const {
  Call call;
  call.options = call_->options;
  call.whole = call_;
  call.kind = to_all ? CallKind::kAllGather : CallKind::kAllToAll;
  call.dtype = DType::kI64;
  call.count = 1;
  call.in = to_all ? View(&to_[At(rank_)], sizeof(int64_t)) : View(to_);
  call.out = View(to_all ? results_ : from_);
  return call;
}

absl::StatusOr<Call> PackedCall::CallFor(Part part) {
  if (part == Part::kLengths || part == Part::kResultLengths) {
    return LengthsCall(part == Part::kResultLengths);
  }
  const bool results = part == Part::kResults;
  const std::vector<int64_t>& arriving = results ? results_ : from_;
  ENTRAIN_ASSIGN_OR_RETURN(arrived_, with_.pool.Take(std::max<int64_t>(SumOf(arriving), 1)));
  Call call;
  call.options = call_->options;
  call.whole = call_;
  call.kind = results ? CallKind::kAllGather : CallKind::kAllToAll;
  call.count = results ? SumOf(results_) : 0;
  call.in = View(packed_.data(), results ? results_[At(rank_)] : SumOf(to_));
  call.out = View(arrived_.data(), SumOf(arriving));
  call.uneven = std::make_shared<const PartCounts>(PartCounts{results ? results_ : to_, arriving});
  return call;
}

absl::Status PackedCall::LaunchNext() {
  ENTRAIN_ASSIGN_OR_RETURN(const Call call, CallFor(parts_[next_part_]));
  ENTRAIN_ASSIGN_OR_RETURN(
      const RefPtr<Work> part,
      with_.funnel.LaunchPart(call, numbers_[next_part_], RefPtr<Work>::Share(this), now_ns_));
  part->Then([self = RefPtr<PackedCall>::Share(this)](const absl::Status& status) {
    self->OnPartDone(status);
  });
  return absl::OkStatus();
}

void PackedCall::OnPartDone(const absl::Status& status) {
  if (!status.ok()) {
    return End(status);
  }
  absl::Status good = Digest(parts_[next_part_++]);
  if (good.ok() && next_part_ < parts_.size()) {
    good = LaunchNext();
  } else if (good.ok()) {
    return End(good);
  }
  if (!good.ok()) {
    // This rank will not send the remaining parts, but the other ranks wait for them.
    with_.shell->EndHere(good);
    End(with_.end.status());
  }
}

absl::Status PackedCall::Digest(Part part) {
  switch (part) {
    case Part::kLengths:
      return CheckLengths(packing_, from_, [&](int) { return elements(rank_); });
    case Part::kSlices:
      ENTRAIN_RETURN_IF_ERROR(MergeSlices());
      return call_->kind == CallKind::kAllReduce ? PackResult() : absl::OkStatus();
    case Part::kResultLengths:
      return CheckLengths(result_packing_, results_, [&](int owner) { return elements(owner); });
    case Part::kResults:
      return UnpackResults();
  }
  return absl::OkStatus();
}

// Checks the packed lengths that came from the ranks. `lengths`: by rank. Each length must not
// exceed MostBytes of its slice. `elements_of(r)`: the number of elements of the slice from rank r.
absl::Status PackedCall::CheckLengths(const Packing& packing, const std::vector<int64_t>& lengths,
                                      absl::FunctionRef<int64_t(int)> elements_of) const {
  for (int r = 0; r < size_; ++r) {
    if (lengths[At(r)] < 0 || lengths[At(r)] > MostBytes(packing, elements_of(r))) {
      return Blamed(absl::DataLossError(absl::StrCat("a packed slice of ", lengths[At(r)],
                                                     " bytes for ", elements_of(r), " elements")),
                    r);
    }
  }
  return absl::OkStatus();
}

absl::Status PackedCall::MergeSlices() {
  const int64_t width = SizeOf(call_->dtype);
  const int64_t count = elements(rank_);
  auto* const out = static_cast<std::byte*>(call_->out.data) +
                    (call_->kind == CallKind::kAllReduce ? first(rank_) * width : 0);
  std::vector<Unpacker> slices(At(size_));
  const std::byte* packed = arrived_.data();
  for (int r = 0; r < size_; packed += from_[At(r++)]) {
    if (contributes(r)) {
      auto slice = Unpacker::Open(packing_, {packed, static_cast<size_t>(from_[At(r)])}, count);
      if (!slice.ok()) {
        return Blamed(slice.status(), r);
      }
      slices[At(r)] = *slice;
    }
  }
  const int64_t piece = Unpacker::kPiece * width;
  ENTRAIN_ASSIGN_OR_RETURN(OwnedBuffer room, with_.pool.Take(piece * size_));
  absl::InlinedVector<const void*, 16> sources;
  for (int r = 0; r < size_; ++r) {
    sources.push_back(room.data() + r * piece);
  }
  for (int64_t start = 0; start < count; start += Unpacker::kPiece) {
    const int64_t length = std::min(Unpacker::kPiece, count - start);
    for (int r = 0; r < size_; ++r) {
      if (contributes(r)) {
        slices[At(r)].Next(kernels_, room.data() + r * piece, length);
      }
    }
    Merge(kernels_, merging_, call_->dtype, out + start * width, sources, length);
  }
  with_.pool.Give(std::move(room));
  with_.pool.Give(std::move(arrived_));
  with_.pool.Give(std::move(packed_));
  return absl::OkStatus();
}

absl::Status PackedCall::PackResult() {
  const auto* const result =
      static_cast<const std::byte*>(call_->out.data) + first(rank_) * SizeOf(call_->dtype);
  Sieve sieve;
  sieve.kind = sparse() ? Sieve::kNonzero : Sieve::kAll;
  const Chosen chosen = Choose(result_packing_, sieve, result, first(rank_), elements(rank_));
  to_[At(rank_)] = chosen.bytes;
  ENTRAIN_ASSIGN_OR_RETURN(packed_, with_.pool.Take(std::max<int64_t>(chosen.bytes, 1)));
  Pack(kernels_, result_packing_, chosen, result, 1, DrawsFor(kResultRounding), first(rank_),
       packed_.data());
  return absl::OkStatus();
}

absl::Status PackedCall::UnpackResults() {
  const int64_t width = SizeOf(call_->dtype);
  const std::byte* packed = arrived_.data();
  for (int r = 0; r < size_; packed += results_[At(r++)]) {
    auto slice = Unpacker::Open(result_packing_, {packed, static_cast<size_t>(results_[At(r)])},
                                elements(r));
    if (!slice.ok()) {
      return Blamed(slice.status(), r);
    }
    auto* const out = static_cast<std::byte*>(call_->out.data) + first(r) * width;
    for (int64_t start = 0; start < elements(r); start += Unpacker::kPiece) {
      slice->Next(kernels_, out + start * width, std::min(Unpacker::kPiece, elements(r) - start));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedCall::Blamed(const absl::Status& status, int rank) const {
  Blame blame;
  blame.rank = rank;
  blame.operation = std::string(NameOf(call_->kind));
  return WithBlame(absl::Status(status.code(), absl::StrCat(blame.operation, ": from rank ", rank,
                                                            ": ", status.message())),
                   blame);
}

void PackedCall::End(const absl::Status& status) {
  with_.pool.Give(std::move(packed_));
  with_.pool.Give(std::move(arrived_));
  Finish(status);
}

}  // namespace entrain
