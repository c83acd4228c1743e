// One operation of the fake as a stream runs it: the transfers to and from other ranks, which run
// at the same time, and the work before and after them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "lib/device/nccl/nccl_abi.h"

namespace fake_nccl {

// Memory of the program, on the device or on the host.
struct Memory {
  const void* at = nullptr;
  size_t bytes = 0;
  // Returns the address of the memory for the host, or null if there is no such memory.
  char* Seen() const;
};

struct Transfer {
  bool send = false;
  int peer = 0;
  Memory memory;                      // or:
  std::vector<char>* room = nullptr;  // the whole vector
};

struct Operation {
  std::vector<Transfer> transfers;  // to or from one peer in this order
  // The work before and after the transfers. A function returns false if memory did not exist.
  std::vector<std::function<bool()>> before, after;
  std::vector<std::shared_ptr<std::vector<char>>> rooms;
  void Append(Operation other);
};

// The combination of contributions: an operator, or the sum of factor * contribution.
struct Combination {
  entrain::nccl::DataType type = entrain::nccl::kFloat32;
  entrain::nccl::RedOp op = entrain::nccl::kSum;
  bool scaled = false;
  double factor = 1;
};

size_t SizeOf(entrain::nccl::DataType type);
double ReadScalar(const void* scalar, entrain::nccl::DataType type);

// One rank's part of a collective of `size` ranks.
struct Place {
  int rank = 0, size = 1;
};
// Combines `from` of all ranks in rank order and writes the result to `to` on every rank (if root
// >= 0, only on the root). `parts`: `from` has `size` parts, and each rank gets only its own part.
Operation Reduce(Place place, const void* from, void* to, size_t count, Combination how, int root,
                 bool parts);
Operation Broadcast(Place place, const void* from, void* to, size_t bytes, int root);
Operation AllGather(Place place, const void* from, void* to, size_t bytes);
Operation Send(const void* from, size_t bytes, int peer);
Operation Receive(void* to, size_t bytes, int peer);

}  // namespace fake_nccl
