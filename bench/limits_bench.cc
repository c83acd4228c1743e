// limits_bench: measures limits of this machine, as bounds for the figures of a collective: copies,
// sums, an all_reduce in memory that two processes map, the kernel's copy between processes, a
// cache line that moves from core to core, and TCP over loopback. Bandwidths count delivered bytes.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lib/base/clock.h"
#include "lib/kernels/kernels.h"
#include "nlohmann/json.hpp"
#include "tools/command_line.h"
#include "tools/perf/cores.h"
#include "tools/perf/statistics.h"

namespace entrain::perf {
namespace {

constexpr unsigned kSecondsEach = 60;  // after this time the kernel ends a process of a measurement
constexpr int kSmallCalls = 50000;

struct Options {
  int repeats = 5;
  double budget_s = 0.05;
  std::vector<int64_t> sizes{64 << 10, 1 << 20, 16 << 20, 128 << 20};
  std::string json;
};

double Now() {
  return static_cast<double>(Clock::Real().Now()) * 1e-9;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "limits_bench: %s: %s\n", what, std::strerror(errno));
  _exit(1);
}

std::byte* Map(size_t bytes, int flags) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    Fail("mmap");
  }
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

// The memory that the two processes of a measurement share.
struct Shared {
  struct alignas(64) Side {
    std::atomic<uint32_t> step, ball;
    pid_t pid;
    double result;
  };
  Side sides[2];
};

class Pair {
 public:
  Pair(Shared& shared, int me) : own_(shared.sides[me]), other_(shared.sides[1 - me]) {
    own_.pid = getpid();
  }
  pid_t peer() const { return other_.pid; }
  // Waits until the other process also calls Meet. Release and acquire: each process then sees the
  // earlier writes of the other.
  void Meet() {
    own_.step.store(++step_, std::memory_order_release);
    while (static_cast<int32_t>(other_.step.load(std::memory_order_acquire) - step_) < 0) {
      Pause();
    }
  }
  // Sets the own `ball` to `turn`, and waits until the other process has answered with Return.
  void Serve(uint32_t turn) {
    own_.ball.store(turn, std::memory_order_release);
    while (other_.ball.load(std::memory_order_acquire) != turn) {
      Pause();
    }
  }
  void Return(uint32_t turn) {
    while (other_.ball.load(std::memory_order_acquire) != turn) {
      Pause();
    }
    own_.ball.store(turn, std::memory_order_release);
  }

 private:
  Shared::Side &own_, &other_;
  uint32_t step_ = 0;
};

// Runs body(me, pair) in `count` processes, each on a core of its own. Returns their results.
std::vector<double> RunOn(int count, const std::function<double(int, Pair&)>& body) {
  auto* const shared = new (Map(sizeof(Shared), MAP_SHARED)) Shared;
  std::vector<pid_t> pids;
  for (int me = 0; me < count; ++me) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(kSecondsEach);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // needed if the system lets only a parent read a
                                                  // process's memory
      PinToCore(me);
      Pair pair(*shared, me);
      if (count == 2) {
        pair.Meet();
      }
      const double result = body(me, pair);
      if (count == 2) {
        pair.Meet();
      }
      shared->sides[me].result = result;
      _exit(0);
    }
    pids.push_back(pid);
  }
  bool failed = false;
  for (const pid_t pid : pids) {
    int status = 0;
    failed = waitpid(pid, &status, 0) != pid || status != 0 || failed;
  }
  if (failed) {
    Fail("a process of the measurement failed");
  }
  std::vector<double> results;
  for (int me = 0; me < count; ++me) {
    results.push_back(shared->sides[me].result);
  }
  munmap(shared, sizeof(Shared));
  return results;
}

class Limits {
 public:
  explicit Limits(const Options& options) : options_(options) {
    if (!options.json.empty() && (json_ = std::fopen(options.json.c_str(), "we")) == nullptr) {
      std::perror("limits_bench: --json");
      std::exit(1);
    }
    std::printf("%-46s %10s %10s %10s\n", "# limit", "bytes", "median", "best");
  }
  ~Limits() {
    if (json_ != nullptr) {
      std::fclose(json_);
    }
  }
  void Memory(int64_t bytes);
  void Mapped(int64_t bytes);
  void KernelCopy(int64_t bytes);
  void Line();
  void Tcp();

 private:
  // Calls `measure` options_.repeats times and prints a row. If `unit` is not GB/s, the values are
  // times.
  void Row(const char* name, int64_t bytes, const char* unit,
           const std::function<double()>& measure);
  // Calls `once` repeatedly. Each call must move `bytes`. Returns the rate in GB/s.
  double Rate(int64_t bytes, const std::function<void()>& once) const;

  const Options& options_;
  const Kernels& kernels_ = BestKernels();
  std::FILE* json_ = nullptr;
};

void Limits::Row(const char* name, int64_t bytes, const char* unit,
                 const std::function<double()>& measure) {
  std::vector<double> values;
  for (int i = 0; i < options_.repeats; ++i) {
    values.push_back(measure());
  }
  const Sample sample(std::move(values));
  const bool time = unit[0] != 'G';
  const double median = sample.median(), best = time ? sample.least() : sample.most();
  std::printf("%-46s %10lld %10.3g %10.3g %s\n", name, static_cast<long long>(bytes), median, best,
              unit);
  std::fflush(stdout);
  if (json_ != nullptr) {
    const nlohmann::ordered_json line{
        {"limit", name}, {"bytes", bytes}, {"unit", unit}, {"median", median}, {"best", best}};
    std::fprintf(json_, "%s\n", line.dump().c_str());
  }
}

double Limits::Rate(int64_t bytes, const std::function<void()>& once) const {
  once();
  const double start = Now();
  double took = 0;
  int calls = 0;
  do {
    once();
    ++calls;
    took = Now() - start;
  } while (took < options_.budget_s);
  return static_cast<double>(bytes) * calls / took * 1e-9;
}

#if defined(__x86_64__)
// Uses stores that do not read the cache line first, and do not leave it in the cache.
__attribute__((target("avx"))) void SumPastCache(float* c, const float* a, const float* b,
                                                 size_t count) {
  for (size_t i = 0; i < count; i += 8) {
    _mm256_stream_ps(c + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
  }
  _mm_sfence();
}
#endif

void Limits::Memory(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const auto alone = [&](const std::function<void(std::byte*, std::byte*, std::byte*)>& once) {
    return RunOn(1, [&](int, Pair&) {
      std::byte *const a = Map(size, MAP_PRIVATE), *const b = Map(size, MAP_PRIVATE),
                       *const c = Map(size, MAP_PRIVATE);
      return Rate(bytes, [&] { once(a, b, c); });
    })[0];
  };
  Row("memcpy", bytes, "GB/s", [&] {
    return alone([&](std::byte* a, std::byte*, std::byte* c) { std::memcpy(c, a, size); });
  });
  Row("sum of f32, c = a + b", bytes, "GB/s", [&] {
    return alone([&](std::byte* a, std::byte* b, std::byte* c) {
      const void* sources[] = {a, b};
      kernels_.combine(ReduceOp::kSum, DType::kF32, c, sources, 2, bytes / 4, 1);
    });
  });
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx")) {
    Row("sum of f32, non-temporal stores", bytes, "GB/s", [&] {
      return alone([&](std::byte* a, std::byte* b, std::byte* c) {
        SumPastCache(reinterpret_cast<float*>(c), reinterpret_cast<float*>(a),
                     reinterpret_cast<float*>(b), size / 4);
      });
    });
  }
#endif
}

// Both processes map all inputs and results. Each process sums one half, and copies the other half
// from the other process's result.
void Limits::Mapped(int64_t bytes) {
  const size_t size = static_cast<size_t>(bytes), half = size / 2;
  Row("all_reduce of 2 ranks, all buffers mapped", bytes, "GB/s", [&] {
    std::byte* const in[2] = {Map(size, MAP_SHARED), Map(size, MAP_SHARED)};
    std::byte* const out[2] = {Map(size, MAP_SHARED), Map(size, MAP_SHARED)};
    // Both processes must make the same number of calls. So the number is computed from an assumed
    // rate of 6 GB/s.
    const int calls =
        std::max(3, static_cast<int>(options_.budget_s * 6e9 / static_cast<double>(bytes)));
    const double rate = RunOn(2, [&](int me, Pair& pair) {
      const size_t own = static_cast<size_t>(me) * half, other = half - own;
      const void* sources[] = {in[0] + own, in[1] + own};
      double start = 0;
      for (int i = -1; i < calls; ++i) {  // the first one warms up
        start = i == 0 ? Now() : start;
        pair.Meet();
        kernels_.combine(ReduceOp::kSum, DType::kF32, out[me] + own, sources, 2,
                         static_cast<int64_t>(half / 4), 1);
        pair.Meet();
        std::memcpy(out[me] + other, out[1 - me] + other, half);
      }
      return static_cast<double>(bytes) * calls / (Now() - start) * 1e-9;
    })[0];
    for (std::byte* const one : {in[0], in[1], out[0], out[1]}) {
      munmap(one, size);
    }
    return rate;
  });
}

void Limits::KernelCopy(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const auto measure = [&](bool both) {
    // After the fork, each process has its own copy of both arrays, at the same addresses.
    std::byte *const source = Map(size, MAP_PRIVATE), *const target = Map(size, MAP_PRIVATE);
    const std::vector<double> rates = RunOn(2, [&](int me, Pair& pair) {
      std::memset(source, me + 1, size);
      std::memset(target, 0, size);
      pair.Meet();
      if (me == 1 && !both) {
        return 0.0;
      }
      return Rate(bytes, [&] {
        for (size_t done = 0; done < size;) {
          const iovec here{target + done, size - done}, there{source + done, size - done};
          const ssize_t got = process_vm_readv(pair.peer(), &here, 1, &there, 1, 0);
          if (got <= 0) {
            Fail("process_vm_readv");
          }
          done += static_cast<size_t>(got);
        }
      });
    });
    munmap(source, size);
    munmap(target, size);
    return rates[0] + rates[1];
  };
  Row("process_vm_readv, one way", bytes, "GB/s", [&] { return measure(false); });
  Row("process_vm_readv, both ways, the sum", bytes, "GB/s", [&] { return measure(true); });
}

void Limits::Line() {
  Row("a line to the other core, one way", 64, "ns", [&] {
    return RunOn(2, [&](int me, Pair& pair) {
      const double start = Now();
      for (uint32_t turn = 1; turn <= kSmallCalls; ++turn) {
        me == 0 ? pair.Serve(turn) : pair.Return(turn);
      }
      return (Now() - start) / kSmallCalls / 2 * 1e9;
    })[0];
  });
}

// Connects two non-blocking sockets over loopback.
void Connect(int ends[2]) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, raw, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, raw, &length) != 0 || connect(ends[0], raw, length) != 0 ||
      (ends[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) < 0) {
    Fail("a socket of loopback");
  }
  close(listener);
  for (const int end : {ends[0], ends[1]}) {
    setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
}

// Sends `out` bytes and receives `in` bytes at the same time, by polling. A call of the socket
// moves at most `piece` bytes.
void Exchange(int socket, std::byte* memory, size_t piece, size_t out, size_t in) {
  while (out > 0 || in > 0) {
    const ssize_t sent = out > 0 ? send(socket, memory, std::min(out, piece), MSG_NOSIGNAL) : 0;
    const int send_error = errno;
    const ssize_t got = in > 0 ? recv(socket, memory + piece, std::min(in, piece), 0) : 0;
    if ((sent < 0 && send_error != EAGAIN) || (got < 0 && errno != EAGAIN) ||
        (got == 0 && in > 0)) {
      Fail("send and recv");
    }
    out -= static_cast<size_t>(std::max<ssize_t>(sent, 0));
    in -= static_cast<size_t>(std::max<ssize_t>(got, 0));
  }
}

void Limits::Tcp() {
  const auto between = [&](const std::function<double(int me, int socket, Pair&)>& body) {
    int ends[2];
    Connect(ends);
    const double result = RunOn(2, [&](int me, Pair& pair) { return body(me, ends[me], pair); })[0];
    close(ends[0]);
    close(ends[1]);
    return result;
  };
  Row("tcp over loopback, one way, both polling", 8, "us", [&] {
    return between([&](int me, int socket, Pair&) {
      std::byte memory[16];
      const int calls = kSmallCalls / 10;
      const double start = Now();
      for (int i = 0; i < calls; ++i) {
        Exchange(socket, memory, 8, me == 0 ? 8 : 0, me == 0 ? 0 : 8);
        Exchange(socket, memory, 8, me == 0 ? 0 : 8, me == 0 ? 8 : 0);
      }
      return (Now() - start) / calls / 2 * 1e6;
    });
  });
  constexpr size_t kPiece = 1 << 20, kWhole = 256 << 20;
  for (const bool both : {false, true}) {
    Row(both ? "tcp over loopback, both ways, the sum" : "tcp over loopback, one way", kWhole,
        "GB/s", [&] {
          return between([&](int me, int socket, Pair& pair) {
            std::byte* const memory = Map(2 * kPiece, MAP_PRIVATE);
            const size_t out = both || me == 0 ? kWhole : 0, in = both || me == 1 ? kWhole : 0;
            pair.Meet();
            const double start = Now();
            Exchange(socket, memory, kPiece, out, in);
            pair.Meet();
            return static_cast<double>(kWhole) * (both ? 2 : 1) / (Now() - start) * 1e-9;
          });
        });
  }
}

int Main(int argc, char** argv) {
  Options options;
  CommandLine line("What this machine gives at most: memory, two processes, TCP over loopback.",
                   "limits_bench");
  line.Whole("--repeats", options.repeats, "how often each is measured (5)", 1, 1000);
  line.Real("--budget", options.budget_s, "seconds a measurement (0.05)", 0, 60);
  line.Sizes("--sizes", options.sizes, "bytes, with commas (64K, 1M, 16M, 128M)", 128,
             int64_t{1} << 32);
  line.Text("--json", options.json, "write the figures to FILE too");
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return *code;
  }
  if (Cores() < 2) {
    std::fprintf(stderr, "limits_bench: needs two cores\n");
    return 1;
  }
  Limits limits(options);
  limits.Line();
  limits.Tcp();
  for (const int64_t size : options.sizes) {
    const int64_t bytes = size / 128 * 128;  // each half then has whole cache lines
    limits.Memory(bytes);
    limits.Mapped(bytes);
    limits.KernelCopy(bytes);
  }
  return 0;
}

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  return entrain::perf::Main(argc, argv);
}
