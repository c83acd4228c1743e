#include "lib/base/crc32c.h"

#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace entrain {
namespace {

// The values of RFC 3720, appendix B.4.
TEST(Crc32c, KnownSums) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  std::vector<uint8_t> rising(32);
  std::iota(rising.begin(), rising.end(), uint8_t{0});
  EXPECT_EQ(Crc32c(rising.data(), rising.size()), 0x46dd794eu);
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
}

TEST(Crc32c, InstructionAndTableAgreeForEveryLengthAndStart) {
  std::vector<uint8_t> bytes(70'000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 11);
  }
  for (const size_t count : {0, 1, 7, 8, 9, 4095, 12287, 12288, 12289, 24576, 65536, 69990}) {
    for (const size_t start : {0, 1, 3, 8}) {
      EXPECT_EQ(Crc32c(bytes.data() + start, count), Crc32cByTable(bytes.data() + start, count))
          << count << " from " << start;
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
