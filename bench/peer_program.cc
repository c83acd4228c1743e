#include "bench/peer_program.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <utility>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "tools/command_line.h"
#include "tools/perf/cores.h"
#include "tools/perf/measure.h"
#include "tools/perf/meeting.h"
#include "tools/perf/report.h"

namespace entrain::perf {
namespace {

constexpr int kFailed = 1, kBadUsage = 2, kTimedOut = 124;
constexpr int64_t kGraceNs = 3 * kSecond;  // time for a launcher to end its ranks

struct Options {
  Case like;
  int64_t min_bytes = 8, max_bytes = 64 << 20;
  int factor = 4;
  std::vector<std::string> algorithms;
  double budget_s = 0.15;
  int timeout_s = 60;
  std::string json;
  bool append = false;
  std::string page;  // launched ranks only: name of the SharedPage of all ranks
};

class Program {
 public:
  Program(Peer& peer, const Options& options, std::vector<std::string> command)
      : peer_(peer), options_(options), command_(std::move(command)) {}

  // If one algorithm fails, the other algorithms are still measured.
  int RunAll() {
    sigemptyset(&child_);
    sigaddset(&child_, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_, nullptr);
    if (!options_.json.empty() && !options_.append) {
      std::remove(options_.json.c_str());
    }
    int code = 0;
    for (const std::string& algorithm : options_.algorithms) {
      const int one = RunOne(algorithm);
      code = code != 0 ? code : one;
    }
    return code;
  }

  int RunLaunchedRank() {
    const auto page = SharedPage::Open(options_.page, options_.like.ranks);
    return page.ok() ? RunRank(options_.algorithms[0], peer_.LaunchedRank(), *page)
                     : Say(page.status());
  }

 private:
  int Say(const absl::Status& status) const {
    std::fprintf(stderr, "%s: %s\n", peer_.name(), std::string(status.message()).c_str());
    return kFailed;
  }

  absl::Status MeasureRank(const std::string& algorithm, int rank, const SharedPage& page) {
    const int ranks = options_.like.ranks;
    const bool crowded = ranks > Cores();
    Waiting waiting = crowded ? Waiting::kYield : Waiting::kSpin;
    if (peer_.HasThreads(algorithm)) {
      waiting = Waiting::kSleep;
    } else {
      PinToCore(rank);  // first, so that the library's threads are pinned too
    }
    const auto meeting = page.Join(rank, waiting, nullptr);
    ENTRAIN_ASSIGN_OR_RETURN(const Report report,
                             Report::Open(rank == 0 ? options_.json : "", true, true));
    const std::vector<Case> cases =
        Case::Sweep(options_.like, options_.min_bytes, options_.max_bytes, options_.factor);
    ENTRAIN_ASSIGN_OR_RETURN(const Buffers buffers, Buffers::Allocate(cases.back().bytes));
    ENTRAIN_ASSIGN_OR_RETURN(std::unique_ptr<Subject> subject, peer_.Join(algorithm, rank, ranks));
    if (rank == 0) {
      report.Head({peer_.name(), meeting->place(), options_.budget_s}, options_.like,
                  subject->transport());
    }
    const absl::Status status = MeasureCases(*subject, *meeting, report, cases, buffers);
    if (!status.ok()) {
      (void)subject.release();  // its destructor could wait for other ranks; the process ends now
    }
    return status;
  }

  absl::Status MeasureCases(Subject& subject, Meeting& meeting, const Report& report,
                            const std::vector<Case>& cases, const Buffers& buffers) {
    int64_t wrong = 0;
    for (const Case& one : cases) {
      ENTRAIN_ASSIGN_OR_RETURN(const Figures figures,
                               Measure(subject, meeting, one, buffers, options_.budget_s));
      wrong += std::max<int64_t>(figures.wrong, 0);
      if (subject.rank() == 0) {
        ENTRAIN_RETURN_IF_ERROR(
            report.Add(one, subject.transport(), subject.algorithm(one), figures));
      }
    }
    ENTRAIN_RETURN_IF_ERROR(meeting.Barrier());
    return wrong == 0 ? absl::OkStatus()
                      : absl::DataLossError(absl::StrCat(wrong, " wrong elements"));
  }

  int RunRank(const std::string& algorithm, int rank, const SharedPage& page) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    absl::Status status;
    try {
      status = MeasureRank(algorithm, rank, page);
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
    return status.ok() ? 0 : Say(Annotate(status, absl::StrCat(algorithm, ", rank ", rank)));
  }

  int RunOne(const std::string& algorithm) {
    auto page = SharedPage::Create(options_.like.ranks);
    if (!page.ok()) {
      return Say(page.status());
    }
    const std::vector<std::string> launcher = peer_.Launcher(algorithm, options_.like.ranks);
    std::vector<pid_t> started;
    if (!launcher.empty()) {
      started.push_back(Launch(launcher, algorithm, page->Name()));
    } else {
      peer_.BeforeRanks(options_.like.ranks);
      for (int rank = 0; rank < options_.like.ranks; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) {
          const int code = RunRank(algorithm, rank, *page);
          std::fflush(nullptr);
          _exit(code);  // runs no destructors: the objects are the parent's
        }
        started.push_back(pid);
      }
    }
    const int code = WaitForAll(started, !launcher.empty());
    if (code == kTimedOut) {
      Say(absl::DeadlineExceededError(
          absl::StrCat(algorithm, " did not end within ", options_.timeout_s, " s")));
    }
    return code;
  }

  pid_t Launch(std::vector<std::string> command, const std::string& algorithm,
               const std::string& page) const {
    command.insert(command.end(), command_.begin(), command_.end());
    // These options come after those of the user, because the last of two equal options counts.
    command.insert(command.end(), {"--algorithm", algorithm, "--page", page});
    std::vector<char*> pointers;
    for (std::string& word : command) {
      pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      setpgid(0, 0);
      sigprocmask(SIG_UNBLOCK, &child_, nullptr);
      execvp(pointers[0], pointers.data());
      std::fprintf(stderr, "%s: cannot run %s\n", peer_.name(), pointers[0]);
      _exit(kFailed);
    }
    return pid;
  }

  // Returns 0 if all processes succeed. If a process fails or the time is up, kills the remaining
  // ranks. A launcher is asked to end (SIGTERM), and killed after kGraceNs.
  int WaitForAll(const std::vector<pid_t>& started, bool launcher) const {
    Deadline end = Deadline::After(options_.timeout_s * kSecond);
    int code = 0, signal = launcher ? SIGTERM : SIGKILL;
    for (size_t left = started.size(); left > 0;) {
      int status = 0;
      const pid_t ended = waitpid(-1, &status, WNOHANG);
      left -= ended > 0 ? 1 : 0;
      const int64_t rest = end.Left(Clock::Real().Now());
      if ((ended > 0 && status != 0 && code == 0) || rest <= 0) {
        code = code != 0 ? code : ended > 0 ? kFailed : kTimedOut;
        for (const pid_t pid : started) {
          kill(launcher ? -pid : pid, signal);
        }
        signal = SIGKILL;
        end = Deadline::After(kGraceNs);
      } else if (ended <= 0) {
        const timespec time{static_cast<time_t>(rest / kSecond), static_cast<long>(rest % kSecond)};
        sigtimedwait(&child_, nullptr, &time);
      }
    }
    return code;
  }

  Peer& peer_;
  const Options& options_;
  const std::vector<std::string> command_;  // this program's own command line
  sigset_t child_{};
};

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

std::vector<std::string> Collectives(const Peer& peer) {
  std::vector<std::string> names;
  for (const CallKind collective : kMeasured) {
    if (!peer.Algorithms(collective).empty()) {
      names.emplace_back(TitleOf(collective));
    }
  }
  return names;
}

absl::Status Understand(const Peer& peer, const std::string& collective,
                        const std::string& algorithms, Options& options) {
  const auto known = CollectiveFromTitle(collective);
  if (!known.has_value() || peer.Algorithms(*known).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "COLLECTIVE: \"", collective, "\" is not one of ", absl::StrJoin(Collectives(peer), ", ")));
  }
  options.like.collective = *known;
  options.algorithms = peer.Algorithms(*known);
  if (algorithms.empty()) {
    return absl::OkStatus();
  }
  const std::vector<std::string> all =
      std::exchange(options.algorithms, absl::StrSplit(algorithms, ','));
  for (const std::string& name : options.algorithms) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--algorithm: \"", name, "\" is none of ", absl::StrJoin(all, ", ")));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int RunPeer(Peer& peer, int argc, char** argv) {
  Options options;
  std::string collective, algorithms, min_bytes = "8", max_bytes = "64M";
  CommandLine line(peer.about(), peer.name());
  line.RequiredText("collective", collective, absl::StrJoin(Collectives(peer), ", "));
  line.RequiredWhole("-n,--ranks", options.like.ranks, "ranks to start", 2, 64);
  line.Text("--min-bytes", min_bytes, "smallest size (8)");
  line.Text("--max-bytes", max_bytes, "largest size (64M)");
  line.Whole("--factor", options.factor, "from one size to the next (4)", 2, 1 << 20);
  line.Text(
      "--algorithm", algorithms,
      absl::StrCat("which, with commas; all_reduce: ",
                   absl::StrJoin(peer.Algorithms(CallKind::kAllReduce), ", "), " (all of them)"));
  peer.AddOptions(line);
  line.Real("--budget", options.budget_s, "seconds of timed calls a size (0.15)", 0, 3600);
  line.Whole("--timeout", options.timeout_s, "seconds an algorithm may take (60)", 1, 3600);
  line.Text("--json", options.json, "write the figures to FILE too");
  line.Flag("--append", options.append, "add to the file of --json");
  line.Hidden("--page", options.page);
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return *code;
  }
  absl::Status understood = UnderstandSizes(min_bytes, max_bytes, options);
  understood.Update(Understand(peer, collective, algorithms, options));
  if (!understood.ok()) {
    std::fprintf(stderr, "%s: %s\n", peer.name(), std::string(understood.message()).c_str());
    return kBadUsage;
  }
  Program program(peer, options, std::vector<std::string>(argv, argv + argc));
  return options.page.empty() ? program.RunAll() : program.RunLaunchedRank();
}

}  // namespace entrain::perf
