// entrain-run -n N [--] PROGRAM ARGS...: starts N ranks of a program on this machine, as torchrun
// does, and serves the store that they use. If one rank fails, entrain-run ends the other ranks, or
// restarts the rank (--elastic). --help has the details.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/comm/launch/launcher.h"
#include "lib/net/listener.h"
#include "lib/net/security.h"
#include "lib/store/prefix_store.h"
#include "lib/store/store.h"
#include "tools/job_key.h"
#include "tools/job_output.h"
#include "tools/launch_settings.h"
#include "tools/rank_process.h"
#include "tools/restarts.h"
#include <CLI/CLI.hpp>

namespace entrain {
namespace {

constexpr int kMostRanks = 4096, kMostRestarts = 1'000'000;
// After one rank has failed, the other ranks get this time to report their own errors and to end by
// themselves.
constexpr int64_t kLastWordsNs = 2 * kSecond;
constexpr int64_t kGraceNs = 5 * kSecond;  // between the request to end and the kill
// After all ranks have ended, the rest of their output is lost if nobody reads for this time. After
// a success the time is long, because a person may be reading the output page by page.
constexpr int64_t kReaderNs = 60 * kSecond, kReaderOfFailureNs = 2 * kSecond;
constexpr int64_t kAskStoreNs = kSecond;  // limit of a request to this process's own store
constexpr int kTimedOut = 124, kCannotRun = 127, kBadUsage = 2;

struct Options {
  int ranks = 0;
  std::string timeout;
  bool no_label = false;
  bool elastic = false;
  ElasticLimits limits;
  std::vector<std::string> program;
};

void Say(const std::string& text) {
  const std::string line = OwnLine(text);
  [[maybe_unused]] const ssize_t put = write(STDERR_FILENO, line.data(), line.size());
}

class Job {
 public:
  Job(const Options& options, Deadline deadline, std::shared_ptr<Store> store, Variables of_job,
      Fd signals, Guardian guardian)
      : options_(options),
        deadline_(deadline),
        store_(std::move(store)),
        of_job_(std::move(of_job)),
        signals_(std::move(signals)),
        guardian_(std::move(guardian)),
        restarts_(options.ranks, options.limits) {}

  absl::Status Start();
  // Runs until all ranks have ended. Returns the exit code.
  int Run();

 private:
  void WaitForNews();
  void TakeSignals();
  absl::StatusOr<RankProcess> StartOne(int rank);
  void Reap();
  // Handles the failures under --elastic, one after the other.
  void Replace(const std::vector<size_t>& failed);
  bool Restart(size_t rank);
  bool IsMember(size_t rank) const;
  bool MembersRun() const;
  bool Revives() const;
  void EndNewcomers();
  void Blame(size_t guilty, const std::string& why = "");
  void End(int signal, int code);
  void CheckTime();
  int Running() const;
  bool AllEnded() const { return Running() == 0; }

  const Options& options_;
  const Deadline deadline_;
  const std::shared_ptr<Store> store_;
  const Variables of_job_;
  const Fd signals_;
  const Guardian guardian_;
  Restarts restarts_;
  bool finished_ = false;  // a rank has exited with 0
  std::vector<RankProcess> ranks_;
  JobOutput output_;
  // The three steps of an early end, and the current one.
  enum class Ending { kNone, kLastWords, kAsked, kKilled };
  Ending ending_ = Ending::kNone;
  Deadline next_step_;  // time of the next step of the ending
  int code_ = 0;        // the job's exit code
};

Variables VariablesOf(int rank, int size, const Variables& of_job) {
  Variables all = {{"RANK", absl::StrCat(rank)},
                   {"WORLD_SIZE", absl::StrCat(size)},
                   {"LOCAL_RANK", absl::StrCat(rank)},
                   {"LOCAL_WORLD_SIZE", absl::StrCat(size)},
                   {"GROUP_RANK", "0"},
                   {"GROUP_WORLD_SIZE", "1"},
                   {"ROLE_RANK", absl::StrCat(rank)},
                   {"ROLE_WORLD_SIZE", absl::StrCat(size)},
                   {"ROLE_NAME", "default"},
                   {"MASTER_ADDR", "127.0.0.1"}};
  all.insert(all.end(), of_job.begin(), of_job.end());
  return all;
}

absl::StatusOr<RankProcess> Job::StartOne(int rank) {
  Variables all = VariablesOf(rank, options_.ranks, of_job_);
  // The value is empty if this job is not elastic. Otherwise a job inside an elastic job would
  // inherit the outer job's value.
  all.emplace_back(kRestarts, options_.elastic ? absl::StrCat(restarts_.count(rank)) : "");
  ENTRAIN_ASSIGN_OR_RETURN(RankProcess process, StartRank(options_.program, all));
  guardian_.Watch(process.pid);
  output_.Add(std::move(process.out), std::move(process.err),
              options_.no_label ? "" : absl::StrCat("[", rank, "] "));
  return process;
}

absl::Status Job::Start() {
  for (int i = 0; i < options_.ranks; ++i) {
    auto process = StartOne(i);
    if (!process.ok()) {
      End(SIGKILL, kCannotRun);
      Run();
      return process.status();
    }
    ranks_.push_back(*std::move(process));
  }
  return absl::OkStatus();
}

int Job::Run() {
  while (true) {
    Reap();
    if (AllEnded()) {
      break;
    }
    CheckTime();
    WaitForNews();
  }
  TakeSignals();  // clears the last ranks' SIGCHLD, which must not interrupt Finish
  output_.Finish(ending_ == Ending::kNone ? kReaderNs : kReaderOfFailureNs, signals_.get());
  return code_;
}

int Job::Running() const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(),
                                        [](const RankProcess& rank) { return !rank.ended; }));
}

void Job::WaitForNews() {
  std::vector<pollfd> waited{{signals_.get(), POLLIN, 0}};
  output_.Watch(&waited);
  const Deadline next = ending_ == Ending::kNone ? deadline_ : next_step_;
  const int64_t left_ms = next.Left(Clock::Real().Now()) / kMillisecond + 1;
  const bool for_ever = next.at_ns == Deadline::Never().at_ns;
  const int timeout = for_ever ? -1 : static_cast<int>(std::min<int64_t>(left_ms, 60'000));
  if (poll(waited.data(), waited.size(), timeout) <= 0) {
    return;
  }
  output_.Take(waited, 1);
  if (waited[0].revents != 0) {
    TakeSignals();
  }
}

void Job::TakeSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      continue;  // only wakes the loop, which checks every rank
    }
    const bool asked_before = ending_ >= Ending::kAsked;
    output_.Say(absl::StrCat("got ", SignalName(signal), asked_before ? ", killing" : ", ending",
                             " all ranks"));
    End(asked_before ? SIGKILL : signal, 128 + signal);
  }
}

void Job::Reap() {
  std::vector<size_t> failed;
  bool any = false;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RankProcess& process = ranks_[i];
    if (!ReapRank(&process)) {
      continue;
    }
    any = true;
    guardian_.Forget(process.pid);
    if (process.Failed()) {
      failed.push_back(i);
    } else {
      finished_ = true;
    }
  }
  if (!any || ending_ != Ending::kNone) {
    return;
  }
  // If several ranks have ended at once, a rank that was killed is the likelier cause: ranks that
  // lose a peer exit by themselves.
  std::stable_partition(failed.begin(), failed.end(),
                        [this](size_t i) { return ranks_[i].signal != 0; });
  if (options_.elastic) {
    Replace(failed);
    EndNewcomers();
  } else if (!failed.empty()) {
    Blame(failed.front());
  }
}

void Job::Replace(const std::vector<size_t>& failed) {
  for (const size_t i : failed) {
    const auto decision = restarts_.OnFailure(static_cast<int>(i), {.running = Running(),
                                                                    .members = MembersRun(),
                                                                    .revives = Revives(),
                                                                    .finished = finished_,
                                                                    .joined = IsMember(i)});
    if (decision.verdict == Restarts::Verdict::kEnd) {
      Blame(i, decision.text);
      return;
    }
    output_.Say(absl::StrCat("rank ", i, " (pid ", ranks_[i].pid, ") ", HowItEnded(ranks_[i]), "; ",
                             decision.text));
    if (decision.verdict == Restarts::Verdict::kRestart && !Restart(i)) {
      return;
    }
  }
}

bool Job::Restart(size_t rank) {
  auto process = StartOne(static_cast<int>(rank));
  if (!process.ok()) {
    Blame(rank, absl::StrCat("it cannot be restarted: ", process.status().message()));
    return false;
  }
  ranks_[rank] = *std::move(process);
  return true;
}

// Returns true if the process that now runs as this rank has got a communicator.
bool Job::IsMember(size_t rank) const {
  const int number = static_cast<int>(rank);
  const auto said = store_->TryGet(MemberKey(number), {Deadline::After(kAskStoreNs)});
  return said.ok() && *said == absl::StrCat(restarts_.count(number));
}

bool Job::MembersRun() const {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].ended && IsMember(i)) {
      return true;
    }
  }
  return false;
}

// Returns true if a rank has said that its program continues when all ranks were lost.
bool Job::Revives() const {
  return store_->TryGet("revives", {Deadline::After(kAskStoreNs)}).ok();
}

// Ends newcomers that still wait: after the ranks have finished, no rank takes them in.
void Job::EndNewcomers() {
  if (ending_ != Ending::kNone || !finished_ || AllEnded() || MembersRun()) {
    return;
  }
  output_.Say(absl::StrCat("the ranks have finished; ending ", Running(),
                           " restarted ranks that they did not take in"));
  ending_ = Ending::kLastWords;
  next_step_ = Deadline::After(kLastWordsNs);
}

void Job::Blame(size_t guilty, const std::string& why) {
  const RankProcess& process = ranks_[guilty];
  output_.Say(absl::StrCat("rank ", guilty, " (pid ", process.pid, ") ", HowItEnded(process),
                           why.empty() ? "" : "; ", why,
                           AllEnded() ? "" : "; ending the other ranks"));
  code_ = process.signal != 0 ? 128 + process.signal : process.code;
  ending_ = Ending::kLastWords;
  next_step_ = Deadline::After(kLastWordsNs);
}

void Job::End(int signal, int code) {
  if (ending_ == Ending::kNone) {
    code_ = code;
  }
  ending_ = signal == SIGKILL ? Ending::kKilled : Ending::kAsked;
  next_step_ = signal == SIGKILL ? Deadline::Never() : Deadline::After(kGraceNs);
  for (const RankProcess& rank : ranks_) {
    SignalRank(rank, signal);
    SignalRank(rank, SIGCONT);  // a stopped process would not notice
  }
}

void Job::CheckTime() {
  const int64_t now = Clock::Real().Now();
  if (ending_ == Ending::kNone) {
    if (deadline_.Passed(now)) {
      output_.Say(absl::StrCat("the time of ", options_.timeout, " is up; ending all ranks"));
      End(SIGTERM, kTimedOut);
    }
  } else if (next_step_.Passed(now)) {
    End(ending_ == Ending::kLastWords ? SIGTERM : SIGKILL, code_);
  }
}

// Blocks the signals for which the job waits, in this thread and in threads started later. Returns
// the descriptor that reads them.
absl::StatusOr<Fd> TakeOverSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set, one);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "signalfd");
  }
  return fd;
}

// Returns a port that was free a moment ago. It is for torch's own store, in case the ranks use
// torch.
absl::StatusOr<uint16_t> FreePort() {
  ENTRAIN_ASSIGN_OR_RETURN(const Address loopback, Address::FromHost("127.0.0.1", 0));
  ENTRAIN_ASSIGN_OR_RETURN(const Listener listener, OpenListener(loopback, PortRange{}));
  return listener.address.port();
}

// Returns the part of the store in which the ranks will work. It depends on variables that they
// inherit, such as ENTRAIN_RUN_ID.
std::shared_ptr<Store> PartOfRanks(std::shared_ptr<Store> store, const Options& options,
                                   const Variables& of_job) {
  const Variables given = VariablesOf(0, options.ranks, of_job);
  const auto launch = DetectLaunch([&](const char* name) {
    const auto found = std::find_if(given.begin(), given.end(),
                                    [&](const auto& variable) { return variable.first == name; });
    return found == given.end() ? GetEnv(name) : std::optional<std::string>(found->second);
  });
  const std::string prefix = launch.ok() ? StartPrefix(*launch) : "";
  return prefix.empty() ? store : WithPrefix(std::move(store), prefix);
}

absl::StatusOr<int> RunJob(const Options& options) {
  Deadline deadline;
  if (!options.timeout.empty()) {
    auto timeout = ParseDuration(options.timeout);
    if (!timeout.ok()) {
      return Annotate(timeout.status(), "--timeout");
    }
    deadline = Deadline::After(*timeout);
  }
  // Must run before any thread exists: the guardian is a plain fork, and threads inherit the
  // blocked signals.
  ENTRAIN_ASSIGN_OR_RETURN(Fd signals, TakeOverSignals());
  ENTRAIN_ASSIGN_OR_RETURN(Guardian guardian, Guardian::Start());
  ENTRAIN_ASSIGN_OR_RETURN(const JobKey key, MakeJobKey());
  ENTRAIN_ASSIGN_OR_RETURN(const Security security, LoadSecurity({key.path, {}}));
  ENTRAIN_ASSIGN_OR_RETURN(const auto store, ServeStore("tcp://127.0.0.1:0", security));
  ENTRAIN_ASSIGN_OR_RETURN(const uint16_t master_port, FreePort());
  const Variables of_job = {{"MASTER_PORT", absl::StrCat(master_port)},
                            {"ENTRAIN_STORE", store->url()},
                            {"ENTRAIN_KEY_FILE", key.path}};
  Job job(options, deadline, PartOfRanks(store, options, of_job), of_job, std::move(signals),
          std::move(guardian));
  ENTRAIN_RETURN_IF_ERROR(job.Start());
  return job.Run();
}

constexpr char kDescription[] =
    R"(Starts N ranks of PROGRAM on this machine and serves the store in which they meet.

Each rank gets the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
MASTER_ADDR, MASTER_PORT, ...) and ENTRAIN_STORE, and an empty standard input. Output comes out line by
line, each line behind its rank: "[3] text". ENTRAIN_* variables are passed on to the ranks, ENTRAIN_STORE excepted. A
warning names one that does not exist; most values that no rank could take are refused before any rank is started. Where ENTRAIN_KEY_FILE is
not set, the job gets a random key of its own, which keeps other users out of its store and from its ranks.

Ranks whose output nobody reads wait as soon as 1 MiB is left unread; the time limit and the ending of ranks do not. If the
reader of standard output goes away (| head), the ranks go on and their output is dropped. A line on standard error says
at the end how many bytes and lines were dropped, and why. The exit code does not change.

If a rank fails, the others have 2 s for their last words: to report what they saw of it and end by themselves. Those
that are left are asked to end (SIGTERM), and killed 5 s later. SIGINT, SIGTERM and SIGHUP are passed on to the ranks at
once; a second one kills them. What the ranks started is ended with them.

With --elastic, a rank that fails is restarted while the others go on. ENTRAIN_RESTARTS tells a process how often its rank
was restarted. In a restarted process entrain_comm_create_from_env joins the communicator of the others, as soon as they
call entrain_comm_grow; they learn of the failure by their calls, and call entrain_comm_shrink. The store is in
entrain-run, so any rank may fail. Not covered, so that the job ends as without --elastic: a failure while no other running
rank has its communicator, unless the program sets the key "revives" in the store to say that its restarted ranks continue
by themselves, as entrain-train does with --save-dir; a failure after another rank has exited with 0, except of a restarted rank that has no communicator yet; and what
--max-restarts and --min-ranks exclude. Restarted ranks that still wait when all others have finished are ended, and the job
has succeeded.)";

constexpr char kFooter[] =
    R"(Exit code: 0 when every rank exits with 0; otherwise that of the rank that failed first (with --elastic: first
without being covered), 128 + the signal's number when a signal killed it; 124 when the time was up; 127 when PROGRAM cannot be run; 2 for wrong options and
ENTRAIN_* variables.)";

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string name) const override {
    return absl::StrCat("Usage: ", name,
                        " -n N [--timeout TIME] [--no-label] [--elastic [--max-restarts R] "
                        "[--min-ranks M]] [--] PROGRAM [ARGS...]\n");
  }
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(kDescription, "entrain-run");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.set_version_flag("--version", "entrain-run " ENTRAIN_PROGRAM_VERSION, "print the version");
  app.add_option("-n,--ranks", options.ranks, "how many ranks to start")
      ->required()
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--timeout", options.timeout, "end everything after TIME: 90, 90s, 5m, 1h");
  app.add_flag("--no-label", options.no_label, "print the lines as they are, without their ranks");
  CLI::Option* const elastic =
      app.add_flag("--elastic", options.elastic, "restart ranks that fail, while the others go on");
  app.add_option("--max-restarts", options.limits.max_restarts,
                 "how often each rank is restarted; a rank that fails once more stays away "
                 "(default 3)")
      ->check(CLI::Range(0, kMostRestarts))
      ->needs(elastic);
  app.add_option(
         "--min-ranks", options.limits.min_ranks,
         "how many ranks must run, the restarted one included, for the job to go on after a "
         "failure (default 1)")
      ->check(CLI::Range(1, kMostRanks))
      ->needs(elastic);
  app.prefix_command();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;
  }
  if (options.limits.min_ranks > options.ranks) {
    Say(absl::StrCat("--min-ranks: ", options.limits.min_ranks, " is more than the ", options.ranks,
                     " ranks of -n"));
    return kBadUsage;
  }
  options.program = app.remaining();
  if (!options.program.empty() && options.program.front() == "--") {
    options.program.erase(options.program.begin());
  }
  if (options.program.empty()) {
    Say("no PROGRAM given; see entrain-run --help");
    return kBadUsage;
  }
  if (const absl::Status settings = CheckLaunchSettings(); !settings.ok()) {
    Say(std::string(settings.message()));
    return kBadUsage;
  }
  const auto code = RunJob(options);
  if (!code.ok()) {
    Say(std::string(code.status().message()));
    return absl::IsInvalidArgument(code.status()) ? kBadUsage : kCannotRun;
  }
  return *code;
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  return entrain::Main(argc, argv);
}
