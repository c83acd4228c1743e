#include "tools/rank_process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

extern char** environ;

namespace entrain {
namespace {

struct Pipe {
  Fd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "cannot create a pipe");
  }
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const Variables& variables) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const absl::string_view entry(*at);
    bool replaced = false;
    for (const auto& [name, value] : variables) {
      replaced |= entry.substr(0, entry.find('=')) == name;
    }
    if (!replaced) {
      all.emplace_back(entry);
    }
  }
  for (const auto& [name, value] : variables) {
    all.push_back(absl::StrCat(name, "=", value));
  }
  return all;
}

void UnblockSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
}

// Runs between fork and exec in a process with threads, so it only makes system calls. Never
// returns.
[[noreturn]] void BecomeRank(pid_t parent, int empty, const Pipe& out, const Pipe& err, int failure,
                             char** arguments, char** environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(1);  // the parent died before the line above
  }
  UnblockSignals();
  if (dup2(empty, 0) >= 0 && dup2(out.write.get(), 1) >= 0 && dup2(err.write.get(), 2) >= 0) {
    execvpe(arguments[0], arguments, environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t put = write(failure, &error, sizeof(error));
  _exit(127);
}

struct NamedSignal {
  int signal;
  const char* name;
};

// The signals that end a process. (sigabbrev_np would name them, but glibc has it only since 2.32.)
constexpr NamedSignal kFatalSignals[] = {
    {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},     {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"},     {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"}, {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGIO, "SIGIO"},
    {SIGPWR, "SIGPWR"},   {SIGSYS, "SIGSYS"},
};

// Closes all descriptors but `kept`. (close_range would be one call, but glibc has it only since
// 2.34, and Linux since 5.9.)
void CloseAllBut(int kept) {
  DIR* const opened = opendir("/proc/self/fd");
  if (opened == nullptr) {
    return;
  }
  std::vector<int> others;
  while (const dirent* entry = readdir(opened)) {
    int fd = -1;  // the names "." and ".." are no numbers
    if (absl::SimpleAtoi(entry->d_name, &fd) && fd != kept && fd != dirfd(opened)) {
      others.push_back(fd);
    }
  }
  closedir(opened);
  for (const int fd : others) {
    close(fd);
  }
}

// Reads numbers of process groups from the pipe `line`, and keeps a list of the groups. A negative
// number removes the group of its absolute value from the list. When the pipe's writer is gone,
// kills the groups in the list.
[[noreturn]] void BecomeGuardian(int line) {
  setsid();  // so that signals to a terminal's foreground group do not reach it
  // Closes all other descriptors. Only the parent may hold the pipe's other end. Readers of the
  // output must not have to wait until the guardian closes the output.
  CloseAllBut(line);
  std::set<pid_t> groups;
  pid_t group = 0;
  while (true) {
    const ssize_t got = read(line, &group, sizeof(group));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got != sizeof(group)) {
      break;
    }
    if (group > 0) {
      groups.insert(group);
    } else {
      groups.erase(-group);
    }
  }
  for (const pid_t left : groups) {
    kill(-left, SIGKILL);
  }
  _exit(0);
}

}  // namespace

absl::StatusOr<RankProcess> StartRank(const std::vector<std::string>& program,
                                      const Variables& variables) {
  ENTRAIN_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  ENTRAIN_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  ENTRAIN_ASSIGN_OR_RETURN(Pipe failure, MakePipe());
  const Fd empty(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<std::string> environment = Environment(variables);
  std::vector<char*> arguments = Pointers(program), assignments = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return ErrnoStatus(errno, "cannot start a process");
  }
  if (pid == 0) {
    BecomeRank(parent, empty.get(), out, err, failure.write.get(), arguments.data(),
               assignments.data());
  }
  setpgid(pid, pid);  // called in the parent too: the first of the two calls counts
  failure.write.Reset();
  int error = 0;
  // The write end closes by itself if exec succeeds.
  if (read(failure.read.get(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    return absl::FailedPreconditionError(
        absl::StrCat("cannot run \"", program.front(), "\": ", std::strerror(error)));
  }
  RankProcess rank;
  rank.pid = pid;
  rank.out = std::move(out.read);
  rank.err = std::move(err.read);
  fcntl(rank.out.get(), F_SETFL, O_NONBLOCK);
  fcntl(rank.err.get(), F_SETFL, O_NONBLOCK);
  return rank;
}

void SignalRank(const RankProcess& rank, int signal) {
  if (!rank.ended) {
    kill(-rank.pid, signal);
  }
}

bool ReapRank(RankProcess* rank) {
  siginfo_t info{};
  if (rank->ended ||
      waitid(P_PID, static_cast<id_t>(rank->pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return false;
  }
  // The leader has not been reaped, so no other process can have its number.
  kill(-rank->pid, SIGKILL);
  waitpid(rank->pid, nullptr, 0);
  rank->ended = true;
  (info.si_code == CLD_EXITED ? rank->code : rank->signal) = info.si_status;
  return true;
}

std::string SignalName(int signal) {
  for (const NamedSignal& fatal : kFatalSignals) {
    if (fatal.signal == signal) {
      return fatal.name;
    }
  }
  return absl::StrCat("signal ", signal);
}

std::string HowItEnded(const RankProcess& rank) {
  if (rank.signal == 0) {
    return absl::StrCat("exited with code ", rank.code);
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): threads share a buffer for signals without a name only
  const char* const text = strsignal(rank.signal);
  return absl::StrCat("was killed by ", SignalName(rank.signal), " (", text, ")");
}

absl::StatusOr<Guardian> Guardian::Start() {
  ENTRAIN_ASSIGN_OR_RETURN(Pipe line, MakePipe());
  const pid_t pid = fork();
  if (pid < 0) {
    return ErrnoStatus(errno, "cannot start a process");
  }
  if (pid == 0) {
    BecomeGuardian(line.read.Release());
  }
  return Guardian(pid, std::move(line.write));
}

Guardian::~Guardian() {
  if (line_.valid()) {
    line_.Reset();
    waitpid(pid_, nullptr, 0);
  }
}

void Guardian::Watch(pid_t group) const {
  [[maybe_unused]] const ssize_t put = write(line_.get(), &group, sizeof(group));
}

void Guardian::Forget(pid_t group) const {
  Watch(-group);
}

}  // namespace entrain
