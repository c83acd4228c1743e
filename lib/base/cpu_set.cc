#include "lib/base/cpu_set.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <thread>

#include <sched.h>

namespace entrain {

CpuSet CpuSet::OfThisThread() {
  // The kernel returns an error if the buffer is smaller than the kernel's own set of CPUs.
  alignas(cpu_set_t) std::array<char, kMostBytes> bits{};
  static_assert(kMostBytes % sizeof(cpu_set_t) == 0);
  if (sched_getaffinity(0, bits.size(), reinterpret_cast<cpu_set_t*>(bits.data())) != 0) {
    return First(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  }
  return FromBits({bits.data(), bits.size()});
}

CpuSet CpuSet::First(int count) {
  std::string bits(static_cast<size_t>(count / 8), '\xff');
  bits.push_back(static_cast<char>((1 << count % 8) - 1));
  return FromBits(bits);
}

CpuSet CpuSet::FromBits(absl::string_view bits) {
  bits = bits.substr(0, kMostBytes);
  const size_t last = bits.find_last_not_of('\0');
  CpuSet set;
  set.bits_ = std::string(bits.substr(0, last == bits.npos ? 0 : last + 1));
  return set;
}

void CpuSet::Add(const CpuSet& other) {
  bits_.resize(std::max(bits_.size(), other.bits_.size()));
  for (size_t i = 0; i < other.bits_.size(); ++i) {
    bits_[i] = static_cast<char>(bits_[i] | other.bits_[i]);
  }
}

int CpuSet::Count() const {
  size_t count = 0;
  for (const char byte : bits_) {
    count += std::bitset<8>(static_cast<unsigned char>(byte)).count();
  }
  return static_cast<int>(count);
}

}  // namespace entrain
