#include "lib/base/bytes.h"

#include <bit>

namespace entrain {

// Writer and Reader copy integers in the byte order of memory.
static_assert(std::endian::native == std::endian::little, "the wire formats are little-endian");

}  // namespace entrain
