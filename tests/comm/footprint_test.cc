// The memory of a communicator before its first large message is at most 64 KiB, and 16 KiB for
// each peer. This counts memory of malloc and, over shm, one half of each segment that two ranks
// share. Ranks are threads of this process, so the test divides by their number. The first
// communicator of each rank includes its runtime, engine and paths. A further communicator has only
// its own memory.
#include <barrier>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include <malloc.h>
#include <sys/stat.h>

#include "gtest/gtest.h"

#include "tests/support/allocations.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;

constexpr int64_t kFirst = 64 << 10, kOfAPeer = 16 << 10;

// Returns the bytes of all memfds of this process. Counts each memfd once.
int64_t MemfdBytes() {
  std::set<ino_t> seen;
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string to = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat info {};
    if (to.rfind("/memfd:", 0) == 0 && stat(entry.path().c_str(), &info) == 0 &&
        seen.insert(info.st_ino).second) {
      bytes += info.st_blocks * 512;
    }
  }
  return bytes;
}

// Makes small calls of every kind. Calls of one size are repeated, because plans are kept by shape.
void Talk(const Comm& comm) {
  const int64_t size = comm->size();
  std::vector<float> in(static_cast<size_t>(256 * size), 1), out(in.size());
  for (int repeat = 0; repeat < 50; ++repeat) {
    for (const int64_t count : {int64_t{1}, int64_t{64}, 64 * size}) {
      ASSERT_EQ(comm->AllReduce(in.data(), out.data(), count, DType::kF32, ReduceOp::kSum),
                absl::OkStatus());
      ASSERT_EQ(out[0], static_cast<float>(size));
    }
    ASSERT_EQ(comm->AllGather(in.data(), out.data(), 64, DType::kF32), absl::OkStatus());
    ASSERT_EQ(comm->Broadcast(in.data(), 64, DType::kF32, 0), absl::OkStatus());
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  }
}

struct Taken {
  int64_t heap = 0, shared = 0;  // of one rank
  int64_t all() const { return heap + shared; }
};

// The memory of the first communicator when it is made and after some calls, and of one more
// communicator.
struct Footprint {
  Taken made, talked, further;
};

Footprint Measure(int ranks, const std::string& transport) {
  Footprint found;
  RanksOptions options;
  options.transports = transport;
  std::barrier together(ranks);
  const int64_t heap = AllocatedBytes(), shared = MemfdBytes();
  RunRanks(ranks, options, [&](const Comm& comm) {
    const auto look = [&](Taken* taken) {
      together.arrive_and_wait();
      if (comm->rank() == 0) {
        *taken = {(AllocatedBytes() - heap) / ranks, (MemfdBytes() - shared) / ranks};
      }
      together.arrive_and_wait();
    };
    look(&found.made);
    Talk(comm);
    look(&found.talked);
    const auto further = comm->Split(0, comm->rank());
    ASSERT_TRUE(further.ok()) << further.status();
    Talk(*further);
    look(&found.further);
  });
  found.further.heap -= found.talked.heap;
  found.further.shared -= found.talked.shared;
  return found;
}

class FootprintOver : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Transports, FootprintOver, testing::Values("inproc", "shm", "tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(FootprintOver, StaysWithinItsBoundBeforeTheFirstLargeMessage) {
  Measure(2, GetParam());  // allocates what a process needs only once
  for (const int ranks : {2, 4, 8, 16}) {
    const Footprint found = Measure(ranks, GetParam());
    const auto print = [&](const char* what, const Taken& taken) {
      std::cout << ranks << " ranks, " << what << ": " << taken.heap << " heap, " << taken.shared
                << " shared, a rank\n";
    };
    print("made", found.made);
    print("talked", found.talked);
    print("one more", found.further);
    EXPECT_LE(found.talked.all(), kFirst + (ranks - 1) * kOfAPeer) << ranks << " ranks";
    EXPECT_LE(found.further.all(), kFirst + (ranks - 1) * kOfAPeer) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace entrain
