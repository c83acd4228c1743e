// openmpi-bench, mpich-bench: measure an MPI's collectives over shared memory or TCP loopback. This
// file is compiled once with each installed MPI. --help has the details.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/peer_program.h"
#include "lib/base/status.h"
#include "mpi.h"
#include "tools/perf/cores.h"

namespace entrain::perf {
namespace {

#if defined(OPEN_MPI)
constexpr char kName[] = "openmpi-bench";
constexpr char kAbout[] =
    "Measures Open MPI on this machine, f32 sums, as entrain-perf measures Entrain: same loop, "
    "same "
    "columns, same JSON. --algorithm says how bytes move: cma (shared memory, and the kernel "
    "copies "
    "what is large), nocma (shared memory alone), ucx, tcp (over loopback).";
constexpr char kRank[] = "OMPI_COMM_WORLD_RANK";
#else
constexpr char kName[] = "mpich-bench";
constexpr char kAbout[] =
    "Measures MPICH on this machine, f32 sums, as entrain-perf measures Entrain: same loop, same "
    "columns, same JSON. --algorithm says how bytes move: shm, release_gather (shm, with MPICH's "
    "collectives for shared memory where it has some), tcp (over loopback).";
constexpr char kRank[] = "PMI_RANK";
#endif

absl::Status Checked(int code) {
  if (code == MPI_SUCCESS) {
    return absl::OkStatus();
  }
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::InternalError(text);
}

class MpiSubject final : public Subject {
 public:
  static absl::StatusOr<std::unique_ptr<Subject>> Start(const std::string& algorithm, int rank,
                                                        int ranks) {
    ENTRAIN_RETURN_IF_ERROR(Checked(MPI_Init(nullptr, nullptr)));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int own = -1, all = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    if (own != rank || all != ranks) {
      return absl::InternalError(
          absl::StrCat("expected to be rank ", rank, " of ", ranks, ", am ", own, " of ", all));
    }
    return std::unique_ptr<Subject>(new MpiSubject(algorithm, rank, ranks));
  }
  ~MpiSubject() override { MPI_Finalize(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return algorithm_ == "tcp" ? "tcp" : "shm"; }
  std::string algorithm(const Case&) const override { return algorithm_; }

  absl::Status Prepare(const Case& measured, void*, void*) override {
    if (measured.count > INT_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat(measured.count, " elements are more than an MPI call takes"));
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Case& measured, const void* in, void* out) override {
    const int count = static_cast<int>(measured.count), root = measured.root;
    MPI_Comm const world = MPI_COMM_WORLD;
    MPI_Datatype const type = MPI_FLOAT;
    switch (measured.collective) {
      case CallKind::kAllReduce:
        return Checked(MPI_Allreduce(in, out, count, type, MPI_SUM, world));
      case CallKind::kReduceScatter:
        return Checked(MPI_Reduce_scatter_block(in, out, count, type, MPI_SUM, world));
      case CallKind::kAllGather:
        return Checked(MPI_Allgather(in, count, type, out, count, type, world));
      case CallKind::kBroadcast:
        return Checked(MPI_Bcast(out, count, type, root, world));
      case CallKind::kReduce:
        return Checked(MPI_Reduce(in, out, count, type, MPI_SUM, root, world));
      case CallKind::kGather:
        return Checked(MPI_Gather(in, count, type, out, count, type, root, world));
      case CallKind::kScatter:
        return Checked(MPI_Scatter(in, count, type, out, count, type, root, world));
      case CallKind::kAllToAll:
        return Checked(MPI_Alltoall(in, count, type, out, count, type, world));
      case CallKind::kScan:
        return Checked(MPI_Scan(in, out, count, type, MPI_SUM, world));
      case CallKind::kExclusiveScan:
        return Checked(MPI_Exscan(in, out, count, type, MPI_SUM, world));
      case CallKind::kBarrier:
        return Checked(MPI_Barrier(world));
      case CallKind::kSend:
        return PingPong(count, in, out);
      default:
        return absl::UnimplementedError("not measured");
    }
  }

 private:
  MpiSubject(std::string algorithm, int rank, int size)
      : algorithm_(std::move(algorithm)), rank_(rank), size_(size) {}

  // Ranks 0 and 1, 2 and 3, ... exchange messages, as in entrain-perf. An odd last rank does
  // nothing.
  absl::Status PingPong(int count, const void* in, void* out) const {
    const int peer = rank_ ^ 1;
    if (peer >= size_) {
      return absl::OkStatus();
    }
    const auto send = [&] {
      return Checked(MPI_Send(in, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD));
    };
    const auto receive = [&] {
      return Checked(MPI_Recv(out, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    };
    absl::Status status = rank_ < peer ? send() : receive();
    status.Update(rank_ < peer ? receive() : send());
    return status;
  }

  const std::string algorithm_;
  const int rank_, size_;
};

class Mpi final : public Peer {
 public:
  const char* name() const override { return kName; }
  const char* about() const override { return kAbout; }
  std::vector<std::string> Algorithms(CallKind collective) const override;
  std::vector<std::string> Launcher(const std::string& algorithm, int ranks) const override;
  int LaunchedRank() const override {
    const char* const rank = std::getenv(kRank);
    return rank == nullptr ? -1 : std::atoi(rank);
  }
  absl::StatusOr<std::unique_ptr<Subject>> Join(const std::string& algorithm, int rank,
                                                int ranks) override {
    return MpiSubject::Start(algorithm, rank, ranks);
  }
};

// peer_program.cc pins the ranks, so the launcher must not. If ranks share cores, a waiting rank
// must yield.
#if defined(OPEN_MPI)

std::vector<std::string> Mpi::Algorithms(CallKind) const {
  return {"cma", "nocma", "ucx", "tcp"};
}

std::vector<std::string> Mpi::Launcher(const std::string& algorithm, int ranks) const {
  std::vector<std::string> command{"env"};
  if (algorithm == "ucx") {
    command.push_back("UCX_TLS=posix,sysv,cma,self");
  }
  command.insert(command.end(), {ENTRAIN_MPIRUN, "--allow-run-as-root", "--oversubscribe",
                                 "--bind-to", "none", "-n", absl::StrCat(ranks)});
  const auto set = [&](const char* parameter, const char* value) {
    command.insert(command.end(), {"--mca", parameter, value});
  };
  set("mpi_yield_when_idle", ranks > Cores() ? "1" : "0");
  set("oob_tcp_if_include", "lo");
  if (algorithm == "ucx") {
    set("pml", "ucx");
    set("pml_ucx_tls", "any");
    set("pml_ucx_devices", "any");
    return command;
  }
  set("pml", "ob1");
  if (algorithm == "tcp") {
    set("btl", "tcp,self");
    set("btl_tcp_if_include", "lo");
  } else {
    set("btl", "vader,self");
    set("btl_vader_single_copy_mechanism", algorithm == "cma" ? "cma" : "none");
  }
  return command;
}

#else

std::vector<std::string> Mpi::Algorithms(CallKind collective) const {
  switch (collective) {
    case CallKind::kAllReduce:
    case CallKind::kReduce:
    case CallKind::kBroadcast:
    case CallKind::kBarrier:
      return {"shm", "release_gather", "tcp"};
    default:
      return {"shm", "tcp"};
  }
}

std::vector<std::string> Mpi::Launcher(const std::string& algorithm, int ranks) const {
  std::vector<std::string> command{"env"};
  if (ranks > Cores()) {
    command.push_back("MPIR_CVAR_POLLS_BEFORE_YIELD=1");
  }
  if (algorithm == "tcp") {
    command.insert(command.end(),
                   {"MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"});
  } else if (algorithm == "release_gather") {
    for (const char* name : {"ALLREDUCE", "REDUCE", "BCAST", "BARRIER"}) {
      command.push_back(absl::StrCat("MPIR_CVAR_", name, "_POSIX_INTRA_ALGORITHM=release_gather"));
    }
    command.push_back("MPIR_CVAR_COLL_SHM_LIMIT_PER_NODE=1048576");
  }
  command.insert(command.end(), {ENTRAIN_MPIRUN, "-launcher", "fork", "-n", absl::StrCat(ranks),
                                 "-bind-to", "none"});
  return command;
}

#endif

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  entrain::perf::Mpi mpi;
  return entrain::perf::RunPeer(mpi, argc, argv);
}
