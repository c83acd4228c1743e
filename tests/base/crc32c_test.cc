#include "lib/base/crc32c.h"

#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace entrain {
namespace {

// The values of RFC 3720, appendix B.4.
TEST(Crc32c, KnownSums) {
  std::vector<uint8_t> rising(32);
  std::iota(rising.begin(), rising.end(), uint8_t{0});
  for (const Crc32cWay& way : Crc32cWays()) {
    SCOPED_TRACE(way.name);
    EXPECT_EQ(way.sum("123456789", 9, 0), 0xe3069283u);
    EXPECT_EQ(way.sum(std::string(32, '\0').data(), 32, 0), 0x8a9136aau);
    EXPECT_EQ(way.sum(std::string(32, '\xff').data(), 32, 0), 0x62a8ab43u);
    EXPECT_EQ(way.sum(rising.data(), rising.size(), 0), 0x46dd794eu);
    EXPECT_EQ(way.sum(nullptr, 0, 0), 0u);
  }
}

TEST(Crc32c, AllWaysAgreeForEveryLengthAndStart) {
  std::vector<uint8_t> bytes(70'000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 11);
  }
  const Crc32cWay table = Crc32cWays().back();
  for (const size_t count : {0,   1,   7,   8,   9,    255,  256,   257,   511,   512,
                             767, 768, 769, 775, 1024, 4095, 12288, 24576, 65536, 69990}) {
    for (const size_t start : {0, 1, 3, 8}) {
      for (const uint32_t before : {0u, 1u, 0xffffffffu, 0x12345678u}) {
        const uint32_t want = table.sum(bytes.data() + start, count, before);
        for (const Crc32cWay& way : Crc32cWays()) {
          EXPECT_EQ(way.sum(bytes.data() + start, count, before), want)
              << way.name << ", " << count << " from " << start << " after " << before;
        }
        EXPECT_EQ(Crc32c(bytes.data() + start, count, before), want);
      }
    }
  }
}

TEST(Crc32c, PartsAreJoined) {
  const std::string text(50'000, 'x');
  for (const size_t cut : {1, 48, 12288, 30'001}) {
    EXPECT_EQ(Crc32c(text.data() + cut, text.size() - cut, Crc32c(text.data(), cut)),
              Crc32c(text.data(), text.size()));
  }
}

}  // namespace
}  // namespace entrain
