// A set of logical CPUs of a host: those that a thread may run on. A value.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

class CpuSet {
 public:
  // Of more than so many CPUs those beyond are left out.
  static constexpr size_t kMostBytes = 1024;

  CpuSet() = default;
  // As sched_getaffinity says (taskset, a cpuset of the container, a launcher's binding); where that
  // fails, all of the machine.
  static CpuSet OfThisThread();
  // CPUs 0 to count - 1.
  static CpuSet First(int count);
  // From bits(), perhaps with zeros behind.
  static CpuSet FromBits(absl::string_view bits);

  void Add(const CpuSet& other);
  int Count() const;
  // A bit a CPU, the first in the lowest of the first byte; ends with the last byte that is not zero.
  const std::string& bits() const { return bits_; }

 private:
  std::string bits_;
};

}  // namespace entrain
