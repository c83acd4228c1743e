#include "lib/base/bytes.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

enum class Colour : uint8_t { kRed = 3 };

TEST(Bytes, ComeBackAsTheyWereWritten) {
  const std::string bytes = Writer()
                                .Put(uint8_t{7})
                                .Put(int64_t{-5})
                                .Put(Colour::kRed)
                                .PutText("text")
                                .PutText("")
                                .PutRaw("raw", 3)
                                .Take();
  Reader reader(bytes);
  EXPECT_EQ(reader.Get<uint8_t>(), 7);
  EXPECT_EQ(reader.Get<int64_t>(), -5);
  EXPECT_EQ(reader.Get<Colour>(), Colour::kRed);
  EXPECT_EQ(reader.GetText(), "text");
  EXPECT_EQ(reader.GetText(), "");
  EXPECT_FALSE(reader.Finished());
  EXPECT_EQ(reader.GetRaw(3), "raw");
  EXPECT_TRUE(reader.Finished());
}

TEST(Bytes, AreLittleEndian) {
  EXPECT_EQ(Writer().Put(uint32_t{0x01020304}).Take(), std::string("\4\3\2\1", 4));
}

TEST(Bytes, ShortReadsAreRememberedAndGiveZero) {
  const std::string bytes = Writer().Put(uint16_t{1}).Put(uint16_t{2}).Take();
  Reader reader(bytes);
  EXPECT_EQ(reader.Get<uint64_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.Get<uint16_t>(), 0) << "a read after a short one";
  EXPECT_EQ(reader.GetText(), "");
  EXPECT_FALSE(reader.Finished());
}

TEST(Bytes, TextsLongerThanAllowedOrThanThereIsAreRefused) {
  const std::string bytes = Writer().PutText("four").Take();
  EXPECT_EQ(Reader(bytes).GetText(4), "four");
  Reader strict(bytes);
  EXPECT_EQ(strict.GetText(3), "");
  EXPECT_FALSE(strict.ok());
  const std::string lying = Writer().Put(uint32_t{1000}).PutRaw("x", 1).Take();
  Reader reader(lying);
  EXPECT_EQ(reader.GetText(), "");
  EXPECT_FALSE(reader.ok());
}

}  // namespace
}  // namespace entrain
