// Shared by the tests of weighted and task-arithmetic reductions: contributions, calls, and
// expected results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/merging.h"
#include "tests/support/merging_reference.h"
#include "tests/support/ranks.h"

namespace entrain {

using Comm = std::shared_ptr<Communicator>;
using Raw = std::vector<std::byte>;  // elements of some float type

constexpr DType kFloats[] = {DType::kF32, DType::kF64,    DType::kBF16,
                             DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr Consensus kConsensus[] = {Consensus::kNone, Consensus::kSum, Consensus::kCount};

Raw ToRaw(const Values& values, DType dtype);
Values FromRaw(const Raw& raw, DType dtype);

// ---- Settings

Reduction Gta(const Merging& merging);
Merging Sparsified(Merging merging, Sparsification how, double density, uint64_t seed = 0);
Merging Encoded(WireFormat format, WireRounding rounding = WireRounding::kNearest);
// Kind 0: no weights. Kind 1: weights that grow with the rank. Kind 2: also negative and zero
// weights.
std::vector<double> WeightsOf(int kind, int size);

// ---- Contributions

// Returns the contributions in rank order. The values are small multiples of 1/4. All float types
// hold them, and f32 holds their weighted sums, so elections are exact. A third of the values are
// zeros, and ties are frequent.
std::vector<Values> Contributions(int size, size_t count);
// Keeps the largest magnitudes of each contribution.
std::vector<Values> LargestOfAll(const std::vector<Values>& x, double density);
// Returns parts of different lengths, of which every third is empty.
PartCounts UnevenParts(int size);

// ---- Calls

Call AllReduceOf(const Reduction& reduction, DType dtype, const Raw& in, const Raw& out);
// Runs the call. Returns the bytes that this rank sent for it.
int64_t SentBy(const Comm& comm, const Call& call);
// Runs the call. Returns the bytes that all ranks sent for it.
int64_t SentByAll(const Comm& comm, const Call& call);

// ---- Expected results

std::string Describe(const Merging& merging, DType dtype, int size, size_t count);
// The error is at most one rounding of the result to the type. For f32 and f64, it is one rounding
// of every step.
void ExpectNear(const Raw& got, DType dtype, const Values& want, const std::string& what);
// Compares this rank's part of a reduce_scatter with the same part of `whole`. `x`: contributions
// by rank.
void ExpectScattered(const Comm& comm, const Merging& merging, const PartCounts& counts,
                     const std::vector<Values>& x, const Values& whole);

}  // namespace entrain
