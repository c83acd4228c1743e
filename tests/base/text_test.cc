#include "lib/base/text.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

TEST(CleanText, LeavesTextAsItIs) {
  for (const char* text : {"", "rank 3 gave up", "Größe µ € 語 \xf0\x9f\x98\x80 \"quoted\" ~"}) {
    EXPECT_EQ(CleanText(text), text);
  }
}

TEST(CleanText, ControlCharactersAreShownAsSuch) {
  EXPECT_EQ(CleanText("a\x1b[2J\x07z"), "a?[2J?z");
  EXPECT_EQ(CleanText("line\nanother\tcell\r"), "line another cell ");
  EXPECT_EQ(CleanText(std::string("nul\0del\x7f", 8)), "nul?del?");
  EXPECT_EQ(CleanText("\xc2\x9b"
                      "31m"),
            "?31m");  // CSI as one character
  EXPECT_EQ(CleanText("abc\xe2\x80\xae"
                      "cba"),
            "abc?cba");  // writes from right to left
  EXPECT_EQ(CleanText("\xe2\x80\xa8\xe2\x80\xa9"), "??");
}

TEST(CleanText, WhatIsNoUtf8IsShownByteByByte) {
  EXPECT_EQ(CleanText("\xff\xfe"), "??");
  EXPECT_EQ(CleanText("\xc0\x8a"), "??");            // a line feed in two bytes
  EXPECT_EQ(CleanText("\xe0\x80\x8a"), "???");       // in three
  EXPECT_EQ(CleanText("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(CleanText("\xf4\x90\x80\x80"), "????");  // beyond the last code point
  EXPECT_EQ(CleanText("\xe2\x82"), "??");            // cut off
  EXPECT_EQ(CleanText("\xe2\x82\x1b"), "???");
}

TEST(CleanText, LengthHasABoundThatCutsNoCharacter) {
  EXPECT_EQ(CleanText(std::string(5000, 'x')).size(), kMaxForeignText + 3);
  EXPECT_EQ(CleanText("123\xe2\x82\xac", 5), "123...");
  EXPECT_EQ(CleanText("123\xe2\x82\xac", 6), "123\xe2\x82\xac");
}

TEST(CleanText, WhateverComesIsCleanAfterwards) {
  std::mt19937 random(20261123);
  for (int i = 0; i < 5000; ++i) {
    std::string text(random() % 64, '\0');
    for (char& c : text) {
      c = static_cast<char>(random());
    }
    const std::string clean = CleanText(text);
    EXPECT_EQ(CleanText(clean), clean);
    for (const char c : clean) {
      EXPECT_TRUE(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f);
    }
  }
}

TEST(CleanText, StatusesOfPeersAreCleaned) {
  Blame blame;
  blame.rank = 2;
  blame.address = "tcp \x1b[31m";
  blame.operation = "all\nreduce";
  const auto status = DecodeStatus(
      EncodeStatus(WithBlame(absl::AbortedError("evil \x1b]0;title\x07 \xff\n[0] ok"), blame)));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->message(), "evil ?]0;title? ? [0] ok");
  EXPECT_EQ(BlameOf(*status).address, "tcp ?[31m");
  EXPECT_EQ(BlameOf(*status).operation, "all reduce");
  EXPECT_EQ(BlameOf(*status).rank, 2);
}

}  // namespace
}  // namespace entrain
