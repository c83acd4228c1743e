// Data files, plain or gzip, and the one figure that is taken of all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

// The whole content. Throws Error naming the path and the reason.
std::vector<uint8_t> ReadFile(const std::string& path);
// Throws what ReadFile throws.
[[noreturn]] void FailToRead(const std::string& path, const std::string& reason);

// -sum p log p over the values, in nats.
double EntropyOf(const std::vector<uint8_t>& values);

}  // namespace trainer
