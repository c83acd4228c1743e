// Decides which calls NCCL takes, and translates them. Pure functions of values that are equal on
// all ranks of a communicator.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/base/call.h"
#include "lib/device/nccl/nccl_abi.h"

namespace entrain::nccl {

// README.md lists the calls that NCCL does not take, and why.
bool Takes(const Call& call, int size);

// Returns the type in which NCCL combines elements of this type, or nullopt if NCCL cannot combine
// them.
std::optional<DataType> CombinedType(DType dtype);
// Returns NCCL's operator for a call that NCCL takes. Returns kSum for kPreMultipliedSum, for which
// the caller must create an operator.
RedOp OperatorOf(ReduceOp op);

// A factor, as an element of NCCL's type in the first bytes. Integers are modulo 2^64.
struct Scalar {
  alignas(8) unsigned char bytes[8];
};
Scalar ScalarOf(DataType type, double factor);

}  // namespace entrain::nccl
