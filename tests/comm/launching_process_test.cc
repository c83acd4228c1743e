#include "lib/comm/launch/launching_process.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::SizeIs;

// The shell code of a rank in the tests below.
TEST(LaunchingProcess, DISABLED_Rank) {
  const auto found = LaunchingProcess("ENTRAIN_TEST_RANK");
  std::printf("found %s\n", found.ok() ? found->c_str() : found.status().ToString().c_str());
}

// Runs a shell command in which $RANK is a rank. Returns its lines that begin with "found " or
// "shell ".
std::vector<std::string> Lines(const std::string& command) {
  char self[4096] = "";
  EXPECT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  FILE* const pipe = popen(absl::StrCat("RANK='", self,
                                        " --gtest_filter=LaunchingProcess.DISABLED_Rank "
                                        "--gtest_also_run_disabled_tests'; export RANK; ",
                                        command)
                               .c_str(),
                           "r");
  std::vector<std::string> lines;
  for (char line[512]; std::fgets(line, sizeof(line), pipe) != nullptr;) {
    const absl::string_view text = absl::StripSuffix(line, "\n");
    if (absl::StartsWith(text, "found ") || absl::StartsWith(text, "shell ")) {
      lines.emplace_back(text);
    }
  }
  EXPECT_EQ(pclose(pipe), 0);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string PidIn(const std::string& line) {  // "found PID-START" or "shell PID"
  return line.substr(6, line.find('-') - 6);
}

TEST(LaunchingProcess, IsTheParentWhenThatLacksTheVariable) {
  const auto lines = Lines("echo shell $$; ENTRAIN_TEST_RANK=0 $RANK; :");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(PidIn(lines[0]), PidIn(lines[1]));
}

TEST(LaunchingProcess, WrappersThatHaveTheVariableArePassedOver) {
  const auto lines = Lines(
      "echo shell $$; "
      "ENTRAIN_TEST_RANK=0 sh -c '$RANK; :' & "
      "ENTRAIN_TEST_RANK=1 sh -c 'sh -c \"\\$RANK; :\"; :' & wait");
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0], lines[1]);
  EXPECT_EQ(PidIn(lines[0]), PidIn(lines[2]));
}

TEST(LaunchingProcess, OfTwoJobsAreTwo) {
  const auto lines =
      Lines("sh -c 'ENTRAIN_TEST_RANK=0 $RANK; :'; sh -c 'ENTRAIN_TEST_RANK=0 $RANK; :'");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_NE(lines[0], lines[1]);
  EXPECT_THAT(lines[0].substr(lines[0].find('-')), testing::Not(testing::Eq("-0")));
}

}  // namespace
}  // namespace entrain
