// floor-bench: what is left when nothing but the data movement itself is done. A bare exchange
// between processes of one machine, written by hand for the measured calls alone: no library, one
// communicator, nothing checked, nothing that could fail. A target to be held against, not a peer.
//
//   up to 60 bytes a rank   flag and payload in one line of every rank's lane
//   up to 32 KiB            payload behind the flag; two generations of lanes, so nobody waits for
//                           readers of the last call
//   above                   read from the peers' memory by the kernel (process_vm_readv): what is
//                           reduced, in pieces that stay in the cache
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench/peer_program.h"
#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "tools/perf/cores.h"

namespace entrain::perf {
namespace {

constexpr size_t kLine = 64, kInline = kLine - sizeof(uint32_t);
constexpr size_t kLaneBytes = 32 << 10, kPiece = 128 << 10;
constexpr int kMostRanks = 64;

struct Lane {
  alignas(kLine) std::atomic<uint32_t> flag;  // the call whose payload is here
  std::byte small[kInline];
  alignas(kLine) std::byte large[kLaneBytes];
};

struct Shared {
  struct Rank {
    Lane lanes[2];
    alignas(kLine) std::atomic<uint32_t> step;  // of the barriers
    alignas(kLine) std::atomic<uint32_t> read;  // the last broadcast that it has taken
    alignas(kLine) pid_t pid;
    const std::byte *in, *out;  // in its own memory
  };
  Rank ranks[kMostRanks];
};

class Floor final : public Subject {
 public:
  Floor(Shared* shared, int rank, int ranks, bool crowded)
      : shared_(*shared),
        rank_(rank),
        ranks_(ranks),
        crowded_(crowded),
        pieces_(static_cast<size_t>(ranks) * kPiece) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where only a parent may read a process
    shared_.ranks[rank].pid = getpid();
  }
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "shm"; }
  std::string algorithm(const Case&) const override { return "floor"; }

  absl::Status Prepare(const Case&, void* in, void* out) override {
    // Seen by the others behind the first barrier of a call.
    shared_.ranks[rank_].in = static_cast<const std::byte*>(in);
    shared_.ranks[rank_].out = static_cast<const std::byte*>(out);
    return absl::OkStatus();
  }

  absl::Status Run(const Case& measured, const void* in, void* out) override {
    const auto* const source = static_cast<const std::byte*>(in);
    auto* const target = static_cast<std::byte*>(out);
    const size_t bytes = static_cast<size_t>(measured.count) * sizeof(float);
    const size_t whole = static_cast<size_t>(measured.bytes);
    if (measured.collective == CallKind::kBroadcast) {
      return bytes <= kLaneBytes ? SmallBroadcast(measured.root, target, bytes)
                                 : LargeBroadcast(measured.root, target, bytes);
    }
    const bool small = whole <= kLaneBytes;
    switch (measured.collective) {
      case CallKind::kAllReduce:
        if (small) {
          SmallReduce(source, whole, 0, target, whole);
          return absl::OkStatus();
        }
        return LargeAllReduce(source, target, whole);
      case CallKind::kReduceScatter:
        if (small) {
          SmallReduce(source, whole, static_cast<size_t>(rank_) * bytes, target, bytes);
          return absl::OkStatus();
        }
        return LargeReduceScatter(source, target, bytes);
      default:
        return small ? SmallAllGather(source, target, bytes)
                     : LargeAllGather(source, target, bytes);
    }
  }

 private:
  Lane& LaneOf(int rank) { return shared_.ranks[rank].lanes[call_ & 1]; }
  static std::byte* Payload(Lane& lane, size_t bytes) {
    return bytes <= kInline ? lane.small : lane.large;
  }

  // Acquire: pairs with the release of whoever counts up; what it wrote before is seen.
  void Await(const std::atomic<uint32_t>& counter, uint32_t value) const {
    while (static_cast<int32_t>(counter.load(std::memory_order_acquire) - value) < 0) {
      if (crowded_) {
        sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
  }

  // Lanes of the last but one call are free: everybody has put something into the last one, which it
  // does only behind that call.
  void Put(const std::byte* source, size_t bytes) {
    ++call_;
    Lane& own = LaneOf(rank_);
    std::memcpy(Payload(own, bytes), source, bytes);
    own.flag.store(call_, std::memory_order_release);
  }

  const std::byte* Get(int from, size_t bytes) {
    Lane& lane = LaneOf(from);
    Await(lane.flag, call_);
    return Payload(lane, bytes);
  }

  // target = sum of everybody's source[offset, offset + bytes), in the order of ranks.
  void SmallReduce(const std::byte* source, size_t whole, size_t offset, std::byte* target,
                   size_t bytes) {
    Put(source, whole);
    const void* sources[kMostRanks];
    for (int k = 0; k < ranks_; ++k) {
      sources[k] = (k == rank_ ? source : Get(k, whole)) + offset;
    }
    Sum(target, sources, bytes);
  }

  void Sum(std::byte* target, const void* const* sources, size_t bytes) const {
    kernels_.combine(ReduceOp::kSum, DType::kF32, target, sources, ranks_,
                     static_cast<int64_t>(bytes / sizeof(float)), 1);
  }

  absl::Status SmallAllGather(const std::byte* source, std::byte* target, size_t bytes) {
    Put(source, bytes);
    for (int step = 0; step < ranks_; ++step) {
      const int k = (rank_ + step) % ranks_;
      std::memcpy(target + static_cast<size_t>(k) * bytes, step == 0 ? source : Get(k, bytes),
                  bytes);
    }
    return absl::OkStatus();
  }

  absl::Status SmallBroadcast(int root, std::byte* target, size_t bytes) {
    if (rank_ != root) {
      ++call_;
      std::memcpy(target, Get(root, bytes), bytes);
      shared_.ranks[rank_].read.store(call_, std::memory_order_release);
      return absl::OkStatus();
    }
    for (int k = 0; k < ranks_; ++k) {
      if (k != root) {
        Await(shared_.ranks[k].read, call_ - 1);  // of the call before the last: the lane is free
      }
    }
    Put(target, bytes);
    return absl::OkStatus();
  }

  void Barrier() {
    // Release: what this rank has written may be read now, and what it has read be written.
    shared_.ranks[rank_].step.store(++step_, std::memory_order_release);
    for (int k = 0; k < ranks_; ++k) {
      Await(shared_.ranks[k].step, step_);
    }
  }

  absl::Status Pull(int from, const std::byte* there, std::byte* here, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
      const iovec local{here + done, bytes - done};
      const iovec remote{const_cast<std::byte*>(there) + done, bytes - done};
      const ssize_t got = process_vm_readv(shared_.ranks[from].pid, &local, 1, &remote, 1, 0);
      if (got <= 0) {
        return ErrnoStatus(errno, "process_vm_readv");
      }
      done += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

  // target = sum of everybody's input from `offset` on.
  absl::Status LargeReduce(const std::byte* source, size_t offset, std::byte* target,
                           size_t bytes) {
    const void* sources[kMostRanks];
    for (size_t done = 0; done < bytes; done += kPiece) {
      const size_t size = std::min(kPiece, bytes - done), at = offset + done;
      for (int step = 0; step < ranks_; ++step) {
        const int k = (rank_ + step) % ranks_;
        std::byte* const piece = pieces_.data() + static_cast<size_t>(k) * kPiece;
        sources[k] = k == rank_ ? source + at : piece;
        if (k != rank_) {
          ENTRAIN_RETURN_IF_ERROR(Pull(k, shared_.ranks[k].in + at, piece, size));
        }
      }
      Sum(target + done, sources, size);
    }
    return absl::OkStatus();
  }

  absl::Status LargeAllReduce(const std::byte* source, std::byte* target, size_t bytes) {
    const size_t part = bytes / static_cast<size_t>(ranks_) / kLine * kLine;
    const auto first = [&](int k) { return k == ranks_ ? bytes : part * static_cast<size_t>(k); };
    const size_t own = first(rank_);
    Barrier();
    ENTRAIN_RETURN_IF_ERROR(LargeReduce(source, own, target + own, first(rank_ + 1) - own));
    Barrier();
    for (int step = 1; step < ranks_; ++step) {
      const int k = (rank_ + step) % ranks_;
      ENTRAIN_RETURN_IF_ERROR(
          Pull(k, shared_.ranks[k].out + first(k), target + first(k), first(k + 1) - first(k)));
    }
    Barrier();
    return absl::OkStatus();
  }

  absl::Status LargeReduceScatter(const std::byte* source, std::byte* target, size_t bytes) {
    Barrier();
    ENTRAIN_RETURN_IF_ERROR(LargeReduce(source, static_cast<size_t>(rank_) * bytes, target, bytes));
    Barrier();
    return absl::OkStatus();
  }

  absl::Status LargeAllGather(const std::byte* source, std::byte* target, size_t bytes) {
    const auto place = [&](int k) { return target + static_cast<size_t>(k) * bytes; };
    Barrier();
    std::memcpy(place(rank_), source, bytes);
    for (int step = 1; step < ranks_; ++step) {
      const int k = (rank_ + step) % ranks_;
      ENTRAIN_RETURN_IF_ERROR(Pull(k, shared_.ranks[k].in, place(k), bytes));
    }
    Barrier();
    return absl::OkStatus();
  }

  absl::Status LargeBroadcast(int root, std::byte* target, size_t bytes) {
    Barrier();
    if (rank_ != root) {
      ENTRAIN_RETURN_IF_ERROR(Pull(root, shared_.ranks[root].out, target, bytes));
    }
    Barrier();
    return absl::OkStatus();
  }

  Shared& shared_;
  const int rank_, ranks_;
  const bool crowded_;  // waiting gives the core away
  const Kernels& kernels_ = BestKernels();
  std::vector<std::byte> pieces_;
  uint32_t call_ = 0, step_ = 0;
};

class FloorPeer final : public Peer {
 public:
  const char* name() const override { return "floor-bench"; }
  const char* about() const override {
    return "Measures a bare hand-written exchange of f32 between processes of this machine, as "
           "entrain-perf measures Entrain: same loop, same columns, same JSON.";
  }
  std::vector<std::string> Algorithms(CallKind collective) const override {
    switch (collective) {
      case CallKind::kAllReduce:
      case CallKind::kReduceScatter:
      case CallKind::kAllGather:
      case CallKind::kBroadcast:
        return {"floor"};
      default:
        return {};
    }
  }
  void BeforeRanks(int ranks) override {
    crowded_ = ranks > Cores();  // a pinned rank would see one core
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = memory == MAP_FAILED ? nullptr : new (memory) Shared;
  }
  absl::StatusOr<std::unique_ptr<Subject>> Join(const std::string&, int rank, int ranks) override {
    if (shared_ == nullptr) {
      return absl::ResourceExhaustedError("cannot map the memory that ranks share");
    }
    return std::make_unique<Floor>(shared_, rank, ranks, crowded_);
  }

 private:
  Shared* shared_ = nullptr;
  bool crowded_ = false;
};

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  entrain::perf::FloorPeer floor;
  return entrain::perf::RunPeer(floor, argc, argv);
}
