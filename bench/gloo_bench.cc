// gloo-bench COLLECTIVE -n N: Gloo's collectives over TCP loopback, measured by entrain-perf's own
// loop. Ranks are forked here. f32 only. --help has the details.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "bench/page_store.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/reduce_scatter.h"
#include "gloo/rendezvous/context.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "tools/perf/measure.h"
#include "tools/perf/report.h"
#include <CLI/CLI.hpp>

namespace entrain::perf {
namespace {

constexpr int kTimedOut = 124;

struct Options {
  Case like;
  int64_t min_bytes = 8, max_bytes = 64 << 20;
  int factor = 4;
  std::vector<std::string> algorithms;
  double budget_s = 0.15;
  int timeout_s = 60;
  std::string json;
  bool append = false;
};

// A name that ends so uses Gloo's synchronous busy-polling pairs instead of its thread. Then ranks
// are pinned and spin between calls; with the thread they must leave the cores to it.
bool BusyPolls(absl::string_view algorithm) {
  return absl::EndsWith(algorithm, "_sync");
}

std::vector<std::string> AlgorithmsOf(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return {"ring", "bcube", "halving_doubling", "halving_doubling_sync"};
    case Collective::kReduceScatter:
      return {"halving_doubling", "halving_doubling_sync"};
    default:
      return {"default"};
  }
}

class GlooSubject final : public Subject {
 public:
  GlooSubject(int rank, int size, std::string algorithm, PageStore& store)
      : rank_(rank), size_(size), algorithm_(std::move(algorithm)) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context_->setTimeout(std::chrono::seconds(300));
    context_->connectFullMesh(store, device);
    if (BusyPolls(algorithm_)) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          context_->getPair(peer)->setSync(true, true);
        }
      }
    }
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "tcp"; }
  std::string algorithm(const Case&) const override { return algorithm_; }
  bool in_place(const Case&) const override { return halving_doubling(); }

  absl::Status Prepare(const Case& measured, void* in, void* out) override {
    bound_.reset();
    if (measured.collective == Collective::kSendRecv) {
      const size_t bytes = static_cast<size_t>(measured.bytes);
      sent_ = context_->createUnboundBuffer(in, bytes);
      received_ = context_->createUnboundBuffer(out, bytes);
    }
    if (!halving_doubling()) {
      return absl::OkStatus();
    }
    const std::vector<float*> buffers{static_cast<float*>(out)};
    const auto count = static_cast<int>(measured.in_count());
    if (measured.collective == Collective::kAllReduce) {
      bound_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, buffers, count);
    } else {
      bound_ = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
          context_, buffers, count,
          std::vector<int>(static_cast<size_t>(size_), static_cast<int>(measured.count)));
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Case& measured, const void* in, void* out) override {
    if (bound_ != nullptr) {
      bound_->run();
      return absl::OkStatus();
    }
    auto* const input = static_cast<float*>(const_cast<void*>(in));
    auto* const output = static_cast<float*>(out);
    switch (measured.collective) {
      case Collective::kAllReduce:
        AllReduce(input, output, static_cast<size_t>(measured.count));
        break;
      case Collective::kReduceScatter:
        break;  // bound_
      case Collective::kAllGather:
        AllGather(measured, input, output);
        break;
      case Collective::kBroadcast:
        Broadcast(measured, output);
        break;
      case Collective::kBarrier:
        Barrier();
        break;
      case Collective::kSendRecv:
        PingPong();
        break;
      default:
        return absl::UnimplementedError(
            absl::StrCat("gloo-bench does not run ", NameOf(measured.collective)));
    }
    return absl::OkStatus();
  }

 private:
  bool halving_doubling() const { return algorithm_.rfind("halving_doubling", 0) == 0; }

  void AllReduce(float* in, float* out, size_t count) {
    using Algorithm = gloo::AllreduceOptions::Algorithm;
    gloo::AllreduceOptions options(context_);
    options.setInput(in, count);
    options.setOutput(out, count);
    options.setTag(++tag_);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setAlgorithm(algorithm_ == "bcube" ? Algorithm::BCUBE : Algorithm::RING);
    gloo::allreduce(options);
  }

  void AllGather(const Case& measured, float* in, float* out) {
    gloo::AllgatherOptions options(context_);
    options.setInput(in, static_cast<size_t>(measured.count));
    options.setOutput(out, static_cast<size_t>(measured.out_count()));
    options.setTag(++tag_);
    gloo::allgather(options);
  }

  void Broadcast(const Case& measured, float* out) {
    gloo::BroadcastOptions options(context_);
    options.setOutput(out, static_cast<size_t>(measured.count));
    options.setRoot(measured.root);
    options.setTag(++tag_);
    gloo::broadcast(options);
  }

  void Barrier() {
    gloo::BarrierOptions options(context_);
    options.setTag(++tag_);
    gloo::barrier(options);
  }

  // As entrain-perf: ranks 0 and 1, 2 and 3, ...; an odd one out does nothing.
  void PingPong() {
    const int peer = rank_ ^ 1;
    if (peer >= size_) {
      return;
    }
    const auto send = [&] {
      sent_->send(peer, 0);
      sent_->waitSend();
    };
    const auto receive = [&] {
      received_->recv(peer, 0);
      received_->waitRecv();
    };
    if (rank_ < peer) {
      send();
      receive();
    } else {
      receive();
      send();
    }
  }

  const int rank_, size_;
  const std::string algorithm_;
  uint32_t tag_ = 0;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::unique_ptr<gloo::Algorithm> bound_;
  std::unique_ptr<gloo::transport::UnboundBuffer> sent_, received_;  // of send_recv
};

int Cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Before Gloo starts its thread, which inherits it.
void Pin(int rank) {
  cpu_set_t allowed, one;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int skip = rank % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && skip-- == 0) {
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      sched_setaffinity(0, sizeof(one), &one);
      return;
    }
  }
}

absl::Status MeasureRank(const Options& options, const std::string& algorithm, int rank,
                         const SharedPage& page, PageStore& store) {
  const int ranks = options.like.ranks;
  Waiting waiting = Waiting::kSleep;
  if (BusyPolls(algorithm)) {
    const bool crowded = ranks > Cores();
    waiting = crowded ? Waiting::kYield : Waiting::kSpin;
    if (!crowded) {
      Pin(rank);
    }
  }
  const auto meeting = page.Join(rank, waiting, nullptr);
  ENTRAIN_ASSIGN_OR_RETURN(const Report report,
                           Report::Open(rank == 0 ? options.json : "", true, true));
  ENTRAIN_ASSIGN_OR_RETURN(const Buffers buffers,
                           Buffers::Allocate(Case::OfSize(options.like, options.max_bytes).bytes));
  GlooSubject subject(rank, ranks, algorithm, store);
  if (rank == 0) {
    report.Head({"gloo-bench", meeting->place(), options.budget_s}, options.like, "tcp");
  }
  const bool sized = options.like.collective != Collective::kBarrier;  // a barrier is one case
  const int64_t last = sized ? options.max_bytes : options.min_bytes;
  for (int64_t bytes = options.min_bytes; bytes <= last; bytes *= options.factor) {
    const Case one = Case::OfSize(options.like, bytes);
    ENTRAIN_ASSIGN_OR_RETURN(const Figures figures,
                             Measure(subject, *meeting, one, buffers, options.budget_s));
    if (rank == 0) {
      ENTRAIN_RETURN_IF_ERROR(report.Add(one, subject.transport(), algorithm, figures));
    }
  }
  return meeting->Barrier();
}

// Never returns: the parent's state is not the rank's to end.
[[noreturn]] void BecomeRank(const Options& options, const std::string& algorithm, int rank,
                             const SharedPage& page, PageStore& store) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  absl::Status status;
  try {
    status = MeasureRank(options, algorithm, rank, page, store);
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  if (!status.ok()) {
    std::fprintf(stderr, "gloo-bench: rank %d: %s\n", rank, std::string(status.message()).c_str());
  }
  std::fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

// 0 when all ends well. Otherwise, and when the time is up, the others are killed.
int WaitForAll(const std::vector<pid_t>& ranks, Deadline deadline) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  int code = 0;
  for (size_t left = ranks.size(); left > 0;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, code == 0 ? WNOHANG : 0);
    left -= ended > 0 ? 1 : 0;
    const int64_t rest = deadline.Left(Clock::Real().Now());
    if (code != 0 || (ended > 0 && status == 0)) {
      continue;
    }
    if (ended > 0 || rest <= 0) {
      code = ended > 0 ? 1 : kTimedOut;
      for (const pid_t rank : ranks) {
        kill(rank, SIGKILL);
      }
      continue;
    }
    const timespec time{static_cast<time_t>(rest / kSecond), static_cast<long>(rest % kSecond)};
    sigtimedwait(&child, nullptr, &time);
  }
  return code;
}

int RunRanks(const Options& options, const std::string& algorithm) {
  auto page = SharedPage::Create(options.like.ranks);
  if (!page.ok()) {
    std::fprintf(stderr, "gloo-bench: %s\n", std::string(page.status().message()).c_str());
    return 1;
  }
  PageStore store;
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < options.like.ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      BecomeRank(options, algorithm, rank, *page, store);
    }
    ranks.push_back(pid);
  }
  const int code = WaitForAll(ranks, Deadline::After(options.timeout_s * kSecond));
  if (code == kTimedOut) {
    std::fprintf(stderr, "gloo-bench: %s did not end within %d s\n", algorithm.c_str(),
                 options.timeout_s);
  }
  return code;
}

absl::Status UnderstandSizes(const std::string& min_bytes, const std::string& max_bytes,
                             Options& options) {
  const auto least = ParseSize(min_bytes), most = ParseSize(max_bytes);
  ENTRAIN_RETURN_IF_ERROR(Annotate(least.status(), "--min-bytes"));
  ENTRAIN_RETURN_IF_ERROR(Annotate(most.status(), "--max-bytes"));
  if (*least < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--min-bytes: ", min_bytes, " is not positive"));
  }
  if (*most < *least) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-bytes: ", min_bytes, " is above --max-bytes ", max_bytes));
  }
  options.min_bytes = *least;
  options.max_bytes = *most;
  return absl::OkStatus();
}

absl::Status Understand(const std::string& collective, const std::string& algorithms,
                        const std::string& min_bytes, const std::string& max_bytes,
                        Options& options) {
  const auto known = CollectiveFromName(collective);
  if (!known.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "COLLECTIVE: \"", collective,
        "\" is not one of all_reduce, reduce_scatter, all_gather, broadcast, barrier, send_recv"));
  }
  options.like.collective = *known;
  ENTRAIN_RETURN_IF_ERROR(UnderstandSizes(min_bytes, max_bytes, options));
  options.algorithms = AlgorithmsOf(*known);
  if (algorithms.empty()) {
    return absl::OkStatus();
  }
  for (const absl::string_view name : absl::StrSplit(algorithms, ',')) {
    bool found = false;
    for (const std::string& one : AlgorithmsOf(*known)) {
      found = found || one == name;
    }
    if (!found) {
      return absl::InvalidArgumentError(absl::StrCat("--algorithm: \"", name, "\" is none of ",
                                                     absl::StrJoin(AlgorithmsOf(*known), ", ")));
    }
  }
  options.algorithms = absl::StrSplit(algorithms, ',');
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  std::string collective, algorithms, min_bytes = "8", max_bytes = "64M";
  CLI::App app(
      "Measures Gloo over TCP loopback, f32 sums, as entrain-perf measures Entrain: same loop, "
      "same "
      "columns, same JSON.",
      "gloo-bench");
  app.add_option("collective", collective,
                 "all_reduce, reduce_scatter, all_gather, broadcast, barrier, send_recv")
      ->required();
  app.add_option("-n,--ranks", options.like.ranks, "ranks to start")
      ->required()
      ->check(CLI::Range(2, 64));
  app.add_option("--min-bytes", min_bytes, "smallest size (8)");
  app.add_option("--max-bytes", max_bytes, "largest size (64M)");
  app.add_option("--factor", options.factor, "from one size to the next (4)")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--algorithm", algorithms,
                 "which, with commas; all_reduce: ring, bcube, halving_doubling, "
                 "halving_doubling_sync (all of them)");
  app.add_option("--budget", options.budget_s, "seconds of timed calls a size (0.15)")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--timeout", options.timeout_s, "seconds an algorithm may take (60)")
      ->check(CLI::Range(1, 3600));
  app.add_option("--json", options.json, "write the figures to FILE too");
  app.add_flag("--append", options.append, "add to the file of --json");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status understood = Understand(collective, algorithms, min_bytes, max_bytes, options);
  if (!understood.ok()) {
    std::fprintf(stderr, "gloo-bench: %s\n", std::string(understood.message()).c_str());
    return 2;
  }
  if (!options.json.empty() && !options.append) {
    std::remove(options.json.c_str());
  }
  int code = 0;  // an algorithm that fails does not keep the others from being measured
  for (const std::string& algorithm : options.algorithms) {
    const int one = RunRanks(options, algorithm);
    code = code != 0 ? code : one;
  }
  return code;
}

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  return entrain::perf::Main(argc, argv);
}
