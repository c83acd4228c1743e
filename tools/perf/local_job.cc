#include "tools/perf/local_job.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tools/job_key.h"
#include "tools/labelled_output.h"
#include "tools/outlet.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/measure_rank.h"
#include "tools/perf/tune_rank.h"
#include "tools/rank_process.h"

namespace entrain::perf {
namespace {

constexpr int kFailed = 1;
constexpr int64_t kGraceNs = 2 * kSecond;  // between the request to end and the kill
// If nobody reads for this time after the ranks have ended, the rest of their output is lost.
constexpr int64_t kReaderNs = 60 * kSecond;

void Say(absl::string_view text) {
  std::fprintf(stderr, "entrain-perf: %s\n", std::string(text).c_str());
}

// ---- Threads

int RunThreads(const Options& options, int number) {
  entrain_store_t* opened = nullptr;
  const std::string url = absl::StrCat("mem:entrain-perf-", number);
  const absl::Status made = FromC(entrain_store_open(url.c_str(), 0, &opened));
  if (!made.ok()) {
    Say(made.message());
    return kFailed;
  }
  const StorePtr store(opened);
  std::vector<absl::Status> results(static_cast<size_t>(options.local_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.local_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const RankPlace place{store.get(), rank, options.local_ranks};
      results[static_cast<size_t>(rank)] =
          options.tune.empty() ? MeasureRank(options, place) : TuneRank(options, place);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::set<std::string> told;
  bool failed = false;
  for (const absl::Status& result : results) {
    failed = failed || !result.ok();
    if (!result.ok() && !absl::IsAborted(result) &&
        told.insert(std::string(result.message())).second) {
      Say(result.message());
    }
  }
  return failed ? kFailed : 0;
}

// ---- Processes

class ProcessJob {
 public:
  explicit ProcessJob(const Fd& signals) : signals_(signals) {}

  int Run(const std::vector<std::string>& arguments, const Options& options,
          const std::string& transport);

 private:
  struct Rank {
    RankProcess process;
    LabelledOutput out;
    std::string errors;
  };
  absl::Status Start(const std::vector<std::string>& arguments, const Options& options,
                     const std::string& transport, const char* store);
  bool AllEnded() const;
  void Wait();
  void TakeOutput(Rank& rank);
  void TakeErrors(Rank& rank);
  void TakeSignals();
  void Reap();
  void End(int signal);

  const Fd& signals_;
  Outlet out_{STDOUT_FILENO};
  std::vector<Rank> ranks_;
  std::set<std::string> told_;
  int code_ = 0;
  bool ending_ = false, killed_ = false;
  Deadline kill_at_;
};

absl::Status ProcessJob::Start(const std::vector<std::string>& arguments, const Options& options,
                               const std::string& transport, const char* store) {
  for (int rank = 0; rank < options.local_ranks; ++rank) {
    // These options must come right after the program's name, because later arguments may include
    // "--".
    std::vector<std::string> command{arguments[0], absl::StrCat("--local-rank=", rank),
                                     absl::StrCat("--local-store=", store)};
    if (!transport.empty()) {
      command.push_back(absl::StrCat("--local-transport=", transport));
    }
    if (!options.json.empty()) {
      command.push_back("--append");
    }
    command.insert(command.end(), arguments.begin() + 1, arguments.end());
    ENTRAIN_ASSIGN_OR_RETURN(RankProcess process, StartRank(command, {}));
    ranks_.push_back({std::move(process), LabelledOutput(&out_, ""), ""});
  }
  return absl::OkStatus();
}

int ProcessJob::Run(const std::vector<std::string>& arguments, const Options& options,
                    const std::string& transport) {
  entrain_store_t* served = nullptr;
  absl::Status status = FromC(entrain_store_serve("tcp://127.0.0.1:0", &served));
  const StorePtr store(served);
  if (status.ok()) {
    status = Start(arguments, options, transport, entrain_store_url(store.get()));
  }
  if (!status.ok()) {
    Say(status.message());
    code_ = kFailed;
    End(SIGKILL);
  }
  while (true) {
    Reap();
    if (AllEnded()) {
      break;
    }
    if (ending_ && !killed_ && kill_at_.Passed(Clock::Real().Now())) {
      killed_ = true;
      End(SIGKILL);
    }
    Wait();
  }
  for (Rank& rank : ranks_) {
    TakeOutput(rank);
    rank.out.Finish();
    TakeErrors(rank);
  }
  TakeSignals();  // clears the last ranks' SIGCHLD, which must not interrupt Drain
  if (!out_.Drain(kReaderNs, signals_.get())) {
    Say(absl::StrCat("nobody reads standard output; ", out_.waiting(), " bytes of it are lost"));
  }
  return code_;
}

bool ProcessJob::AllEnded() const {
  for (const Rank& rank : ranks_) {
    if (!rank.process.ended) {
      return false;
    }
  }
  return true;
}

void ProcessJob::Wait() {
  std::vector<pollfd> waited{{signals_.get(), POLLIN, 0}, {out_.progress_fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    // poll ignores negative descriptors: streams that have ended, or that must wait until the
    // output was read.
    waited.push_back({out_.full() ? -1 : rank.process.out.get(), POLLIN, 0});
    waited.push_back({rank.process.err.get(), POLLIN, 0});
  }
  const int timeout = ending_ && !killed_
                          ? static_cast<int>(kill_at_.Left(Clock::Real().Now()) / kMillisecond + 1)
                          : -1;
  if (poll(waited.data(), waited.size(), timeout) <= 0) {
    return;
  }
  out_.ForgetProgress();
  for (Rank& rank : ranks_) {
    if (!out_.full()) {
      TakeOutput(rank);
    }
    TakeErrors(rank);
  }
  TakeSignals();
}

template <typename Take>
void Drain(Fd& from, Take take) {
  char buffer[16 << 10];
  while (from.valid()) {
    const ssize_t got = read(from.get(), buffer, sizeof(buffer));
    if (got > 0) {
      take(absl::string_view(buffer, static_cast<size_t>(got)));
    } else if (got == 0) {
      from.Reset();
    } else if (errno != EINTR) {
      return;  // nothing more to read now
    }
  }
}

void ProcessJob::TakeOutput(Rank& rank) {
  Drain(rank.process.out, [&](absl::string_view text) { rank.out.Add(text); });
}

// Prints each error line once, since the ranks mostly report the same error.
void ProcessJob::TakeErrors(Rank& rank) {
  Drain(rank.process.err,
        [&](absl::string_view text) { rank.errors.append(text.data(), text.size()); });
  while (true) {
    const size_t end = rank.errors.find('\n');
    if (end == std::string::npos) {
      return;
    }
    const std::string line = rank.errors.substr(0, end);
    rank.errors.erase(0, end + 1);
    if (told_.insert(line).second) {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  }
}

void ProcessJob::TakeSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) {
      code_ = 128 + signal;
      End(ending_ ? SIGKILL : signal);
    }
  }
}

void ProcessJob::Reap() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RankProcess& process = ranks_[i].process;
    if (!ReapRank(&process) || !process.Failed()) {
      continue;
    }
    if (process.signal != 0 && !ending_) {
      Say(absl::StrCat("rank ", i, " (pid ", process.pid, ") ", HowItEnded(process),
                       "; ending the other ranks"));
    }
    code_ = code_ != 0 ? code_ : process.code != 0 ? process.code : kFailed;
    if (!ending_) {
      End(0);
    }
  }
}

// Signal 0 sends nothing: the ranks then get time to notice the failure and to report their own
// errors.
void ProcessJob::End(int signal) {
  if (!ending_) {
    ending_ = true;
    kill_at_ = Deadline::After(kGraceNs);
  }
  for (const Rank& rank : ranks_) {
    SignalRank(rank.process, signal);
    SignalRank(rank.process, SIGCONT);  // a stopped process would not notice
  }
}

// Blocks the signals for which a job waits, in this thread and in threads started later. Returns
// the descriptor that reads them.
absl::StatusOr<Fd> TakeOverSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set, one);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "signalfd");
  }
  return fd;
}

std::string OwnPath(const std::string& otherwise) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length > 0 && length < static_cast<ssize_t>(sizeof(path))
             ? std::string(path, static_cast<size_t>(length))
             : otherwise;
}

}  // namespace

int RunLocalJobs(const Options& options, const std::vector<std::string>& arguments) {
  if (!options.json.empty()) {
    // Opens the file once here, to empty it. The jobs append to it.
    std::FILE* const file = std::fopen(options.json.c_str(), options.append ? "ae" : "we");
    if (file == nullptr) {
      Say(ErrnoStatus(errno, absl::StrCat("--json: cannot write \"", options.json, "\""))
              .message());
      return kFailed;
    }
    std::fclose(file);
  }
  std::vector<std::string> command = arguments;
  command[0] = OwnPath(arguments[0]);
  // The key keeps other users out of ranks and store, as in entrain-run.
  const absl::StatusOr<JobKey> key = MakeJobKey();
  if (!key.ok()) {
    Say(key.status().message());
    return kFailed;
  }
  setenv("ENTRAIN_KEY_FILE", key->path.c_str(), 1);
  Fd signals;
  int number = 0;
  for (const std::string& transport : options.transports) {
    int code = 0;
    if (transport == "inproc") {
      Options of_job = options;
      of_job.transports = {transport};
      of_job.append = true;
      code = RunThreads(of_job, ++number);
    } else {
      if (!signals.valid()) {
        auto taken = TakeOverSignals();
        if (!taken.ok()) {
          Say(taken.status().message());
          return kFailed;
        }
        signals = *std::move(taken);
      }
      code = ProcessJob(signals).Run(command, options, transport);
    }
    if (code != 0) {
      return code;
    }
  }
  return 0;
}

}  // namespace entrain::perf
