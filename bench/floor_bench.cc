// floor-bench: measures a minimal data exchange between the processes of one machine. Its times are
// a lower bound for those of Entrain over shm. Each of the four calls uses memcpy and a flag for
// small messages, and process_vm_readv for large ones. There is no queue, no check of errors and no
// code of the library. The loop of entrain-perf runs the calls, so the checks of results, the
// columns and the JSON are those of entrain-perf.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "absl/status/statusor.h"

#include "bench/peer_program.h"
#include "tools/perf/cores.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define EACH_CORE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EACH_CORE
#endif

namespace entrain::perf {
namespace {

constexpr size_t kMostCopied = 16 << 10;  // bytes; other ranks read a larger input in place
constexpr size_t kPiece = 256 << 10;      // bytes read and then summed; they stay in the cache
constexpr int kMostRanks = 64;

// Memory that all ranks map.
struct Shared {
  struct Rank {
    // Call c uses slot c % 2. Before a rank writes the data of call c + 2, it has read all ranks'
    // data of call c + 1. The other ranks wrote that data after they had read the data of call c.
    // So no rank still reads the slot.
    struct Slot {
      alignas(64) std::atomic<uint32_t> call;
      std::byte payload[kMostCopied];
    } slots[2];
    // for large calls: number of steps that the rank has finished
    alignas(64) std::atomic<uint32_t> step;
    pid_t pid;
    const float *in, *out;  // addresses in the rank's own memory
  };
  Rank ranks[kMostRanks];
};

EACH_CORE void Add(float* target, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    target[i] = a[i] + b[i];
  }
}

class Rank final : public Subject {
 public:
  Rank(Shared& shared, int rank, int ranks, bool crowded)
      : shared_(shared),
        rank_(rank),
        ranks_(ranks),
        crowded_(crowded),
        piece_(kPiece / sizeof(float)) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // needed if the system lets only a parent read a
                                                // process's memory
    shared_.ranks[rank].pid = getpid();
  }
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "shm"; }
  std::string algorithm(const Case& /*measured*/) const override { return "floor"; }

  // Tell() in the first step of a call makes these pointers visible to the other ranks.
  absl::Status Prepare(const Case& /*measured*/, void* in, void* out) override {
    shared_.ranks[rank_].in = static_cast<const float*>(in);
    shared_.ranks[rank_].out = static_cast<const float*>(out);
    return absl::OkStatus();
  }

  absl::Status Run(const Case& measured, const void* in, void* out) override {
    const auto* const source = static_cast<const float*>(in);
    auto* const target = static_cast<float*>(out);
    const auto count = static_cast<size_t>(measured.count);
    if (measured.collective == CallKind::kSend && Peer() >= ranks_) {
      return absl::OkStatus();  // ranks 0 and 1, 2 and 3, ...; an odd last rank has no peer
    }
    if (Copied(measured)) {
      ++call_;
      Copy(measured.collective, source, target, count);
      return absl::OkStatus();
    }
    return Read(measured.collective, source, target, count);
  }

 private:
  static bool Copied(const Case& measured) {
    return static_cast<size_t>(measured.in_count()) * sizeof(float) <= kMostCopied;
  }
  int Peer() const { return rank_ ^ 1; }
  // Returns the other ranks, beginning with the next one, so that ranks do not all use the same
  // rank at the same time.
  int Other(int step) const { return (rank_ + step) % ranks_; }
  static size_t At(int k, size_t part) { return static_cast<size_t>(k) * part; }

  // Acquire: this rank sees all that the other rank wrote before it stored `value`.
  void Await(const std::atomic<uint32_t>& flag, uint32_t value) const {
    while (static_cast<int32_t>(flag.load(std::memory_order_acquire) - value) < 0) {
      if (crowded_) {
        sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
  }

  // ---- memcpy and a flag ----

  void Put(const float* source, size_t count) {
    Shared::Rank::Slot& slot = shared_.ranks[rank_].slots[call_ % 2];
    std::memcpy(slot.payload, source, count * sizeof(float));
    slot.call.store(call_, std::memory_order_release);
  }
  const float* Get(int from) const {
    const Shared::Rank::Slot& slot = shared_.ranks[from].slots[call_ % 2];
    Await(slot.call, call_);
    return reinterpret_cast<const float*>(slot.payload);
  }

  void Copy(CallKind collective, const float* source, float* target, size_t count) {
    switch (collective) {
      case CallKind::kAllReduce:
        Put(source, count);
        return SumSlots(source, 0, target, count);
      case CallKind::kReduceScatter:
        Put(source, At(ranks_, count));
        return SumSlots(source, At(rank_, count), target, count);
      case CallKind::kAllGather:
        Put(source, count);
        for (int k = 0; k < ranks_; ++k) {
          std::memcpy(target + At(k, count), k == rank_ ? source : Get(k), count * sizeof(float));
        }
        return;
      default:  // a ping-pong
        if (rank_ < Peer()) {
          Put(source, count);
        }
        std::memcpy(target, Get(Peer()), count * sizeof(float));
        if (rank_ > Peer()) {
          Put(source, count);
        }
    }
  }

  // target = the sum of all ranks' elements from `first` on, added in rank order.
  void SumSlots(const float* source, size_t first, float* target, size_t count) {
    const auto of = [&](int k) { return (k == rank_ ? source : Get(k)) + first; };
    Add(target, of(0), of(1), count);
    for (int k = 2; k < ranks_; ++k) {
      Add(target, target, of(k), count);
    }
  }

  // ---- process_vm_readv ----

  // Release: other ranks may now read this rank's writes, and overwrite the data that this rank has
  // read.
  void Tell() {
    shared_.ranks[rank_].step.store(++step_, std::memory_order_release);
  }
  void Meet() {
    Tell();
    for (int k = 0; k < ranks_; ++k) {
      Await(shared_.ranks[k].step, step_);
    }
  }

  absl::Status Pull(int from, const float* there, float* here, size_t count) const {
    iovec local{here, count * sizeof(float)},
        remote{const_cast<float*>(there), count * sizeof(float)};
    while (local.iov_len > 0) {
      const ssize_t got = process_vm_readv(shared_.ranks[from].pid, &local, 1, &remote, 1, 0);
      if (got <= 0) {
        return absl::ErrnoToStatus(errno, "process_vm_readv");
      }
      for (iovec* const side : {&local, &remote}) {
        side->iov_base = static_cast<std::byte*>(side->iov_base) + got;
        side->iov_len -= static_cast<size_t>(got);
      }
    }
    return absl::OkStatus();
  }

  // target = the sum of all ranks' inputs from `first` on.
  absl::Status SumInputs(const float* source, size_t first, float* target, size_t count) {
    for (size_t done = 0; done < count; done += piece_.size()) {
      const size_t size = std::min(piece_.size(), count - done);
      for (int step = 1; step < ranks_; ++step) {
        const int k = Other(step);
        if (absl::Status status = Pull(k, shared_.ranks[k].in + first + done, piece_.data(), size);
            !status.ok()) {
          return status;
        }
        Add(target + done, step == 1 ? source + first + done : target + done, piece_.data(), size);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(CallKind collective, const float* source, float* target, size_t count) {
    if (collective == CallKind::kSend) {
      return PingPong(target, count);
    }
    Meet();
    absl::Status status;
    if (collective == CallKind::kAllReduce) {
      status = AllReduce(source, target, count);
    } else if (collective == CallKind::kReduceScatter) {
      status = SumInputs(source, At(rank_, count), target, count);
    } else {
      std::memcpy(target + At(rank_, count), source, count * sizeof(float));
      for (int step = 1; step < ranks_ && status.ok(); ++step) {
        const int k = Other(step);
        status = Pull(k, shared_.ranks[k].in, target + At(k, count), count);
      }
    }
    Meet();
    return status;
  }

  // Every rank sums one share of the elements, then reads the other shares from the other ranks.
  absl::Status AllReduce(const float* source, float* target, size_t count) {
    const auto first = [&](int k) {
      return count * static_cast<size_t>(k) / static_cast<size_t>(ranks_);
    };
    absl::Status status =
        SumInputs(source, first(rank_), target + first(rank_), first(rank_ + 1) - first(rank_));
    Meet();
    for (int step = 1; step < ranks_ && status.ok(); ++step) {
      const int k = Other(step);
      status = Pull(k, shared_.ranks[k].out + first(k), target + first(k), first(k + 1) - first(k));
    }
    return status;
  }

  // Three steps: 1. The lower rank publishes its message. 2. The upper rank has read this message,
  // and publishes its own. 3. The lower rank has read the upper rank's message.
  absl::Status PingPong(float* target, size_t count) {
    const Shared::Rank& peer = shared_.ranks[Peer()];
    std::atomic<uint32_t>& own = shared_.ranks[rank_].step;
    const bool lower = rank_ < Peer();
    const uint32_t begin = step_;
    step_ += 3;
    if (lower) {
      own.store(begin + 1, std::memory_order_release);
    }
    Await(peer.step, begin + (lower ? 2 : 1));
    absl::Status status = Pull(Peer(), peer.in, target, count);
    own.store(begin + (lower ? 3 : 2), std::memory_order_release);
    if (!lower) {
      Await(peer.step, begin + 3);
    }
    return status;
  }

  Shared& shared_;
  const int rank_, ranks_;
  const bool crowded_;  // ranks share cores, so a waiting rank yields
  std::vector<float> piece_;
  uint32_t call_ = 0, step_ = 0;
};

class Floor final : public Peer {
 public:
  const char* name() const override { return "floor-bench"; }
  const char* about() const override {
    return "Measures the bare data movement between processes of this machine, by memcpy and a "
           "flag or by process_vm_readv, in f32, "
           "as entrain-perf measures Entrain: same loop, same columns, same JSON.";
  }
  std::vector<std::string> Algorithms(CallKind collective) const override {
    const bool has = collective == CallKind::kAllReduce || collective == CallKind::kReduceScatter ||
                     collective == CallKind::kAllGather || collective == CallKind::kSend;
    return has ? std::vector<std::string>{"floor"} : std::vector<std::string>();
  }
  void BeforeRanks(int ranks) override {
    crowded_ = ranks > Cores();  // before the ranks are pinned: a pinned rank sees one core
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = memory == MAP_FAILED ? nullptr : new (memory) Shared;
  }
  absl::StatusOr<std::unique_ptr<Subject>> Join(const std::string&, int rank, int ranks) override {
    if (shared_ == nullptr || ranks < 2 || ranks > kMostRanks) {
      return absl::InvalidArgumentError("floor-bench: 2 to 64 ranks, and memory that they share");
    }
    return std::make_unique<Rank>(*shared_, rank, ranks, crowded_);
  }

 private:
  bool crowded_ = false;
  Shared* shared_ = nullptr;  // mapped until the program ends
};

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  entrain::perf::Floor floor;
  return entrain::perf::RunPeer(floor, argc, argv);
}
