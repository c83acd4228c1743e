// CRC32C (Castagnoli), the checksum of iSCSI and ext4. It detects bytes that hardware has altered,
// and does not protect against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace entrain {

// Returns the checksum of the bytes. `before` is the checksum of the bytes before them; 0: none.
// Uses the processor's instruction (SSE4.2) if there is one.
uint32_t Crc32c(const void* bytes, size_t count, uint32_t before = 0);

// Returns the same checksum, computed with a table, on every processor.
uint32_t Crc32cByTable(const void* bytes, size_t count, uint32_t before = 0);

}  // namespace entrain
