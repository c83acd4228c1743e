// Returns the number of mappings of the library's shared memory in this process.
#pragma once

#include <fstream>
#include <string>

namespace entrain {

inline int SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:entrain") != std::string::npos ? 1 : 0;
  }
  return count;
}

}  // namespace entrain
