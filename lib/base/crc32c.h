// CRC32C (Castagnoli), the checksum of iSCSI and ext4: detects bytes that hardware has altered. It
// is no protection from an attacker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace entrain {

// Returns the checksum of the bytes. `before`: the checksum of bytes before them, 0 for none. Uses
// the processor's instruction (SSE4.2) if there is one.
uint32_t Crc32c(const void* bytes, size_t count, uint32_t before = 0);

// The same by a table, on every processor.
uint32_t Crc32cByTable(const void* bytes, size_t count, uint32_t before = 0);

}  // namespace entrain
