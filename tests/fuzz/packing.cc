// Packed slices of contributions from a peer (lib/kernels/packing), and the saved state of a
// task-arithmetic reduction (lib/comm/merge_state).
#include "lib/kernels/packing.h"

#include <memory>

#include "lib/comm/merge_state.h"
#include "tests/fuzz/target.h"

namespace entrain::fuzz {
namespace {

enum Kind : uint8_t { kUnpack, kBoth, kState, kKinds };
constexpr int64_t kMostElements = 5000;

struct Slice {
  Packing packing;
  int64_t count = 0;
};

Slice TakeSlice(Input& in) {
  Slice slice;
  constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
  slice.packing.dtype = kTypes[in.Byte() % 4];
  if (slice.packing.dtype == DType::kF32) {
    slice.packing.format = static_cast<WireFormat>(in.Byte() % 5);
  }
  slice.packing.block = IsScaled(slice.packing.format) ? 1 + in.Byte() % 64 * 8 : 0;
  slice.packing.rounding = static_cast<WireRounding>(in.Byte() % 2);
  slice.count = in.Number<uint16_t>() % kMostElements;
  return slice;
}

// Takes all elements, into memory of exactly their size.
std::vector<std::byte> TakeAll(Unpacker unpacker, const Slice& slice) {
  const auto size = static_cast<size_t>(SizeOf(slice.packing.dtype));
  std::vector<std::byte> all;
  for (int64_t at = 0; at < slice.count; at += Unpacker::kPiece) {
    const int64_t piece = std::min(Unpacker::kPiece, slice.count - at);
    const auto bytes = static_cast<size_t>(piece) * size;
    // Elements of a call lie at addresses that fit their type.
    const std::unique_ptr<double[]> out(new double[(bytes + sizeof(double) - 1) / sizeof(double)]);
    unpacker.Next(BestKernels(), out.get(), piece);
    const auto* const begin = reinterpret_cast<const std::byte*>(out.get());
    all.insert(all.end(), begin, begin + bytes);
  }
  return all;
}

// A copy that begins at a multiple of 8, as packed slices do.
std::unique_ptr<uint64_t[]> Aligned(absl::string_view text) {
  std::unique_ptr<uint64_t[]> words(new uint64_t[text.size() / 8 + 1]());
  std::memcpy(words.get(), text.data(), text.size());
  return words;
}

void Unpack(Input in) {
  const Slice slice = TakeSlice(in);
  const absl::string_view text = in.Rest();
  // Slices are padded to multiples of 8 bytes.
  const std::string packed(text.substr(0, text.size() / 8 * 8));
  const std::unique_ptr<uint64_t[]> words(packed.empty() ? nullptr
                                                         : new uint64_t[packed.size() / 8]);
  if (words != nullptr) {
    std::memcpy(words.get(), packed.data(), packed.size());
  }
  auto unpacker = Unpacker::Open(
      slice.packing, {reinterpret_cast<const std::byte*>(words.get()), packed.size()}, slice.count);
  if (unpacker.ok()) {
    TakeAll(*std::move(unpacker), slice);
  }
}

void PackAndUnpack(Input in) {
  const Slice slice = TakeSlice(in);
  const uint8_t select = in.Byte();
  const int64_t first = in.Byte();
  const auto bytes = static_cast<size_t>(slice.count * SizeOf(slice.packing.dtype));
  std::string elements(in.Take(bytes));
  elements.resize(bytes);
  const std::unique_ptr<uint64_t[]> x = Aligned(elements);
  Sieve sieve;
  if (select % 3 == 1) {
    sieve.kind = Sieve::kNonzero;
  } else if (select % 3 == 2) {
    sieve = Sieve::Largest(slice.packing.dtype, x.get(), slice.count, select % (slice.count + 1));
  }
  const Chosen chosen = Choose(slice.packing, sieve, x.get(), first, slice.count);
  FUZZ_CHECK(chosen.bytes % 8 == 0 && chosen.bytes <= MostBytes(slice.packing, slice.count));
  FUZZ_CHECK(sieve.kind != Sieve::kAll || chosen.bytes == DenseBytes(slice.packing, slice.count));
  const std::unique_ptr<uint64_t[]> packed(new uint64_t[static_cast<size_t>(chosen.bytes) / 8]);
  auto* const out = reinterpret_cast<std::byte*>(packed.get());
  Pack(BestKernels(), slice.packing, chosen, x.get(), 1, Draws(1, 2, 3, 4), first, out);
  auto unpacker =
      Unpacker::Open(slice.packing, {out, static_cast<size_t>(chosen.bytes)}, slice.count);
  FUZZ_CHECK(unpacker.ok());
  const std::vector<std::byte> all = TakeAll(*std::move(unpacker), slice);
  if (sieve.kind == Sieve::kAll && slice.packing.format == WireFormat::kFull) {
    FUZZ_CHECK(bytes == 0 || std::memcmp(all.data(), x.get(), bytes) == 0);
  }
}

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  switch (in.Byte() % kKinds) {
    case kUnpack:
      Unpack(in);
      return;
    case kBoth:
      PackAndUnpack(in);
      return;
    default: {
      MergeState state, again;
      if (state.Load(in.Rest()).ok()) {
        FUZZ_CHECK(again.Load(state.Save()).ok() && again.Save() == state.Save());
      }
    }
  }
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  const std::vector<float> x = {1, 0, 0, -2.5, 0, 0, 0, 0, 3e8f, 0, 0, 0, 1e-30f, 0, 0, 7};
  const absl::string_view raw(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
  for (int format = 0; format < 5; ++format) {
    for (const int select : {0, 1, 2}) {
      Packing packing;
      packing.format = static_cast<WireFormat>(format);
      packing.block = IsScaled(packing.format) ? 8 + 1 : 0;
      Sieve sieve;
      if (select > 0) {
        sieve = Sieve::Largest(DType::kF32, x.data(), static_cast<int64_t>(x.size()), select * 2);
      }
      const Chosen chosen = Choose(packing, sieve, x.data(), 0, static_cast<int64_t>(x.size()));
      std::vector<uint64_t> packed(static_cast<size_t>(chosen.bytes) / 8);
      Pack(BestKernels(), packing, chosen, x.data(), 1, Draws(), 0,
           reinterpret_cast<std::byte*>(packed.data()));
      Script slice;
      slice.Byte(0).Byte(format);
      if (IsScaled(packing.format)) {
        slice.Byte(1);
      }
      const std::string head = slice.Byte(0).Number(static_cast<uint16_t>(x.size())).Take();
      seeds.push_back(Script()
                          .Byte(kUnpack)
                          .Raw(head)
                          .Raw({reinterpret_cast<const char*>(packed.data()), packed.size() * 8})
                          .Take());
      seeds.push_back(Script().Byte(kBoth).Raw(head).Byte(select).Byte(0).Raw(raw).Take());
    }
  }
  MergeState state;
  state.NextCall();
  state.Settle(3, 4, [](float* owed) { owed[1] = 2; });
  seeds.push_back(Script().Byte(kState).Raw(state.Save()).Take());
  return seeds;
}

}  // namespace entrain::fuzz
