// Which calls NCCL is given, and as what. Pure: from what all ranks of a communicator know alike.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/base/call.h"
#include "lib/device/nccl/nccl_abi.h"

namespace entrain::nccl {

// README.md says what is left out, and why.
bool Takes(const Call& call, int size);

// The type that elements are combined as; nullopt: NCCL combines no such.
std::optional<DataType> CombinedType(DType dtype);
// Of a call that is taken, kPreMultipliedSum excepted.
RedOp OperatorOf(ReduceOp op);

// A factor as an element of the type, in the first bytes: integers modulo 2^64.
struct Scalar {
  alignas(8) unsigned char bytes[8];
};
Scalar ScalarOf(DataType type, double factor);

}  // namespace entrain::nccl
