#include "lib/store/brought.h"

#include <array>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "lib/base/bytes.h"

namespace entrain {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Returns the start time of a running process, or an empty text if the process has ended or does
// not exist.
std::string StartOf(absl::string_view pid) {
  const std::string stat = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');  // the process's name may hold any character
  const std::vector<absl::string_view> rest =
      absl::StrSplit(name_end == std::string::npos ? absl::string_view()
                                                   : absl::string_view(stat).substr(name_end + 1),
                     ' ', absl::SkipEmpty());
  constexpr size_t kState = 0, kStart = 19;  // fields 3 and 22 of proc(5)
  const bool runs = rest.size() > kStart && rest[kState] != "Z" && rest[kState] != "X";
  return runs ? std::string(rest[kStart]) : std::string();
}

// Returns "boot id/process namespace". The PIDs of two processes may be compared only if these
// texts are equal. Empty: unknown.
std::string NumberSpace() {
  std::array<char, 64> space{};
  const std::string boot = ReadAll("/proc/sys/kernel/random/boot_id");
  return boot.empty() || readlink("/proc/self/ns/pid", space.data(), space.size() - 1) <= 0
             ? std::string()
             : absl::StrCat(absl::StripSuffix(boot, "\n"), "/", space.data());
}

}  // namespace

ProcessName ProcessName::Own() {
  const std::string pid = absl::StrCat(getpid());
  return {NumberSpace(), pid, StartOf(pid)};
}

bool ProcessName::IsHere() const {
  return !space.empty() && !start.empty() && space == NumberSpace();
}

bool ProcessName::HasEnded() const {
  return StartOf(pid) != start;
}

std::string EncodeBrought(const Brought& brought) {
  const ProcessName& process = brought.process;
  return Writer()
      .PutText(process.space)
      .PutText(process.pid)
      .PutText(process.start)
      .PutText(EncodeEntry(brought.entry))
      .Take();
}

absl::StatusOr<Brought> DecodeBrought(absl::string_view bytes, absl::string_view what) {
  Reader in(bytes);
  Brought brought;
  brought.process.space = std::string(in.GetText());
  brought.process.pid = std::string(in.GetText());
  brought.process.start = std::string(in.GetText());
  auto entry = DecodeEntry(in.GetText(2 * kMaxEntryBytes));
  if (!entry.ok()) {
    return absl::DataLossError(absl::StrCat(what, " holds no rank's entry"));
  }
  brought.entry = *std::move(entry);
  return brought;
}

}  // namespace entrain
