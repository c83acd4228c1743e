// What tests of weighted and task-arithmetic reductions share: contributions, calls, and what must
// come of them.
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
// Kind 0: none; 1: growing with the rank; 2: also negative ones and none.
std::vector<double> WeightsOf(int kind, int size);

// ---- Contributions

// By rank. Small multiples of 1/4, which all float types hold and whose weighted sums f32 does too:
// elections are exact. A third are zeros, and ties are frequent.
std::vector<Values> Contributions(int size, size_t count);
// What magnitude leaves of each.
std::vector<Values> LargestOfAll(const std::vector<Values>& x, double density);
// Parts of which every third is empty.
PartCounts UnevenParts(int size);

// ---- Calls

Call AllReduceOf(const Reduction& reduction, DType dtype, const Raw& in, const Raw& out);
// Runs the call; what this rank sent for it.
int64_t SentBy(const Comm& comm, const Call& call);
// Runs the call; what all ranks sent for it.
int64_t SentByAll(const Comm& comm, const Call& call);

// ---- What must come of them

std::string Describe(const Merging& merging, DType dtype, int size, size_t count);
// Within one rounding of the result to the type; f32 and f64 also of every step.
void ExpectNear(const Raw& got, DType dtype, const Values& want, const std::string& what);
// This rank's part of a reduce_scatter of x, by rank, against the same part of `whole`.
void ExpectScattered(const Comm& comm, const Merging& merging, const PartCounts& counts,
                     const std::vector<Values>& x, const Values& whole);

}  // namespace entrain
