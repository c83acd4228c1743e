// CRC32C (Castagnoli), the checksum of iSCSI and ext4. Detects bytes that hardware or a network has
// altered. Does not protect against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace entrain {

// Returns the checksum of a text that ends with `bytes`. `before` is the checksum of the text
// before `bytes`; 0 if there is none.
uint32_t Crc32c(const void* bytes, size_t count, uint32_t before = 0);

// One implementation of the checksum.
struct Crc32cWay {
  const char* name;
  uint32_t (*sum)(const void* bytes, size_t count, uint32_t before);
};
// Returns the implementations that this processor can run, fastest first. Crc32c uses the first.
// The last is a loop with a table, which runs on every processor.
std::vector<Crc32cWay> Crc32cWays();

}  // namespace entrain
