// Data files, plain or gzip, and their entropy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

// Returns the whole content. Throws Error naming the path and the reason.
std::vector<uint8_t> ReadFile(const std::string& path);
// Throws the Error of ReadFile.
[[noreturn]] void FailToRead(const std::string& path, const std::string& reason);

// Returns -sum p log p over the values, in nats.
double EntropyOf(const std::vector<uint8_t>& values);

}  // namespace trainer
