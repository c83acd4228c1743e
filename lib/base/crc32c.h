// CRC32C (Castagnoli), the checksum of iSCSI and ext4. The checksum detects bytes that hardware has
// altered. It does not protect against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace entrain {

// Returns the checksum of a text that ends with these bytes. `before` is the checksum of the text
// up to them; 0: nothing comes before.
uint32_t Crc32c(const void* bytes, size_t count, uint32_t before = 0);

// A function that computes the checksum.
struct Crc32cWay {
  const char* name;
  uint32_t (*sum)(const void* bytes, size_t count, uint32_t before);
};
// Returns the functions that this processor can run. Crc32c uses the first. The last function is a
// loop with a table, which every processor can run.
std::vector<Crc32cWay> Crc32cWays();

}  // namespace entrain
