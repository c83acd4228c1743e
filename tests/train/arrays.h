// Copies between arrays that a test knows by their address, and vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace entrain {

template <typename T>
std::vector<T> ReadArray(const void* from, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) {
    std::memcpy(values.data(), from, values.size() * sizeof(T));
  }
  return values;
}

template <typename T>
void WriteArray(void* to, const std::vector<T>& values) {
  if (!values.empty()) {
    std::memcpy(to, values.data(), values.size() * sizeof(T));
  }
}

}  // namespace entrain
