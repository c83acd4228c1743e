// overlap_bench: measures how much of a collective's time is hidden by compute. After it has
// started the collective, a thread computes, and makes no call into the library until it waits.
// Also measures how much the collective slows the compute down. Runs one process per rank, under
// any launcher. --help has the details.
//
//   alone      start, wait
//   compute    a loop in registers that takes as long as `alone`
//   together   start, the same loop, wait
//   hidden     (alone + compute - together) / min(alone, compute): 1 means all of it
//   slow-down  the time of the loop in `together`, relative to its time alone
//
// The same run measures, in alternation, an exchange with the least possible work: one thread sends
// and one thread receives, over TCP sockets around a ring. The two threads move the same number of
// bytes as a ring algorithm of the collective.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "entrain/entrain.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/comm/launch/launcher.h"
#include "lib/net/interfaces.h"
#include "lib/net/listener.h"
#include "nlohmann/json.hpp"
#include "tools/command_line.h"
#include "tools/perf/cores.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/measure.h"
#include "tools/perf/pattern.h"
#include "tools/perf/statistics.h"

namespace entrain::perf {
namespace {

constexpr int64_t kTimeoutNs = 60 * kSecond;  // for each wait for another rank
constexpr int kWarmCalls = 5, kEstimates = 7;
constexpr int64_t kLeastRounds = 1000;
constexpr double kWarmSeconds = 0.3;
constexpr size_t kPiece = 256 << 10;  // bytes per call of a socket in the bare exchange

struct Options {
  std::string transport = "tcp", json;
  Case like;
  int calls = 9;
};

double Now() {
  return static_cast<double>(Clock::Real().Now()) * 1e-9;
}

// An exchange that can be started, left alone and waited for.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::string name() const = 0;
  virtual absl::Status Start() = 0;
  virtual absl::Status Wait() = 0;
};

class OfEntrain final : public Exchange {
 public:
  OfEntrain(entrain_comm_t* comm, const Case& measured, const Buffers& buffers,
            std::string transport)
      : comm_(comm), case_(measured), buffers_(buffers), transport_(std::move(transport)) {}
  std::string name() const override { return absl::StrCat("entrain ", transport_); }
  absl::Status Start() override {
    const auto count = static_cast<size_t>(case_.count);
    switch (case_.collective) {
      case CallKind::kReduceScatter:
        return FromC(entrain_reduce_scatter(comm_, buffers_.in(), buffers_.out(), count,
                                            ENTRAIN_F32, ENTRAIN_SUM, nullptr, &work_));
      case CallKind::kAllGather:
        return FromC(entrain_all_gather(comm_, buffers_.in(), buffers_.out(), count, ENTRAIN_F32,
                                        nullptr, &work_));
      default:
        return FromC(entrain_all_reduce(comm_, buffers_.in(), buffers_.out(), count, ENTRAIN_F32,
                                        ENTRAIN_SUM, nullptr, &work_));
    }
  }
  absl::Status Wait() override {
    const absl::Status status = FromC(entrain_work_wait(work_, kTimeoutNs));
    entrain_work_free(std::exchange(work_, nullptr));
    return status;
  }

 private:
  entrain_comm_t* const comm_;
  const Case case_;
  const Buffers& buffers_;
  const std::string transport_;
  entrain_work_t* work_ = nullptr;
};

class Bare final : public Exchange {
 public:
  Bare(Fd next, Fd previous, int64_t bytes)
      : next_(std::move(next)), previous_(std::move(previous)), bytes_(bytes) {}
  std::string name() const override { return "bare sockets"; }
  absl::Status Start() override {
    sender_ = std::thread([this] { sent_ = Move(next_.get(), out_, &SendSome); });
    receiver_ = std::thread([this] { received_ = Move(previous_.get(), in_, &ReceiveSome); });
    return absl::OkStatus();
  }
  absl::Status Wait() override {
    sender_.join();
    receiver_.join();
    return sent_.ok() ? received_ : sent_;
  }

 private:
  static ssize_t SendSome(int socket, std::byte* memory, size_t bytes) {
    return send(socket, memory, bytes, MSG_NOSIGNAL);
  }
  static ssize_t ReceiveSome(int socket, std::byte* memory, size_t bytes) {
    return recv(socket, memory, bytes, 0);
  }
  absl::Status Move(int socket, std::vector<std::byte>& memory,
                    ssize_t (*some)(int, std::byte*, size_t)) const {
    for (int64_t left = bytes_; left > 0;) {
      const ssize_t moved =
          some(socket, memory.data(), static_cast<size_t>(std::min<int64_t>(left, kPiece)));
      if (moved <= 0) {
        return ErrnoStatus(moved == 0 ? ECONNRESET : errno, "a bare socket");
      }
      left -= moved;
    }
    return absl::OkStatus();
  }

  const Fd next_, previous_;
  const int64_t bytes_;
  std::vector<std::byte> out_ = std::vector<std::byte>(kPiece),
                         in_ = std::vector<std::byte>(kPiece);
  std::thread sender_, receiver_;
  absl::Status sent_, received_;
};

// Returns the store's host. This rank should listen at the address from which it reaches that host,
// because other ranks can reach this address.
std::string HostOf(const std::string& store_url) {
  absl::string_view text = store_url;
  const auto where =
      absl::ConsumePrefix(&text, "tcp://") ? ParseHostPort(text) : absl::NotFoundError("no host");
  return where.ok() ? where->host : "";
}

// Connects this rank to the next rank and the previous one by sockets.
absl::StatusOr<std::unique_ptr<Exchange>> MakeBare(const EntrainSubject& subject,
                                                   const std::string& store_url, int64_t bytes) {
  const Stop stop{Deadline::After(kTimeoutNs)};
  const char* const filter = std::getenv("ENTRAIN_INTERFACE");
  ENTRAIN_ASSIGN_OR_RETURN(const Address host, ChooseLocalAddress(filter == nullptr ? "" : filter,
                                                                  HostOf(store_url), stop));
  ENTRAIN_ASSIGN_OR_RETURN(const Listener listener, OpenListener(host, {}));
  constexpr size_t kLongest = 128;
  char mine[kLongest] = "";
  std::strncpy(mine, listener.address.ToString().c_str(), kLongest - 1);
  const auto size = static_cast<size_t>(subject.size());
  std::vector<char> all(size * kLongest);
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_all_gather(subject.comm(), mine, all.data(), kLongest,
                                                   ENTRAIN_U8, nullptr, nullptr)));
  const size_t next = (static_cast<size_t>(subject.rank()) + 1) % size;
  ENTRAIN_ASSIGN_OR_RETURN(const Address to, Address::Parse(all.data() + next * kLongest));
  ENTRAIN_ASSIGN_OR_RETURN(Fd out, Connect(to, stop));
  ENTRAIN_RETURN_IF_ERROR(WaitFd(listener.fd.get(), POLLIN, stop, "waiting for the previous rank"));
  ENTRAIN_ASSIGN_OR_RETURN(Fd in, Accept(listener.fd.get()));
  const timeval time_limit{kTimeoutNs / kSecond, 0};
  for (const int one : {out.get(), in.get()}) {
    fcntl(one, F_SETFL, 0);  // makes it blocking
    setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &time_limit, sizeof(time_limit));
    setsockopt(one, SOL_SOCKET, SO_SNDTIMEO, &time_limit, sizeof(time_limit));
  }
  return std::make_unique<Bare>(std::move(out), std::move(in), bytes);
}

// Computes in registers. Touches no memory.
double Compute(int64_t rounds) {
  __asm__ volatile("" : "+r"(rounds));  // keeps the compiler from merging equal calls
  double a = 1.0, b = 1.1, c = 0.9, d = 1.05;
  for (int64_t i = 0; i < rounds; ++i) {
    a = a * 0.9999995 + 1e-7;
    b = b * 0.9999990 + 1e-7;
    c = c * 0.9999985 + 1e-7;
    d = d * 0.9999980 + 1e-7;
  }
  return a + b + c + d;
}

// The slowest rank's times in seconds, one per call.
struct Times {
  std::vector<double> alone, compute, together, inside;
};

class Meter {
 public:
  Meter(Meeting& meeting, Exchange& exchange) : meeting_(meeting), exchange_(exchange) {}

  // Determines the number of compute rounds that takes the same time as the exchange.
  absl::Status Prepare() {
    double warm = 0;  // connections need time to grow their windows
    for (int i = 0; i < kWarmCalls || warm < kWarmSeconds; ++i) {
      ENTRAIN_ASSIGN_OR_RETURN(const double took, Alone());
      warm += took;
    }
    std::vector<double> alone;
    for (int i = 0; i < kEstimates; ++i) {
      ENTRAIN_ASSIGN_OR_RETURN(const double took, Alone());
      alone.push_back(took);
    }
    rounds_ = kLeastRounds;
    for (int i = 0; i < kEstimates;
         ++i) {  // each estimate uses the previous one, since long loops differ from short ones
      ENTRAIN_ASSIGN_OR_RETURN(const double took, ComputeAlone());
      rounds_ = std::max(kLeastRounds,
                         static_cast<int64_t>(static_cast<double>(rounds_) * Median(alone) / took));
    }
    return absl::OkStatus();
  }

  absl::Status Once() {
    ENTRAIN_ASSIGN_OR_RETURN(const double alone, Alone());
    ENTRAIN_ASSIGN_OR_RETURN(const double compute, ComputeAlone());
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    const double start = Now();
    ENTRAIN_RETURN_IF_ERROR(exchange_.Start());
    const double before = Now();
    sink_ = Compute(rounds_);
    const double inside = Now() - before;
    ENTRAIN_RETURN_IF_ERROR(exchange_.Wait());
    double both[] = {Now() - start, inside};
    ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest(absl::MakeSpan(both)));
    times_.alone.push_back(alone);
    times_.compute.push_back(compute);
    times_.together.push_back(both[0]);
    times_.inside.push_back(both[1]);
    return absl::OkStatus();
  }

  const Exchange& exchange() const { return exchange_; }
  const Times& times() const { return times_; }

 private:
  absl::StatusOr<double> Alone() {
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    const double start = Now();
    ENTRAIN_RETURN_IF_ERROR(exchange_.Start());
    ENTRAIN_RETURN_IF_ERROR(exchange_.Wait());
    double took = Now() - start;
    ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest({&took, 1}));
    return took;
  }

  absl::StatusOr<double> ComputeAlone() {
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    const double start = Now();
    sink_ = Compute(rounds_);
    double took = Now() - start;
    ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest({&took, 1}));
    return took;
  }

  Meeting& meeting_;
  Exchange& exchange_;
  int64_t rounds_ = 0;  // equal on all ranks: computed from the slowest rank's times
  volatile double sink_ = 0;
  Times times_;
};

absl::Status Print(const Options& options, const Case& measured,
                   const std::vector<Meter*>& meters) {
  std::printf("# %s of %lld bytes, %d ranks, %d calls; ms\n%-14s %10s %10s %10s %10s %10s\n",
              std::string(TitleOf(measured.collective)).c_str(),
              static_cast<long long>(measured.bytes), measured.ranks, options.calls, "# exchange",
              "alone", "compute", "together", "hidden", "slow-down");
  std::FILE* const file = options.json.empty() ? nullptr : std::fopen(options.json.c_str(), "we");
  if (!options.json.empty() && file == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("--json: cannot write \"", options.json, "\""));
  }
  for (const Meter* const meter : meters) {
    const Times& times = meter->times();
    const double alone = Median(times.alone), compute = Median(times.compute),
                 together = Median(times.together), inside = Median(times.inside);
    const double hidden =
        std::clamp((alone + compute - together) / std::min(alone, compute), 0.0, 1.0);
    const double slower = inside / compute - 1;
    std::printf("%-14s %10.3f %10.3f %10.3f %9.1f%% %9.1f%%\n", meter->exchange().name().c_str(),
                alone * 1e3, compute * 1e3, together * 1e3, hidden * 100, slower * 100);
    if (file != nullptr) {
      const nlohmann::ordered_json line{{"exchange", meter->exchange().name()},
                                        {"collective", std::string(TitleOf(measured.collective))},
                                        {"bytes", measured.bytes},
                                        {"ranks", measured.ranks},
                                        {"alone_us", alone * 1e6},
                                        {"compute_us", compute * 1e6},
                                        {"together_us", together * 1e6},
                                        {"hidden", hidden},
                                        {"slow_down", slower}};
      std::fprintf(file, "%s\n", line.dump().c_str());
    }
  }
  if (file != nullptr) {
    std::fclose(file);
  }
  return absl::OkStatus();
}

absl::StatusOr<CommPtr> MakeComm(entrain_runtime_t* runtime) {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime;
  config.timeout_ns = kTimeoutNs;
  entrain_comm_t* comm = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_create_from_env(&config, &comm)));
  return CommPtr(comm);
}

// Returns the bytes that a ring moves over each link.
int64_t RingBytes(const Case& measured) {
  const int64_t part = measured.bytes / measured.ranks * (measured.ranks - 1);
  return measured.collective == CallKind::kAllReduce ? 2 * part : part;
}

absl::Status CheckResult(Exchange& exchange, Meeting& meeting, const Case& measured, int rank,
                         const Buffers& buffers) {
  const Pattern pattern(measured);
  pattern.FillInput(rank, buffers.in());
  Pattern::Spoil(buffers.out(), measured.out_count() * SizeOf(measured.dtype));
  ENTRAIN_RETURN_IF_ERROR(meeting.Barrier());
  ENTRAIN_RETURN_IF_ERROR(exchange.Start());
  ENTRAIN_RETURN_IF_ERROR(exchange.Wait());
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t wrong,
                           meeting.Sum(pattern.CountWrong(rank, buffers.out())));
  return wrong == 0 ? absl::OkStatus()
                    : absl::DataLossError(absl::StrCat(wrong, " wrong elements"));
}

absl::Status MeasureAll(const Options& options, const Launch& launch) {
  entrain_runtime_config_t config;
  entrain_runtime_config_init(&config);
  config.transports = options.transport.c_str();
  entrain_runtime_t* made = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_runtime_create(&config, &made)));
  const RuntimePtr runtime(made);
  ENTRAIN_ASSIGN_OR_RETURN(CommPtr comm, MakeComm(runtime.get()));
  ENTRAIN_ASSIGN_OR_RETURN(EntrainSubject subject, EntrainSubject::Wrap(std::move(comm)));
  if (subject.size() < 2) {
    return absl::InvalidArgumentError("needs at least 2 ranks, under a launcher");
  }
  Case like = options.like;
  like.ranks = subject.size();
  const Case measured = Case::OfSize(like, options.like.bytes);
  ENTRAIN_ASSIGN_OR_RETURN(const auto meeting, subject.Meet(Waiting::kYield));
  ENTRAIN_ASSIGN_OR_RETURN(const Buffers buffers, Buffers::Allocate(measured.bytes));
  OfEntrain ours(subject.comm(), measured, buffers, subject.transport());
  ENTRAIN_ASSIGN_OR_RETURN(const auto bare,
                           MakeBare(subject, launch.store_url, RingBytes(measured)));
  ENTRAIN_RETURN_IF_ERROR(CheckResult(ours, *meeting, measured, subject.rank(), buffers));
  Meter of_ours(*meeting, ours), of_bare(*meeting, *bare);
  const std::vector<Meter*> meters{&of_ours, &of_bare};
  for (Meter* const meter : meters) {
    ENTRAIN_RETURN_IF_ERROR(meter->Prepare());
  }
  for (int i = 0; i < options.calls; ++i) {
    for (Meter* const meter : meters) {
      ENTRAIN_RETURN_IF_ERROR(meter->Once());
    }
  }
  if (subject.rank() == 0) {
    ENTRAIN_RETURN_IF_ERROR(Print(options, measured, meters));
  }
  return FromC(entrain_barrier(subject.comm(), nullptr, nullptr));
}

absl::Status Understand(const std::string& collective, const std::string& bytes, Options& options) {
  const auto known = CollectiveFromTitle(collective);
  if (known != CallKind::kAllReduce && known != CallKind::kReduceScatter &&
      known != CallKind::kAllGather) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--collective: \"", collective, "\" is not one of all_reduce, reduce_scatter, all_gather"));
  }
  options.like.collective = *known;
  const auto size = ParseSize(bytes);
  ENTRAIN_RETURN_IF_ERROR(Annotate(size.status(), "--bytes"));
  options.like.bytes = *size;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  std::string collective = "all_reduce", bytes = "16M";
  bool no_pin = false;
  CommandLine line(
      "How much of a collective hides behind equally long compute on the thread that started it, "
      "with no call into the library, and how much it slows the compute down; beside two threads "
      "that send and receive the same bytes over bare TCP sockets. Start it once a rank under any "
      "launcher: entrain-run -n 2 overlap_bench --transport tcp",
      "overlap_bench");
  line.Text("--transport", options.transport, "inproc excepted, as ENTRAIN_TRANSPORTS (tcp)");
  line.Text("--collective", collective, "all_reduce, reduce_scatter, all_gather (all_reduce)");
  line.Text("--bytes", bytes, "the larger buffer of a rank (16M)");
  line.Whole("--calls", options.calls, "of which the median counts (9)", 1, 10000);
  line.Flag("--no-pin", no_pin, "let a rank wander between cores, instead of one for each");
  line.Text("--json", options.json, "write the figures to FILE too");
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return *code;
  }
  absl::Status status = Understand(collective, bytes, options);
  const int code = status.ok() ? 1 : 2;
  if (status.ok()) {
    const auto launch = DetectLaunch([](const char* name) -> std::optional<std::string> {
      const char* const value = std::getenv(name);
      return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
    });
    status = launch.status();
    if (status.ok()) {
      if (!no_pin) {
        PinToCore(launch->rank);  // pins the threads of the library and of Bare too
      }
      status = MeasureAll(options, *launch);
    }
  }
  if (!status.ok()) {
    std::fprintf(stderr, "overlap_bench: %s\n", std::string(status.message()).c_str());
  }
  return status.ok() ? 0 : code;
}

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  return entrain::perf::Main(argc, argv);
}
