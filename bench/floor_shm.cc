// Between processes of one machine: small calls through memory that they share, large ones out of
// each other's.
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>

#include <sys/mman.h>

#include "bench/floor.h"
#include "bench/floor_lanes.h"
#include "bench/floor_memory.h"
#include "bench/floor_reads.h"
#include "lib/base/status.h"

namespace entrain::perf {
namespace {

class ShmSubject final : public Subject {
 public:
  ShmSubject(FloorMemory* shared, int rank, int ranks, bool crowded)
      : rank_(rank),
        ranks_(ranks),
        lanes_(shared, rank, ranks, crowded),
        reads_(shared, rank, ranks, crowded) {}
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "shm"; }
  std::string algorithm(const Case&) const override { return "floor"; }

  absl::Status Prepare(const Case& measured, void* in, void* out) override {
    in_lanes_ = lanes_.Prepare(measured);
    reads_.Prepare(in, out);
    return absl::OkStatus();
  }

  absl::Status Run(const Case& measured, const void* in, void* out) override {
    const auto* const source = static_cast<const std::byte*>(in);
    auto* const target = static_cast<std::byte*>(out);
    if (!in_lanes_) {
      return reads_.Run(measured, source, target);
    }
    lanes_.Run(measured, source, target);
    return absl::OkStatus();
  }

 private:
  const int rank_, ranks_;
  FloorLanes lanes_;
  FloorReads reads_;
  bool in_lanes_ = false;  // the case
};

class ShmFloor final : public Floor {
 public:
  ShmFloor(FloorMemory* shared, int ranks) : shared_(shared), ranks_(ranks) {}
  ~ShmFloor() override { munmap(shared_, sizeof(FloorMemory)); }
  ShmFloor(const ShmFloor&) = delete;
  ShmFloor& operator=(const ShmFloor&) = delete;
  absl::StatusOr<std::unique_ptr<Subject>> Join(int rank, bool crowded) override {
    return std::make_unique<ShmSubject>(shared_, rank, ranks_, crowded);
  }

 private:
  FloorMemory* const shared_;
  const int ranks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Floor>> MakeShmFloor(int ranks) {
  void* const memory =
      mmap(nullptr, sizeof(FloorMemory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, "mapping the memory that ranks share");
  }
  return std::make_unique<ShmFloor>(new (memory) FloorMemory, ranks);
}

}  // namespace entrain::perf
