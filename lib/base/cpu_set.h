// A set of logical CPUs of a host: those on which a thread may run. A plain value type.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

class CpuSet {
 public:
  // CPUs whose bits lie beyond this number of bytes are left out.
  static constexpr size_t kMostBytes = 1024;

  CpuSet() = default;
  // Returns the set that sched_getaffinity reports (taskset, a cpuset of the container, a
  // launcher's binding), or all CPUs of the machine if that fails.
  static CpuSet OfThisThread();
  // Returns CPUs 0 to count - 1.
  static CpuSet First(int count);
  // Makes a set from bits(), which may have zero bytes added at the end.
  static CpuSet FromBits(absl::string_view bits);

  void Add(const CpuSet& other);
  int Count() const;
  // One bit per CPU; the first CPU is the lowest bit of the first byte. Ends with the last byte
  // that is not zero.
  const std::string& bits() const { return bits_; }

 private:
  std::string bits_;
};

}  // namespace entrain
