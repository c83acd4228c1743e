// entrain-run --elastic, tested from outside: which failures it covers, how the job ends, and what
// it leaves.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/wait.h"

namespace entrain {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int code = -1;  // exit code, or 1000 + signal
  std::string out, err;
  double seconds = 0;
  // Returns how many lines of the output contain the text.
  int Count(const std::string& text) const {
    int count = 0;
    for (const absl::string_view line : absl::StrSplit(out, '\n')) {
      count += absl::StrContains(line, text) ? 1 : 0;
    }
    return count;
  }
};

std::string ReadAll(std::FILE* file) {
  std::string text(1 << 16, '\0');
  const ssize_t got = pread(fileno(file), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

Ended Execute(std::vector<std::string> arguments) {
  std::FILE *const out = std::tmpfile(), *const err = std::tmpfile();
  arguments.insert(arguments.begin(), ENTRAIN_RUN);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  const auto begin = steady_clock::now();
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(fileno(out), 1);
    dup2(fileno(err), 2);
    execv(pointers[0], pointers.data());
    _exit(126);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  Ended ended{WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), ReadAll(out),
              ReadAll(err), std::chrono::duration<double>(steady_clock::now() - begin).count()};
  std::fclose(out);
  std::fclose(err);
  return ended;
}

// Returns false for a zombie, although it is not reaped yet.
bool Runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::stringstream text;
  text << file.rdbuf();
  const size_t close = text.str().rfind(')');
  return close != std::string::npos && text.str()[close + 2] != 'Z';
}

// Runs elastic_rank as three ranks. `plan`: its failures.
Ended RunThree(std::vector<std::string> options, const std::string& wanted,
               std::vector<std::string> plan) {
  std::vector<std::string> all = {"-n", "3", "--elastic"};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"--", ELASTIC_RANK, "30", wanted});
  all.insert(all.end(), plan.begin(), plan.end());
  return Execute(all);
}

TEST(Elastic, WithoutAFailureNothingChanges) {
  const Ended ended = RunThree({}, "3", {});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.Count("of 3 after 0 restarts"), 3) << ended.out;
  EXPECT_EQ(ended.err, "");
}

// Any rank may fail, also the one that serves the store under other launchers.
TEST(Elastic, AKilledRankIsReplaced) {
  for (const char* rank : {"0", "1", "2"}) {
    const Ended ended = RunThree({}, "3", {"kill", rank, "10"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.Count("finished as rank"), 3) << ended.out;
    EXPECT_EQ(ended.Count("finished as rank 2 of 3 after 1 restarts"), 1) << ended.out;
    EXPECT_THAT(ended.err, AllOf(HasSubstr(absl::StrCat("rank ", rank, " (pid ")),
                                 HasSubstr("was killed by SIGKILL (Killed); restarting it, 1 of "
                                           "3")));
    std::cout << "a job with one replaced rank: " << ended.seconds << " s\n";
  }
}

// The ranks then use a part of the store of their own.
TEST(Elastic, AKilledRankOfAJobWithAnIdIsReplaced) {
  setenv("ENTRAIN_RUN_ID", "job1", 1);
  const Ended ended = RunThree({}, "3", {"kill", "1", "10"});
  unsetenv("ENTRAIN_RUN_ID");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.Count("finished as rank 2 of 3 after 1 restarts"), 1) << ended.out;
}

TEST(Elastic, TwoRanksAreReplacedAtOnceAndOneAfterTheOther) {
  const std::vector<std::vector<std::string>> plans = {{"kill", "0", "5", "exit", "1", "5"},
                                                       {"kill", "0", "5", "exit", "1", "9"}};
  for (const auto& plan : plans) {
    const Ended ended = RunThree({"--min-ranks", "2"}, "3", plan);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.Count("finished as rank"), 3) << ended.out;
    EXPECT_EQ(ended.Count("after 1 restarts"), 2) << ended.out;
  }
}

// A rank that fails after each restart stays away when its restarts are used up, and the others go
// on. The rank fails at step 0, and then before it has a communicator. The others must not finish
// before its last failure, so they make many steps.
TEST(Elastic, ARankWhoseRestartsAreUsedUpStaysAway) {
  const Ended ended = Execute({"-n", "3", "--elastic", "--max-restarts", "2", "--", "sh", "-c",
                               absl::StrCat("[ $ENTRAIN_RESTARTS -gt 0 ] && exit 7; exec ",
                                            ELASTIC_RANK, " 20000 2 exit 1 0")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.Count("of 2 after 0 restarts"), 2) << ended.out;
}

TEST(Elastic, TheJobEndsWithTheFirstFailureThatTheLimitsDoNotCover) {
  const Ended ended =
      Execute({"-n", "3", "--elastic", "--max-restarts", "1", "--min-ranks", "3", "--", "sh", "-c",
               absl::StrCat("[ $ENTRAIN_RESTARTS -gt 0 ] && exit 7; exec ", ELASTIC_RANK,
                            " 30 3 exit 1 5")});
  EXPECT_EQ(ended.code, 7) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("exited with code 3; restarting it, 1 of 1"),
                               HasSubstr("exited with code 7; its 1 restarts are used up, and 2 "
                                         "ranks are less than --min-ranks 3; ending the other "
                                         "ranks")));
  EXPECT_EQ(ended.Count("finished"), 0) << ended.out;
}

TEST(Elastic, AFailureBeforeTheRanksHaveMetIsNotCovered) {
  const Ended ended = RunThree({}, "3", {"exit", "1", "-1"});
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("rank 1"));
  EXPECT_THAT(ended.err, HasSubstr("no other rank has a communicator that it could join"));
  EXPECT_THAT(ended.err, Not(HasSubstr("restarting")));
}

// The two other ranks finish without the third, which waits to be taken in. They exit when it has
// been started again.
TEST(Elastic, NewcomersThatNobodyTakesInAreEndedWithTheOthers) {
  std::string directory = testing::TempDir() + "entrain-elastic-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string mark = directory + "/restarted";
  const Ended ended = Execute(
      {"-n", "3", "--elastic", "--", "sh", "-c",
       absl::StrCat("[ $ENTRAIN_RESTARTS -gt 0 ] && touch ", mark, "; ", ELASTIC_RANK,
                    " 30 2 kill 1 0 || exit 9; while [ ! -e ", mark, " ]; do sleep 0.05; done")});
  std::filesystem::remove_all(directory);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.Count("finished as rank"), 2) << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("the ranks have finished; ending 1 restarted ranks"));
  EXPECT_LT(ended.seconds, 40);
}

TEST(Elastic, NothingIsLeftOfAnyLife) {
  const Ended ended = Execute({"-n", "2", "--elastic", "--", "sh", "-c",
                               absl::StrCat("sleep 600 >/dev/null 2>&1 & echo pid $!; exec ",
                                            ELASTIC_RANK, " 30 2 kill 1 5")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.Count("pid"), 3) << ended.out;
  for (const absl::string_view line : absl::StrSplit(ended.out, '\n')) {
    pid_t pid = 0;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    if (words.size() == 3 && words[1] == "pid" && absl::SimpleAtoi(words[2], &pid)) {
      EXPECT_TRUE(Becomes([&] { return !Runs(pid); })) << pid;
    }
  }
}

TEST(Elastic, RanksOfAJobThatIsNotElasticAreNoNewcomers) {
  setenv("ENTRAIN_RESTARTS", "1", 1);
  const Ended ended = Execute({"-n", "2", "--", ELASTIC_RANK, "3", "2"});
  unsetenv("ENTRAIN_RESTARTS");
  EXPECT_EQ(ended.code, 0) << ended.err;
}

TEST(Elastic, OptionsAreChecked) {
  for (const auto& [arguments, says] :
       {std::pair(std::vector<std::string>{"-n", "2", "--max-restarts", "1", "true"}, "--elastic"),
        std::pair(std::vector<std::string>{"-n", "2", "--elastic", "--min-ranks", "3", "true"},
                  "--min-ranks: 3 is more than the 2 ranks of -n"),
        std::pair(std::vector<std::string>{"-n", "2", "--elastic", "--max-restarts", "-1", "true"},
                  "--max-restarts")}) {
    const Ended ended = Execute(arguments);
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, HasSubstr(says));
  }
  EXPECT_THAT(Execute({"--help"}).out,
              AllOf(HasSubstr("--elastic"), HasSubstr("--max-restarts"), HasSubstr("--min-ranks"),
                    HasSubstr("ENTRAIN_RESTARTS")));
}

}  // namespace
}  // namespace entrain
