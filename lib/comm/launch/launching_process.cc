#include "lib/comm/launch/launching_process.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace entrain {
namespace {

// Returns the content of /proc/PID/FILE. Returns nullopt if there is no such process, or if the
// file is empty or may not be read.
std::optional<std::string> ReadOf(int64_t pid, const char* file) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/", file), std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return in.bad() || text.empty() ? std::nullopt : std::optional<std::string>(std::move(text));
}

bool Has(const std::string& environment, const std::string& variable) {
  const std::string start = absl::StrCat(variable, "=");
  for (const absl::string_view entry : absl::StrSplit(environment, '\0')) {
    if (absl::StartsWith(entry, start)) {
      return true;
    }
  }
  return false;
}

// Returns the number in field `place` of /proc/PID/stat. Fields are counted from 1, as in proc(5).
// `place` must be at least 3. Field 2 is a name in parentheses and may contain any characters. So
// the search for fields begins at the last closing parenthesis.
std::optional<int64_t> StatNumber(int64_t pid, size_t place) {
  const auto stat = ReadOf(pid, "stat");
  const size_t name_end = stat.has_value() ? stat->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  const std::vector<absl::string_view> rest =
      absl::StrSplit(absl::string_view(*stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  int64_t number = 0;
  if (place - 3 >= rest.size() || !absl::SimpleAtoi(rest[place - 3], &number)) {
    return std::nullopt;
  }
  return number;
}

// Fields of /proc/PID/stat: the parent's pid, and the start time.
constexpr size_t kParent = 4, kStart = 22;

}  // namespace

absl::StatusOr<std::string> LaunchingProcess(const std::string& rank_variable) {
  int64_t pid = getppid();
  while (pid > 0) {
    const auto environment = ReadOf(pid, "environ");
    if (!environment.has_value() || !Has(*environment, rank_variable)) {
      return absl::StrCat(pid, "-", StatNumber(pid, kStart).value_or(0));
    }
    pid = StatNumber(pid, kParent).value_or(0);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no process above this one is without ", rank_variable,
                   ", so the one that started the ranks cannot be told"));
}

}  // namespace entrain
