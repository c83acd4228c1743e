#include "lib/base/stream_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(StreamCopy, CopiesEveryLengthFromAnywhereToAnywhereAndNothingElse) {
  constexpr size_t kMost = 70'000, kRoom = 256;
  std::vector<uint8_t> from(kMost + kRoom);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<uint8_t>(i * 31 + (i >> 8));
  }
  std::vector<uint8_t> to(kMost + 2 * kRoom);
  // Sizes: below a line, a few lines, around the 16 KiB that are copied together, and several times
  // 16 KiB.
  for (const size_t bytes :
       {0, 1, 63, 64, 65, 200, 4096, 16383, 16384, 16447, 16448, 33000, 70000}) {
    for (const size_t source : {0, 1, 16, 40}) {
      for (const size_t target : {0, 1, 7, 16, 63}) {
        std::vector<uint8_t> expected(to.size(), 0xee);
        std::copy_n(from.begin() + static_cast<ptrdiff_t>(source), bytes,
                    expected.begin() + static_cast<ptrdiff_t>(kRoom + target));
        to.assign(to.size(), 0xee);
        StreamCopy(&to[kRoom + target], &from[source], bytes);
        ASSERT_EQ(to, expected) << bytes << " bytes from " << source << " to " << target;
      }
    }
  }
}

TEST(StreamCopy, OfNothingTouchesNothing) {
  StreamCopy(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace entrain
