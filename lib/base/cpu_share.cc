#include "lib/base/cpu_share.h"

#include <algorithm>

namespace entrain {

void CpuCrowd::Add(const CpuShare& one) {
  ++size_;
  all_.Add(one.set);
  if (one.quota.millicores == 0) {
    unlimited_.Add(one.set);
    return;
  }
  const auto [it, added] =
      millicores_.emplace(std::pair(one.quota.device, one.quota.inode), one.quota.millicores);
  // Processes that read the quota of one cgroup at different times may report different values.
  if (!added) {
    it->second = std::min(it->second, one.quota.millicores);
  }
}

int CpuCrowd::Cores() const {
  int64_t millicores = 0;
  for (const auto& [who, limit] : millicores_) {
    millicores += limit;
  }
  const int64_t most = unlimited_.Count() + millicores / 1000;
  return static_cast<int>(std::clamp<int64_t>(most, 1, std::max(1, all_.Count())));
}

}  // namespace entrain
