// Large calls of floor-bench, and its barrier: ranks read each other's memory by the kernel
// (process_vm_readv); what is reduced, in pieces that stay in the cache. Who reduces what is as was
// quickest on the Xeon of bench/README.md.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <sys/prctl.h>
#include <sys/uio.h>

#include "bench/floor_memory.h"
#include "lib/base/status.h"

namespace entrain::perf {

// A call is a few steps, as many on every rank; a rank tells when it has come to one, if others wait
// for it there.
class FloorReads : private FloorShmRank {
 public:
  FloorReads(FloorMemory* shared, int rank, int ranks, bool crowded)
      : FloorShmRank(shared, rank, ranks, crowded), pieces_(At(ranks, kPiece)) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where only a parent may read a process
    Own().pid = getpid();
  }

  // Seen by the others behind the first step of a call.
  void Prepare(const void* in, const void* out) {
    Own().in = static_cast<const std::byte*>(in);
    Own().out = static_cast<const std::byte*>(out);
  }

  absl::Status Run(const Case& measured, const std::byte* source, std::byte* target) {
    return Call(*this, measured, source, target);
  }

 private:
  friend class FloorRank;  // Call
  static constexpr size_t kPiece = 256 << 10;
  static constexpr size_t kMostWhole = 512 << 10;  // read by one rank that reduces all of it

  // Release: what this rank has written may be read now, and what it has read be written.
  void Tell() { Own().step.store(step_, std::memory_order_release); }
  void AwaitStep(int k) { Await(shared_.ranks[k].step, step_); }
  void AwaitOthers() {
    for (int step = 1; step < ranks_; ++step) {
      AwaitStep(Other(step));
    }
  }
  void Meet() {
    ++step_;
    Tell();
    AwaitOthers();
  }
  void AllAfterRoot(int root) {
    ++step_;
    rank_ == root ? Tell() : AwaitStep(root);
  }
  void RootAfterAll(int root) {
    ++step_;
    rank_ == root ? AwaitOthers() : Tell();
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

  // target = the sum of everybody's input from `offset` on. One source comes to the target at once.
  absl::Status SumInputs(const std::byte* source, size_t offset, std::byte* target, size_t bytes) {
    const void* sources[FloorMemory::kMostRanks];
    for (size_t done = 0; done < bytes; done += kPiece) {
      const size_t size = std::min(kPiece, bytes - done), at = offset + done;
      sources[rank_] = source + at;
      for (int step = 1; step < ranks_; ++step) {
        const int k = Other(step);
        std::byte* const piece = step == 1 ? target + done : pieces_.data() + At(k, kPiece);
        sources[k] = piece;
        ENTRAIN_RETURN_IF_ERROR(Pull(k, shared_.ranks[k].in + at, piece, size));
      }
      Sum(target + done, sources, ranks_, size);
    }
    return absl::OkStatus();
  }

  bool SumsWhole(size_t bytes) const { return Packed(bytes) <= kMostWhole; }

  absl::Status SumShare(const std::byte* source, std::byte* target, size_t bytes) {
    const auto [first, last] = ShareOf(rank_, bytes);
    Meet();
    return SumInputs(source, first, target + first, last - first);
  }

  absl::Status PullShares(std::byte* target, size_t bytes) {
    for (int step = 1; step < ranks_; ++step) {
      const int k = Other(step);
      const auto [first, last] = ShareOf(k, bytes);
      AwaitStep(k);
      ENTRAIN_RETURN_IF_ERROR(Pull(k, shared_.ranks[k].out + first, target + first, last - first));
    }
    return absl::OkStatus();
  }

  // Part k of `target` out of rank k's input, where it is at `there`.
  absl::Status PullParts(const std::byte* own, size_t there, std::byte* target, size_t part) {
    std::memcpy(target + At(rank_, part), own, part);
    for (int step = 1; step < ranks_; ++step) {
      const int k = Other(step);
      AwaitStep(k);
      ENTRAIN_RETURN_IF_ERROR(Pull(k, shared_.ranks[k].in + there, target + At(k, part), part));
    }
    return absl::OkStatus();
  }

  template <typename Body>
  absl::Status BetweenBarriers(Body body) {
    Meet();
    ENTRAIN_RETURN_IF_ERROR(body());
    Meet();
    return absl::OkStatus();
  }

  absl::Status Barrier() {
    Meet();
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(const std::byte* source, std::byte* target, size_t part) {
    return BetweenBarriers([&] { return SumInputs(source, At(rank_, part), target, part); });
  }

  absl::Status AllGather(const std::byte* source, std::byte* target, size_t part) {
    return BetweenBarriers([&] { return PullParts(source, 0, target, part); });
  }

  absl::Status AllToAll(const std::byte* source, std::byte* target, size_t part) {
    return BetweenBarriers(
        [&] { return PullParts(source + At(rank_, part), At(rank_, part), target, part); });
  }

  absl::Status AllReduce(const std::byte* source, std::byte* target, size_t bytes) {
    if (!crowded_ && SumsWhole(bytes)) {
      return BetweenBarriers([&] { return SumInputs(source, 0, target, bytes); });
    }
    ENTRAIN_RETURN_IF_ERROR(SumShare(source, target, bytes));
    ++step_;
    Tell();
    ENTRAIN_RETURN_IF_ERROR(PullShares(target, bytes));
    Meet();
    return absl::OkStatus();
  }

  // Every rank has memory at `target`, though only the root's counts.
  absl::Status Reduce(int root, const std::byte* source, std::byte* target, size_t bytes) {
    const bool whole = SumsWhole(bytes);
    if (!whole) {
      ENTRAIN_RETURN_IF_ERROR(SumShare(source, target, bytes));
    }
    RootAfterAll(root);
    if (rank_ == root) {
      ENTRAIN_RETURN_IF_ERROR(whole ? SumInputs(source, 0, target, bytes)
                                    : PullShares(target, bytes));
    }
    AllAfterRoot(root);
    return absl::OkStatus();
  }

  absl::Status Broadcast(int root, std::byte* target, size_t bytes) {
    AllAfterRoot(root);
    if (rank_ != root) {
      ENTRAIN_RETURN_IF_ERROR(Pull(root, shared_.ranks[root].out, target, bytes));
    }
    RootAfterAll(root);
    return absl::OkStatus();
  }

  absl::Status Scatter(int root, const std::byte* source, std::byte* target, size_t part) {
    const size_t own = At(rank_, part);
    AllAfterRoot(root);
    if (rank_ == root) {
      std::memcpy(target, source + own, part);
    } else {
      ENTRAIN_RETURN_IF_ERROR(Pull(root, shared_.ranks[root].in + own, target, part));
    }
    RootAfterAll(root);
    return absl::OkStatus();
  }

  absl::Status Gather(int root, const std::byte* source, std::byte* target, size_t part) {
    ++step_;
    if (rank_ == root) {
      ENTRAIN_RETURN_IF_ERROR(PullParts(source, 0, target, part));
    } else {
      Tell();
    }
    AllAfterRoot(root);
    return absl::OkStatus();
  }

  absl::Status PingPong(const std::byte*, std::byte* target, size_t bytes) {
    const int peer = rank_ ^ 1;
    if (peer >= ranks_) {
      return absl::OkStatus();
    }
    for (const int from : {std::min(rank_, peer), std::max(rank_, peer)}) {
      ++step_;
      if (rank_ == from) {
        Tell();  // the second says too that the first message has been read
      } else {
        AwaitStep(from);
        ENTRAIN_RETURN_IF_ERROR(Pull(from, shared_.ranks[from].in, target, bytes));
      }
    }
    ++step_;
    if (rank_ < peer) {
      Tell();
    } else {
      AwaitStep(peer);
    }
    return absl::OkStatus();
  }

  std::vector<std::byte> pieces_;
  uint32_t step_ = 0;
};

}  // namespace entrain::perf
