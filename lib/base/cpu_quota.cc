#include "lib/base/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include <sys/stat.h>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace entrain {
namespace {

std::vector<std::string> LinesOf(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(std::move(line));
  }
  return lines;
}

bool NamesCpu(absl::string_view list) {
  return absl::c_linear_search(std::vector<absl::string_view>(absl::StrSplit(list, ',')), "cpu");
}

// A mount of a cgroup hierarchy that limits CPU time. The mount may show only a part of the
// hierarchy.
struct CgroupMount {
  bool unified = false;  // cgroup v2
  std::string top;  // the path, inside the hierarchy, of the cgroup that the mount shows at `where`
  std::string where;
};

// Parses a line of mountinfo (proc(5)). Returns false if the line does not describe such a mount.
bool ParseMount(absl::string_view line, CgroupMount* mount) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  const auto dash =
      std::find(words.begin() + std::min<ptrdiff_t>(6, std::ssize(words)), words.end(), "-");
  if (words.end() - dash < 4) {
    return false;
  }
  mount->unified = dash[1] == "cgroup2";
  return (mount->unified || (dash[1] == "cgroup" && NamesCpu(dash[3]))) &&
         absl::CUnescape(words[3], &mount->top) && absl::CUnescape(words[4], &mount->where);
}

// Returns 0 if the folder sets no limit.
uint32_t MillicoresIn(const std::string& folder, bool unified) {
  std::vector<std::string> words;
  if (unified) {
    const std::vector<std::string> lines = LinesOf(folder + "/cpu.max");
    words = lines.empty() ? lines : absl::StrSplit(lines[0], ' ');
  } else {
    for (const char* const file : {"/cpu.cfs_quota_us", "/cpu.cfs_period_us"}) {
      const std::vector<std::string> lines = LinesOf(folder + file);
      words.insert(words.end(), lines.begin(), lines.end());
    }
  }
  int64_t quota, period;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota) ||  // "max"
      !absl::SimpleAtoi(words[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<uint32_t>(
      std::clamp(1000.0 * static_cast<double>(quota) / static_cast<double>(period), 1.0,
                 static_cast<double>(std::numeric_limits<uint32_t>::max())));
}

// Updates `least` with the cgroup `path` and the cgroups that contain it, up to the top of the
// mount.
void FindLeast(const std::string& root, const CgroupMount& mount, absl::string_view path,
               CpuQuota* least) {
  // The path of a cgroup outside of this process's cgroup namespace begins with "..". Such a cgroup
  // cannot be found in the mount.
  const absl::string_view top = mount.top == "/" ? "" : absl::string_view(mount.top);
  if (!absl::ConsumePrefix(&path, top) || (!path.empty() && path[0] != '/') ||
      absl::StartsWith(path, "/..")) {
    return;
  }
  for (path = absl::StripSuffix(path, "/");; path = path.substr(0, path.rfind('/'))) {
    const std::string folder = absl::StrCat(root, mount.where, path);
    const uint32_t millicores = MillicoresIn(folder, mount.unified);
    struct stat info {};
    if (millicores > 0 && (least->millicores == 0 || millicores <= least->millicores) &&
        stat(folder.c_str(), &info) == 0) {
      *least = {info.st_dev, info.st_ino, millicores};
    }
    if (path.empty()) {
      return;
    }
  }
}

}  // namespace

CpuQuota CpuQuota::OfThisProcess(const std::string& root) {
  CpuQuota least;
  const std::vector<std::string> cgroups = LinesOf(root + "/proc/self/cgroup");
  for (const std::string& line : LinesOf(root + "/proc/self/mountinfo")) {
    CgroupMount mount;
    if (!ParseMount(line, &mount)) {
      continue;
    }
    for (const std::string& cgroup : cgroups) {
      // Each line is NUMBER:CONTROLLERS:PATH. In the line of cgroup v2, CONTROLLERS is empty.
      const std::vector<std::string> parts = absl::StrSplit(cgroup, absl::MaxSplits(':', 2));
      if (parts.size() == 3 && (mount.unified ? parts[1].empty() : NamesCpu(parts[1]))) {
        FindLeast(root, mount, parts[2], &least);
      }
    }
  }
  return least;
}

}  // namespace entrain
