// The memory that the ranks of a communicator of the fake share: a memfd of the process that has
// made the id, with a pipe for each direction between two ranks. Thread safety: any thread. A pipe
// has one writer and one reader at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/device/nccl/nccl_abi.h"

namespace fake_nccl {

constexpr int kMostRanks = 8;
constexpr size_t kPipeBytes = 32 << 10;

enum class Presence : int32_t { kAbsent = 0, kHere, kAborted, kFinalized };

struct Pipe {
  std::atomic<uint64_t> written{0}, read{0};
  char ring[kPipeBytes];
  // Write and Read return the number of bytes that they transferred.
  size_t Write(const char* from, size_t count);
  size_t Read(char* to, size_t count);
};

struct Board {
  std::atomic<Presence> presence[kMostRanks];
  std::atomic<int32_t> device[kMostRanks], process[kMostRanks];
  std::atomic<int32_t> came[kMostRanks];  // has got its first collective
  Pipe pipes[kMostRanks][kMostRanks];     // [from][to]

  int Count(Presence at_least) const;
  // Returns true if a rank had come and has gone: it has aborted, or its process has ended.
  bool Lost(int rank) const;

  static entrain::nccl::UniqueId Make();
  // Opens the board of this id. Returns null if there is no such id.
  static std::shared_ptr<Board> Open(const entrain::nccl::UniqueId& id);
};

}  // namespace fake_nccl
