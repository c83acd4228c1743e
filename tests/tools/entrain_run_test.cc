// The program entrain-run, tested from outside: its output, its exit status, and what it leaves.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/clock.h"
#include "lib/net/key_file.h"
#include "lib/store/store.h"

namespace entrain {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

struct Ended {
  int code = -1;  // exit code, or 1000 + signal
  std::string out, err;
  double seconds = 0;
};

// One run of entrain-run. Its output is collected in files.
class Call {
 public:
  // `out`, `err`: descriptors for its output instead, if not -1.
  explicit Call(std::vector<std::string> arguments, int out = -1, int err = -1)
      : start_(steady_clock::now()) {
    out_ = std::tmpfile();
    err_ = std::tmpfile();
    arguments.insert(arguments.begin(), ENTRAIN_RUN);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) {
      pointers.push_back(argument.data());
    }
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out >= 0 ? out : fileno(out_), 1);
      dup2(err >= 0 ? err : fileno(err_), 2);
      execv(pointers[0], pointers.data());
      _exit(126);
    }
  }
  ~Call() {
    std::fclose(out_);
    std::fclose(err_);
  }
  pid_t pid() const { return pid_; }
  std::string out() const { return Read(out_); }
  Ended Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    Ended ended;
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    ended.out = Read(out_);
    ended.err = Read(err_);
    ended.seconds = std::chrono::duration<double>(steady_clock::now() - start_).count();
    return ended;
  }

 private:
  static std::string Read(std::FILE* file) {
    std::string text;
    char buffer[4096];
    ssize_t got = 0;
    while ((got = pread(fileno(file), buffer, sizeof(buffer), static_cast<off_t>(text.size()))) >
           0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  std::FILE *out_, *err_;
  pid_t pid_;
  steady_clock::time_point start_;
};

Ended Execute(std::vector<std::string> arguments) {
  return Call(std::move(arguments)).Wait();
}
Ended RunShell(const char* ranks, const char* script) {
  return Execute({"-n", ranks, "--", "sh", "-c", script});
}
std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

template <typename Condition>
bool Becomes(Condition condition, double seconds = 20) {
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (steady_clock::now() > end) {
      return false;
    }
    poll(nullptr, 0, 5);
  }
  return true;
}

// Returns false for a zombie, although it is not reaped yet.
bool Runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::stringstream text;
  text << file.rdbuf();
  const size_t close = text.str().rfind(')');
  return close != std::string::npos && text.str()[close + 2] != 'Z';
}

// Returns the numbers in lines like "[1] pid 4711".
std::vector<pid_t> Pids(const std::string& out) {
  std::vector<pid_t> pids;
  for (const std::string& line : Lines(out)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    pid_t pid = 0;
    if (words.size() == 3 && words[1] == "pid" && absl::SimpleAtoi(words[2], &pid)) {
      pids.push_back(pid);
    }
  }
  return pids;
}

TEST(EntrainRun, RanksGetTorchrunsVariablesAndTheStore) {
  const Ended ended =
      RunShell("2",
               "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR; "
               "echo store $ENTRAIN_STORE >&2; test $MASTER_PORT -gt 0");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(Lines(ended.out),
              UnorderedElementsAre("[0] 0/2 0/2 0 127.0.0.1", "[1] 1/2 1/2 0 127.0.0.1"));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("[0] store tcp://127.0.0.1:"),
                               HasSubstr("[1] store tcp://127.0.0.1:")));
}

TEST(EntrainRun, LinesOfManyRanksStayWhole) {
  const Ended ended = RunShell(
      "4", "i=0; while [ $i -lt 200 ]; do printf 'abc'; printf 'def %s\\n' $i; i=$((i+1)); done");
  EXPECT_EQ(ended.code, 0);
  std::map<std::string, int> next;
  for (const std::string& line : Lines(ended.out)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(words.size(), 3u) << line;
    EXPECT_EQ(words[1], "abcdef");
    EXPECT_EQ(words[2], std::to_string(next[words[0]]++));
  }
  EXPECT_EQ(next.size(), 4u);
  for (const auto& [label, count] : next) {
    EXPECT_EQ(count, 200) << label;
  }
}

TEST(EntrainRun, LastLineNeedsNoNewline) {
  EXPECT_EQ(RunShell("1", "printf 'no end'").out, "[0] no end\n");
}

TEST(EntrainRun, LabelsCanBeLeftOut) {
  EXPECT_EQ(Execute({"-n", "1", "--no-label", "echo", "plain"}).out, "plain\n");
}

TEST(EntrainRun, ArgumentsOfTheProgramAreItsOwn) {
  EXPECT_EQ(Execute({"-n", "1", "--", "echo", "--help", "-n", "7", "--", "x"}).out,
            "[0] --help -n 7 -- x\n");
  EXPECT_EQ(Execute({"-n", "1", "echo", "--timeout", "x"}).out, "[0] --timeout x\n");
}

TEST(EntrainRun, FailingRankEndsTheOthersAndIsNamed) {
  const Ended ended = RunShell("3", "test $RANK = 1 && exit 3; exec sleep 600");
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("exited with code 3")));
  EXPECT_LT(ended.seconds, 30);
}

// After one rank has failed, the others have 2 s to report it.
TEST(EntrainRun, OthersMayReportAFailureAndEndByThemselves) {
  const Ended ended = RunShell(
      "2", "test $RANK = 0 && exit 3; trap 'echo asked; exit 1' TERM; sleep 0.3; echo I saw it");
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.out, "[1] I saw it\n");
  EXPECT_LT(ended.seconds, 1.8);
}

TEST(EntrainRun, OneThatDoesNotEndByItselfIsAskedToAfterTwoSeconds) {
  const Ended ended = RunShell(
      "2",
      "test $RANK = 0 && exit 3; trap 'echo asked; exit 1' TERM; while :; do sleep 0.05; done");
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.out, "[1] asked\n");
  EXPECT_GE(ended.seconds, 1.9);
  EXPECT_LT(ended.seconds, 6);  // sooner than a kill
}

TEST(EntrainRun, KilledRankIsNamedWithItsSignal) {
  const Ended ended = RunShell("3", "test $RANK = 2 && kill -9 $$; exec sleep 600");
  EXPECT_EQ(ended.code, 128 + SIGKILL);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 2 (pid "), HasSubstr("was killed by SIGKILL")));
}

TEST(EntrainRun, OnlyTheFirstFailureIsReported) {
  const Ended ended =
      RunShell("2", "test $RANK = 0 && exit 9; trap 'exit 4' TERM; sleep 600 & wait");
  EXPECT_EQ(ended.code, 9);
  EXPECT_THAT(ended.err, HasSubstr("rank 0"));
  EXPECT_EQ(Lines(ended.err).size(), 1u) << ended.err;
}

TEST(EntrainRun, RanksThatIgnoreTheRequestAreKilled) {
  std::string directory = ::testing::TempDir() + "entrain-run-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string ready = directory + "/ready";
  // Rank 0 fails once rank 1 ignores signals.
  const Ended ended = Execute({"-n", "2", "--", "sh", "-c",
                               "if test $RANK = 0; then until test -e \"$0\"; do sleep 0.02; done; "
                               "exit 5; fi; trap '' TERM; : > \"$0\"; while :; do sleep 0.2; done",
                               ready});
  EXPECT_EQ(ended.code, 5);
  EXPECT_GT(ended.seconds, 4);
  EXPECT_LT(ended.seconds, 30);
  unlink(ready.c_str());
  rmdir(directory.c_str());
}

TEST(EntrainRun, StoppedRankIsEndedToo) {
  const Ended ended = RunShell("2", "test $RANK = 0 && exit 5; kill -STOP $$; exec sleep 600");
  EXPECT_EQ(ended.code, 5);
}

TEST(EntrainRun, NothingThatARankStartedIsLeft) {
  const Ended ended = RunShell(
      "2", "sleep 600 & echo pid $!; test $RANK = 0 && exit 0; sleep 600 & echo pid $!; exit 6");
  EXPECT_EQ(ended.code, 6);
  const std::vector<pid_t> pids = Pids(ended.out);
  EXPECT_EQ(pids.size(), 3u) << ended.out;
  for (const pid_t pid : pids) {
    EXPECT_TRUE(Becomes([&] { return !Runs(pid); })) << pid;
  }
}

TEST(EntrainRun, MissingProgramIsNamed) {
  const Ended ended = Execute({"-n", "3", "--", "/no/such/program"});
  EXPECT_EQ(ended.code, 127);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("/no/such/program"), HasSubstr("No such file")));
}

TEST(EntrainRun, BadOptionsAreRefusedWithOneClearLine) {
  const std::vector<std::vector<std::string>> wrong = {{"-n", "0", "true"},
                                                       {"-n", "-2", "true"},
                                                       {"-n", "two", "true"},
                                                       {"-n", "1000000", "true"},
                                                       {"true"},
                                                       {"-n", "2"},
                                                       {"-n", "2", "--"},
                                                       {"-n", "2", "--timeout", "soon", "true"},
                                                       {"-n", "2", "--no-such", "true"}};
  for (const auto& arguments : wrong) {
    const Ended ended = Execute(arguments);
    EXPECT_NE(ended.code, 0) << ::testing::PrintToString(arguments);
    EXPECT_LT(ended.code, 1000);
    EXPECT_FALSE(ended.err.empty());
    EXPECT_LE(Lines(ended.err).size(), 2u) << ended.err;
  }
}

TEST(EntrainRun, SettingsAreCheckedOnceBeforeAnyRankStarts) {
  struct Wrong {
    const char *name, *value, *says;
  };
  for (const Wrong& wrong : {Wrong{"ENTRAIN_TIMEOUT", "soon", "\"soon\" is not a duration"},
                             {"ENTRAIN_LOG", "loud", "\"loud\" is none of"},
                             {"ENTRAIN_TRANSPORTS", "pigeon", "\"pigeon\" is not a transport"},
                             {"ENTRAIN_ALGORITHMS", "all_reduce:magic", "no algorithm 'magic'"},
                             {"ENTRAIN_INTERFACE", "no-such-interface", "no-such-interface"},
                             {"ENTRAIN_PORTS", "9-1", "\"9-1\": expected LOW-HIGH"},
                             {"ENTRAIN_TCP_STREAMS", "17", "\"17\": expected a number from 1"},
                             {"ENTRAIN_TCP_CONGESTION", "none", "\"none\": expected one of"},
                             {"ENTRAIN_KEEPALIVE", "1s/2s", "\"1s/2s\": expected LIMIT"},
                             {"ENTRAIN_KEY_FILE", "/no/such/key", "/no/such/key"},
                             {"ENTRAIN_FAULT", "rate=fast", "\"fast\" is not a rate"}}) {
    setenv(wrong.name, wrong.value, 1);
    const Ended ended = Execute({"-n", "3", "echo", "started"});
    unsetenv(wrong.name);
    EXPECT_EQ(ended.code, 2) << wrong.name;
    EXPECT_EQ(ended.out, "") << wrong.name;
    EXPECT_EQ(Lines(ended.err).size(), 1u) << ended.err;
    EXPECT_THAT(ended.err, AllOf(HasSubstr(wrong.name), HasSubstr(wrong.says)));
  }
  setenv("ENTRAIN_TIMEOUT", "90s", 1);
  EXPECT_EQ(Execute({"-n", "1", "echo", "started"}).out, "[0] started\n");
  unsetenv("ENTRAIN_TIMEOUT");
  // A variable of a newer version does not end a job.
  setenv("ENTRAIN_TIMEOUTS", "5s", 1);
  const Ended newer = Execute({"-n", "1", "echo", "started"});
  unsetenv("ENTRAIN_TIMEOUTS");
  EXPECT_EQ(newer.out, "[0] started\n");
  EXPECT_THAT(newer.err, HasSubstr("ENTRAIN_TIMEOUT is the most similar name"));
}

TEST(EntrainRun, TimeIsLimited) {
  const Ended ended = Execute({"-n", "2", "--timeout", "100ms", "sleep", "600"});
  EXPECT_EQ(ended.code, 124);
  EXPECT_THAT(ended.err, HasSubstr("100ms"));
}

// A reader that has stopped reading, like a pager or a stuck pipeline.
class Unread {
 public:
  Unread() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Unread() {
    StopReading();
    close(ends_[1]);
  }
  int writer() const { return ends_[1]; }
  void StopReading() {
    if (ends_[0] >= 0) {
      close(std::exchange(ends_[0], -1));
    }
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(EntrainRun, TimeIsLimitedThoughNobodyReadsTheOutput) {
  for (const char* stream : {"", " >&2"}) {
    const Unread pipe;
    const std::string script = absl::StrCat("while :; do echo a line of output", stream, "; done");
    Call call({"-n", "2", "--timeout", "1", "sh", "-c", script},
              *stream == '\0' ? pipe.writer() : -1, *stream == '\0' ? -1 : pipe.writer());
    const Ended ended = call.Wait();
    EXPECT_EQ(ended.code, 124);
    EXPECT_LT(ended.seconds, 20);
    if (*stream == '\0') {
      EXPECT_THAT(ended.err,
                  AllOf(HasSubstr("the time of 1 is up"), HasSubstr("lines): nobody reads it")));
    }
  }
}

TEST(EntrainRun, AFailureEndsTheOthersThoughNobodyReadsTheOutput) {
  const Unread pipe;
  Call call({"-n", "2", "sh", "-c",
             "if test $RANK = 1; then sleep 0.3; exit 3; fi; while :; do echo a line; done"},
            pipe.writer());
  const Ended ended = call.Wait();
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("rank 1"), HasSubstr("exited with code 3"), HasSubstr("dropped")));
  EXPECT_LT(ended.seconds, 20);
}

// The reader has 2 s after a failure, once for both streams.
TEST(EntrainRun, WaitsOnceForAReaderOfBothStreams) {
  for (const bool one_pipe : {true, false}) {
    SCOPED_TRACE(one_pipe);
    const Unread out, err;
    Call call({"-n", "1", "sh", "-c", "seq 1 20000; seq 1 20000 >&2; exit 3"}, out.writer(),
              one_pipe ? out.writer() : err.writer());
    const Ended ended = call.Wait();
    EXPECT_EQ(ended.code, 3);
    EXPECT_GT(ended.seconds, 1.9);
    EXPECT_LT(ended.seconds, 3.7);
  }
}

TEST(EntrainRun, OutputWaitsForAReaderThatIsSlow) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Call call({"-n", "1", "--no-label", "--", "sh", "-c", "seq 1 500000"}, ends[1]);
  close(ends[1]);
  EXPECT_FALSE(Becomes([&] { return !Runs(call.pid()); }, 0.3));  // more than pipe and buffer hold
  std::string last, text(1 << 16, '\0');
  size_t bytes = 0;
  ssize_t got = 0;
  while ((got = read(ends[0], text.data(), text.size())) > 0) {
    bytes += static_cast<size_t>(got);
    last = text.substr(0, static_cast<size_t>(got));
  }
  close(ends[0]);
  const Ended ended = call.Wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(bytes, 3388895u);  // all numbers, each with its newline
  EXPECT_THAT(last, testing::EndsWith("\n500000\n"));
  EXPECT_EQ(ended.err, "");
}

TEST(EntrainRun, RanksGoOnThoughTheReaderHasGone) {
  Unread pipe;
  pipe.StopReading();
  Call call({"-n", "2", "--", "sh", "-c", "seq 1 50000; echo done >&2"}, pipe.writer());
  const Ended ended = call.Wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  // A line of seq takes 5.78 bytes on average, and the label "[0] " takes 4.
  EXPECT_THAT(ended.err, AllOf(HasSubstr("[0] done"), HasSubstr("[1] done"),
                               HasSubstr("entrain-run: dropped 977788 bytes of standard output "
                                         "(100000 lines): its reader has gone")));
  EXPECT_THAT(Call({"--help"}).Wait().out,
              HasSubstr("reader of standard output goes away (| head)"));
}

// As in "entrain-run ... | head -1": the reader takes the first line and goes away.
TEST(EntrainRun, SaysHowMuchIsDroppedBehindAReaderThatHasReadALine) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Call call({"-n", "1", "--no-label", "--", "sh", "-c",
             "echo first; seq 1 500000; echo done >&2; exit 3"},
            ends[1]);
  close(ends[1]);
  char first[6];
  ASSERT_EQ(read(ends[0], first, sizeof(first)), 6);
  close(ends[0]);
  const Ended ended = call.Wait();
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("done\n"), HasSubstr("entrain-run: dropped "),
                               HasSubstr(" lines): its reader has gone\n")));
}

// A job that prints where store and key are, and waits until it must end.
class JobWithAStore {
 public:
  JobWithAStore()
      : call_({"-n", "1", "--no-label", "--", "sh", "-c",
               "echo \"$ENTRAIN_STORE $ENTRAIN_KEY_FILE\"; exec sleep 60"}) {
    EXPECT_TRUE(Becomes([&] { return absl::StrContains(call_.out(), '\n'); }));
    const std::vector<std::string> words =
        absl::StrSplit(absl::StripSuffix(call_.out(), "\n"), ' ');
    EXPECT_EQ(words.size(), 2u) << call_.out();
    store_ = words.at(0);
    key_file_ = words.at(1);
  }
  ~JobWithAStore() {
    kill(call_.pid(), SIGTERM);
    call_.Wait();
  }
  const std::string& store() const { return store_; }
  const std::string& key_file() const { return key_file_; }

 private:
  Call call_;
  std::string store_, key_file_;
};

TEST(EntrainRun, StoreOfAJobIsClosedToWhoeverLacksItsKey) {
  const JobWithAStore job, other;
  const Stop soon{Deadline::After(20 * kSecond), nullptr};
  const auto keyless = OpenStore(job.store(), "", soon);
  EXPECT_EQ(keyless.status().code(), absl::StatusCode::kFailedPrecondition) << keyless.status();
  const auto key = ReadKeyFile(job.key_file()), others = ReadKeyFile(other.key_file());
  ASSERT_TRUE(key.ok()) << key.status();
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_GE(key->size(), 32u);
  EXPECT_NE(*key, *others);
  const auto wrong = OpenStore(job.store(), *others, soon);
  if (wrong.ok()) {
    EXPECT_EQ((*wrong)->TryGet("a", soon).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  const auto right = OpenStore(job.store(), *key, soon);
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_TRUE((*right)->Set("a", "b", soon).ok());
}

TEST(EntrainRun, KeyOfAJobCannotBeReadByAnotherUser) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const JobWithAStore job;
  const pid_t pid = fork();
  if (pid == 0) {
    constexpr uid_t kNobody = 65534;
    const bool other = setgid(kNobody) == 0 && setuid(kNobody) == 0;
    const int fd = open(job.key_file().c_str(), O_RDONLY);
    _exit(!other ? 2 : fd < 0 && errno == EACCES ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  // This process cannot write it either.
  EXPECT_LT(open(job.key_file().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC), 0);
}

// The key is found even if programs close inherited descriptors.
TEST(EntrainRun, KeyOfAJobOutlivesWrappers) {
  const Ended shell = RunShell("2", "exec 3<&- 4<&-; sh -c 'wc -c < $ENTRAIN_KEY_FILE'");
  EXPECT_EQ(shell.code, 0) << shell.err;
  EXPECT_THAT(Lines(shell.out), UnorderedElementsAre("[0] 64", "[1] 64"));
  if (std::system("python3 -c pass 2> /dev/null") != 0) {
    return;
  }
  const Ended python = Execute({"-n", "1", "--no-label", "--", "python3", "-c",
                                "import subprocess as s; "
                                "s.run('wc -c < $ENTRAIN_KEY_FILE', shell=True, check=True)"});
  EXPECT_EQ(python.code, 0) << python.err;
  EXPECT_EQ(python.out, "64\n");
}

TEST(EntrainRun, KeyFileOfTheUserWins) {
  char path[] = "/tmp/entrain-key-XXXXXX";  // mode 600
  const int fd = mkstemp(path);
  ASSERT_EQ(write(fd, "a key of the user's", 19), 19);
  close(fd);
  setenv("ENTRAIN_KEY_FILE", path, 1);
  {
    const JobWithAStore job;
    EXPECT_EQ(job.key_file(), path);
    const Stop soon{Deadline::After(20 * kSecond), nullptr};
    const auto store = OpenStore(job.store(), "a key of the user's", soon);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->Set("a", "b", soon).ok());
  }
  unsetenv("ENTRAIN_KEY_FILE");
  unlink(path);
}

TEST(EntrainRun, SignalsArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Call call({"-n", "2", "--", "sh", "-c",
               "trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 0' TERM; "
               "echo ready; while :; do sleep 0.05; done"});
    ASSERT_TRUE(Becomes([&] { return Lines(call.out()).size() == 2; })) << call.out();
    kill(call.pid(), signal);
    const Ended ended = call.Wait();
    EXPECT_EQ(ended.code, 128 + signal);
    const std::string name = signal == SIGINT ? "INT" : "TERM";
    EXPECT_THAT(ended.out, AllOf(HasSubstr("[0] got " + name), HasSubstr("[1] got " + name)));
  }
}

TEST(EntrainRun, NothingIsLeftWhenItIsKilled) {
  Call call({"-n", "2", "--", "sh", "-c", "echo pid $$; sleep 600 & echo pid $!; wait"});
  ASSERT_TRUE(Becomes([&] { return Pids(call.out()).size() == 4; })) << call.out();
  const std::vector<pid_t> pids = Pids(call.out());
  for (const pid_t pid : pids) {
    EXPECT_TRUE(Runs(pid));
  }
  kill(call.pid(), SIGKILL);
  call.Wait();
  for (const pid_t pid : pids) {
    EXPECT_TRUE(Becomes([&] { return !Runs(pid); })) << pid;
  }
}

TEST(EntrainRun, HelpNamesEveryOption) {
  const Ended ended = Execute({"--help"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("-n"), HasSubstr("--timeout"), HasSubstr("--no-label"),
                               HasSubstr("PROGRAM")));
}

TEST(EntrainRun, TellsItsVersionWithoutRanks) {
  const Ended ended = Execute({"--version"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, testing::MatchesRegex("entrain-run [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace entrain
