// The logical CPUs of a host on which a thread may run. A plain value type.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

class CpuSet {
 public:
  // The size limit of bits(). CPUs beyond it are left out.
  static constexpr size_t kMostBytes = 1024;

  CpuSet() = default;
  // Returns the set that sched_getaffinity reports. The set may come from taskset, from a
  // container's cpuset, or from a launcher. Returns all CPUs of the machine if sched_getaffinity
  // fails.
  static CpuSet OfThisThread();
  // Returns the CPUs 0 to count - 1.
  static CpuSet First(int count);
  // Returns the set with these bits(). `bits` may have additional zero bytes at the end.
  static CpuSet FromBits(absl::string_view bits);

  void Add(const CpuSet& other);
  int Count() const;
  // One bit per CPU. CPU 0 is the lowest bit of the first byte. The last byte is not zero.
  const std::string& bits() const { return bits_; }

 private:
  std::string bits_;
};

}  // namespace entrain
