// CRC32C (Castagnoli), the checksum of iSCSI and ext4. It detects bytes that hardware has altered,
// and does not protect against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace entrain {

// Returns the checksum of the bytes. `before` is the checksum of the bytes before them; 0: none.
uint32_t Crc32c(const void* bytes, size_t count, uint32_t before = 0);

// A function that computes the checksum.
struct Crc32cWay {
  const char* name;
  uint32_t (*sum)(const void* bytes, size_t count, uint32_t before);
};
// Returns the ways that this processor can use. Crc32c uses the first. The last is a loop over a
// table, for every processor.
std::vector<Crc32cWay> Crc32cWays();

}  // namespace entrain
