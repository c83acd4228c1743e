#include "lib/comm/flight/flight_log.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "lib/base/config.h"
#include "lib/base/float_environment.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/flight/flight_socket.h"
#include "lib/net/local_socket.h"

namespace entrain {
namespace {

// The time limit for sending a dump to its reader through the local socket.
constexpr int64_t kReaderNs = 2 * kSecond;
constexpr int kPauseMs = 100;

// The variables of the signal handler. wake_fd is an eventfd of the process wake_of. A forked child
// has copies of the handler and of the descriptor, but must not wake its parent.
//
// StartThread stores a new descriptor with release order. Wake and the handler load the descriptor
// with acquire order. So the descriptor exists when they write to it.
std::atomic<int> wake_fd{-1};
std::atomic<pid_t> wake_of{0};
std::atomic<int> signalled{0};  // the number of a signal that has come; 0: none
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

void OnSignal(int number) {
  const int error = errno;
  if (wake_of.load(std::memory_order_relaxed) == getpid()) {
    signalled.store(number, std::memory_order_relaxed);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put =
        write(wake_fd.load(std::memory_order_acquire), &one, sizeof(one));
  }
  errno = error;
}

absl::StatusOr<int> ParseSignal(absl::string_view text) {
  for (const auto& [name, number] : {std::pair("USR1", SIGUSR1), std::pair("USR2", SIGUSR2)}) {
    if (text == name) {
      return number;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("ENTRAIN_FLIGHT_SIGNAL: \"", text, "\" is neither USR1 nor USR2"));
}

// Installs OnSignal as the handler of the signal. If the program handles or ignores the signal
// itself, changes nothing and logs a warning.
void Handle(int number) {
  struct sigaction before {};
  if (sigaction(number, nullptr, &before) != 0 || before.sa_handler == &OnSignal) {
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) {
    ENTRAIN_LOG(kWarning, "ENTRAIN_FLIGHT_SIGNAL: the program handles signal ", number,
                " itself, so the signal writes no flight dump");
    return;
  }
  struct sigaction ours {};
  ours.sa_handler = &OnSignal;
  ours.sa_flags = SA_RESTART;
  sigfillset(&ours.sa_mask);
  sigaction(number, &ours, nullptr);
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

// Runs on the driver of one engine. Collects the open calls of the engine's communicators, and the
// ranks for which these calls wait.
class LookJob final : public Job {
 public:
  struct Answer {
    std::vector<FlightLook> looks;  // in the order of cores_
    absl::Notification given;
  };
  LookJob(std::vector<std::shared_ptr<CommCore>> cores, std::shared_ptr<Answer> answer)
      : cores_(std::move(cores)), answer_(std::move(answer)) {}
  void Run() override {
    for (const auto& core : cores_) {
      answer_->looks.push_back(core->flight_look());
    }
    answer_->given.Notify();
    delete this;
  }

 private:
  const std::vector<std::shared_ptr<CommCore>> cores_;
  const std::shared_ptr<Answer> answer_;
};

// Returns the open calls of each core, as reported by its driver. If a driver does not answer
// within kDriverNs, the result has no entries for its cores.
std::map<const CommCore*, FlightLook> LookAt(const std::vector<std::shared_ptr<CommCore>>& cores) {
  std::map<const CommCore*, FlightLook> looks;
  std::map<Engine*, std::vector<std::shared_ptr<CommCore>>> by_engine;
  for (const auto& core : cores) {
    if (core->end().ended()) {
      looks[core.get()].answered = true;  // an ended communicator has no open calls
    } else {
      by_engine[&core->engine()].push_back(core);
    }
  }
  std::vector<std::pair<Engine*, std::shared_ptr<LookJob::Answer>>> asked;
  for (const auto& [engine, of_engine] : by_engine) {
    asked.emplace_back(engine, std::make_shared<LookJob::Answer>());
    // The job deletes itself after it has run. If the driver is stuck, the job may run late or
    // never.
    engine->seat().Submit(new LookJob(of_engine, asked.back().second));
  }
  const absl::Time until = absl::Now() + absl::Nanoseconds(FlightLog::kDriverNs);
  for (const auto& [engine, answer] : asked) {
    // Run the job here if no thread drives the engine.
    engine->seat().Kick();
    if (!answer->given.WaitForNotificationWithDeadline(until)) {
      continue;
    }
    const auto& of_engine = by_engine[engine];
    for (size_t i = 0; i < of_engine.size(); ++i) {
      looks[of_engine[i].get()] = std::move(answer->looks[i]);
    }
  }
  return looks;
}

absl::Status WriteNew(const std::string& path, absl::string_view text) {
  // Like a core file: only for the user who runs the job.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return errno == EEXIST
               ? absl::FailedPreconditionError(absl::StrCat(path, " exists, and stays as it is"))
           : errno == EMFILE || errno == ENFILE || errno == ENOSPC
               ? ErrnoStatus(errno, absl::StrCat("cannot create ", path))
               : absl::InvalidArgumentError(
                     absl::StrCat("cannot create ", path, ": ", std::strerror(errno)));
  }
  absl::Status status;
  while (!text.empty() && status.ok()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put < 0 && errno != EINTR) {
      status = ErrnoStatus(errno, absl::StrCat("cannot write ", path));
    }
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(put, 0)));
  }
  if (close(fd) != 0 && status.ok()) {
    status = ErrnoStatus(errno, absl::StrCat("cannot write ", path));
  }
  if (!status.ok()) {
    unlink(path.c_str());
  }
  return status;
}

// Returns the rank that the names of dump files contain: the world rank of this process in the
// oldest communicator of `cores`. -1: there is no communicator.
int RankOf(const std::vector<std::shared_ptr<CommCore>>& cores) {
  return cores.empty() ? -1
                       : cores.front()
                             ->config()
                             .members[static_cast<size_t>(cores.front()->rank())]
                             .world_rank;
}

}  // namespace

FlightLog& FlightLog::Get() {
  static auto* const log = new FlightLog;
  return *log;
}

absl::Status FlightLog::Configure() {
  ENTRAIN_ASSIGN_OR_RETURN(const std::optional<int64_t> calls, GetEnvInt("ENTRAIN_FLIGHT_CALLS"));
  if (calls && (*calls < 0 || *calls > FlightRecorder::kMostCalls)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ENTRAIN_FLIGHT_CALLS: ", *calls, " is not in [0, ", FlightRecorder::kMostCalls, "]"));
  }
  const std::string directory = GetEnv("ENTRAIN_FLIGHT_DIR").value_or("");
  struct stat info {};
  if (!directory.empty() && (stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))) {
    return absl::InvalidArgumentError(
        absl::StrCat("ENTRAIN_FLIGHT_DIR: \"", directory, "\" is not a directory"));
  }
  if (const auto signal = GetEnv("ENTRAIN_FLIGHT_SIGNAL")) {
    ENTRAIN_ASSIGN_OR_RETURN(const int number, ParseSignal(*signal));
    if (directory.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("ENTRAIN_FLIGHT_SIGNAL: \"", *signal,
                                                     "\" needs ENTRAIN_FLIGHT_DIR for its files"));
    }
    Handle(number);
  }
  calls_.store(static_cast<int>(calls.value_or(FlightRecorder::kDefaultCalls)),
               std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  directory_ = directory;
  return absl::OkStatus();
}

// ---- Runtimes and communicators

void FlightLog::ForgetParent() {
  if (process_ == getpid()) {
    return;
  }
  process_ = getpid();
  runtimes_ = 0;
  thread_.reset();
  listener_.Release();  // lib/net/fork_close.h has closed the descriptor already
  if (const int inherited = wake_fd.exchange(-1, std::memory_order_relaxed); inherited >= 0) {
    close(inherited);
  }
  absl::MutexLock lock(&mutex_);
  cores_.clear();
  requests_.clear();
  writing_ = false;
  files_ = 0;
}

void FlightLog::Retain() {
  absl::MutexLock lock(&life_mutex_);
  ForgetParent();
  ++runtimes_;
}

void FlightLog::Release() {
  absl::MutexLock lock(&life_mutex_);
  ForgetParent();
  if (runtimes_ > 0 && --runtimes_ == 0 && thread_) {
    EndThread();
  }
}

void FlightLog::Add(const std::shared_ptr<CommCore>& core) {
  if (calls() == 0) {
    return;
  }
  absl::MutexLock life(&life_mutex_);
  ForgetParent();
  if (runtimes_ > 0 && !thread_) {
    StartThread();
  }
  absl::MutexLock lock(&mutex_);
  if (cores_.size() >= prune_at_) {
    cores_.erase(std::remove_if(cores_.begin(), cores_.end(),
                                [](const auto& weak) { return weak.expired(); }),
                 cores_.end());
    prune_at_ = std::max<size_t>(64, 2 * cores_.size());
  }
  cores_.push_back(core);
}

std::vector<std::shared_ptr<CommCore>> FlightLog::Cores() {
  std::vector<std::shared_ptr<CommCore>> cores;
  absl::MutexLock lock(&mutex_);
  for (const auto& weak : cores_) {
    if (auto core = weak.lock()) {
      cores.push_back(std::move(core));
    }
  }
  return cores;
}

// ---- Dumps

std::string FlightLog::Dump(absl::string_view why) {
  return Dump(Request{std::string(why), nullptr, {}});
}

std::string FlightLog::Dump(const Request& request) {
  const auto cores = Cores();
  auto looks = LookAt(cores);
  if (request.ended != nullptr) {
    looks[request.ended.get()] = request.look;
  }
  FlightDump dump{request.why, HostName(), getpid(), Clock::Real().Now(), 0, {}};
  dump.unix_ms = absl::ToUnixMillis(absl::Now());
  for (const auto& core : cores) {
    dump.comms.push_back(Describe(*core, looks[core.get()]));
  }
  return ToJson(dump);
}

absl::StatusOr<std::string> FlightLog::DumpTo(const std::string& path, absl::string_view why) {
  return DumpTo(path, Request{std::string(why), nullptr, {}});
}

absl::StatusOr<std::string> FlightLog::DumpTo(const std::string& path, const Request& request) {
  if (!path.empty()) {
    ENTRAIN_RETURN_IF_ERROR(WriteNew(path, Dump(request)));
    return path;
  }
  std::string directory;
  {
    absl::MutexLock lock(&mutex_);
    if (directory_.empty()) {
      return absl::FailedPreconditionError("ENTRAIN_FLIGHT_DIR is not set");
    }
    if (files_ == kMostFiles) {
      return absl::ResourceExhaustedError(
          absl::StrCat(directory_, ": this process has written ", kMostFiles, " flight dumps"));
    }
    ++files_;
    directory = directory_;
  }
  const std::string text = Dump(request);
  const std::string stem = absl::StrCat(directory, "/entrain-flight-", HostName(), "-", getpid(),
                                        "-rank", RankOf(Cores()));
  // A file of this name may exist: an earlier dump of this process, or a dump of an ended process
  // with the same pid.
  constexpr int kMostNames = 1000;
  for (int i = 0; i < kMostNames; ++i) {
    const std::string name = absl::StrCat(stem, "-", i, ".json");
    const absl::Status status = WriteNew(name, text);
    if (!absl::IsFailedPrecondition(status)) {
      ENTRAIN_RETURN_IF_ERROR(status);
      return name;
    }
  }
  return absl::ResourceExhaustedError(absl::StrCat(stem, "-0 to -", kMostNames - 1, " exist"));
}

void FlightLog::OnFailure(const CommCore& core) {
  absl::MutexLock lock(&mutex_);
  if (calls() == 0 || directory_.empty() || wake_of.load(std::memory_order_relaxed) != getpid() ||
      files_ + static_cast<int>(requests_.size()) >= kMostFiles) {
    return;
  }
  requests_.push_back({absl::StrCat("failure of ", core.config().name), core.shared_from_this(),
                       core.flight_look()});
  Wake();
}

// ---- The thread

void FlightLog::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put =
      write(wake_fd.load(std::memory_order_acquire), &one, sizeof(one));
}

void FlightLog::StartThread() {
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    ENTRAIN_LOG(kWarning, "no flight dumps: ", ErrnoStatus(errno, "eventfd").message());
    return;
  }
  auto listener = ListenLocal(FlightSocketName(getpid()), 8);
  if (listener.ok()) {
    listener_ = *std::move(listener);
  } else {
    ENTRAIN_LOG(kInfo, "no flight dumps by a socket: ", listener.status().message());
  }
  wake_fd.store(wake, std::memory_order_release);
  // The new thread blocks all signals, so that only the program's own threads handle them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, nullptr, &FlightLog::Main, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    ENTRAIN_LOG(kWarning, "no flight dumps: ", ErrnoStatus(error, "pthread_create").message());
    listener_.Reset();
    close(wake_fd.exchange(-1, std::memory_order_relaxed));
    return;
  }
  pthread_setname_np(thread, "entrain-flight");
  thread_ = thread;
  wake_of.store(process_, std::memory_order_relaxed);
  static const bool at_exit = [] {
    return std::atexit([] {
             // A program may exit right after a failure, so the exit waits until the requested
             // dumps are written. A forked child must not wait, because it has no thread that
             // writes dumps. It must not lock mutex_ either. If a thread of the parent held mutex_
             // at the fork, mutex_ stays locked in the child.
             if (wake_of.load(std::memory_order_relaxed) != getpid()) {
               return;
             }
             FlightLog& log = Get();
             absl::MutexLock lock(&log.mutex_);
             const auto written = [&log]() ABSL_SHARED_LOCKS_REQUIRED(log.mutex_) {
               return log.requests_.empty() && !log.writing_;
             };
             log.mutex_.AwaitWithTimeout(absl::Condition(&written), absl::Nanoseconds(kExitNs));
           }) == 0;
  }();
  static_cast<void>(at_exit);
}

void FlightLog::EndThread() {
  // From now on, no signal and no failure wakes the thread.
  wake_of.store(0, std::memory_order_relaxed);
  stopping_.store(true, std::memory_order_release);
  Wake();
  pthread_join(*std::exchange(thread_, std::nullopt), nullptr);
  stopping_.store(false, std::memory_order_relaxed);
  listener_.Reset();
  close(wake_fd.exchange(-1, std::memory_order_relaxed));
}

void* FlightLog::Main(void* log) {
  FloatEnvironment::Set();
  static_cast<FlightLog*>(log)->Serve();
  return nullptr;
}

void FlightLog::Serve() {
  const int wake = wake_fd.load(std::memory_order_relaxed);
  while (!stopping_.load(std::memory_order_acquire)) {
    pollfd ready[] = {{wake, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (poll(ready, 2, -1) <= 0) {
      continue;
    }
    if (ready[0].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake, &count, sizeof(count));
      WriteRequests();
    }
    if (ready[1].revents != 0) {
      AnswerConnections();
    }
  }
  WriteRequests();
}

void FlightLog::WriteRequests() {
  if (const int number = signalled.exchange(0, std::memory_order_relaxed); number != 0) {
    absl::MutexLock lock(&mutex_);
    requests_.push_back({absl::StrCat("signal ", number), nullptr, {}});
  }
  while (true) {
    Request request;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = !requests_.empty();
      if (requests_.empty()) {
        return;
      }
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    const auto written = DumpTo("", request);
    if (written.ok()) {
      ENTRAIN_LOG(kInfo, request.why, ": the flight dump is ", *written);
    } else {
      ENTRAIN_LOG(kWarning, request.why, ": no flight dump: ", written.status().message());
    }
  }
}

void FlightLog::AnswerConnections() {
  const auto accepted = AcceptLocal(listener_.get());
  if (!accepted.ok()) {
    // The process has no free descriptor. The connection stays pending, so pause before the next
    // attempt.
    poll(nullptr, 0, kPauseMs);
    return;
  }
  if (!accepted->valid() || !CheckSameUser(accepted->get()).ok()) {
    return;
  }
  const std::string text = Dump("asked through the local socket");
  WriteFull(accepted->get(), text.data(), text.size(), {Deadline::After(kReaderNs), &stopping_})
      .IgnoreError();
}

}  // namespace entrain
