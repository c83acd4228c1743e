#include "examples/trainer/digits.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/trainer/error.h"

namespace trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns an image whose pixels and digit depend on its number.
std::string Line(int number) {
  std::string line;
  for (int i = 0; i < kPixels; ++i) {
    line += std::to_string((number * 7 + i) % (kDarkest + 1)) + " ";
  }
  return line + std::to_string(number % kDigits) + "\n";
}

std::string Lines(int count) {
  std::string lines;
  for (int number = 0; number < count; ++number) {
    lines += Line(number);
  }
  return lines;
}

class DigitsFile : public testing::Test {
 protected:
  DigitsFile() {
    path_ = testing::TempDir() + "entrain_digits_XXXXXX";
    close(mkstemp(path_.data()));
  }
  ~DigitsFile() override { std::filesystem::remove(path_); }

  Digits Load(const std::string& content) const {
    std::ofstream(path_) << content;
    return Digits::Load(path_);
  }

  std::string WhyNot(const std::string& content) const {
    try {
      Load(content);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  std::string path_;
};

TEST_F(DigitsFile, TheLastFifthIsForValidation) {
  const Digits digits = Load(Lines(23));
  EXPECT_EQ(digits.size(), 23);
  EXPECT_EQ(digits.validation_size(), 4);
  Batch batch;
  digits.TakeValidation(0, 3, &batch);
  EXPECT_THAT(batch.targets, testing::ElementsAre(9, 0, 1));
  ASSERT_EQ(batch.inputs.size(), 3u * kPixels);
  EXPECT_EQ(batch.inputs[0], 19 * 7 % 17);
  EXPECT_EQ(batch.inputs[2 * kPixels + 63], (21 * 7 + 63) % 17);
  digits.TakeValidation(3, 3, &batch);
  EXPECT_THAT(batch.targets, testing::ElementsAre(2));
}

TEST_F(DigitsFile, DrawsRepeatDifferAndStayInTheTrainingPart) {
  const Digits digits = Load(Lines(20));
  const auto draw = [&](uint64_t seed, int rank, int64_t number) {
    Batch batch;
    digits.DrawTraining(seed, rank, number, 8, &batch);
    EXPECT_EQ(batch.inputs.size(), 8u * kPixels);
    return batch.targets;
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  EXPECT_EQ((std::set{draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4)}).size(), 4u);
  std::set<int> seen;
  for (int number = 0; number < 100; ++number) {
    Batch batch;
    digits.DrawTraining(5, 0, number, 4, &batch);
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      const int first = batch.inputs[i * kPixels];
      for (int image = 0; image < 20; ++image) {
        if (image * 7 % 17 == first && image % kDigits == batch.targets[i]) {
          seen.insert(image);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 16u);
  EXPECT_EQ(*seen.rbegin(), 15);
}

TEST_F(DigitsFile, BlanksOfAnyKindSeparate) {
  std::string lines = Lines(5);
  lines.insert(lines.find(' '), "\t ");
  lines.insert(lines.find('\n'), " \r");
  lines.pop_back();  // no newline at the end
  EXPECT_EQ(Load(lines).size(), 5);
}

TEST_F(DigitsFile, WhatIsNoSuchFileIsNamedWithTheLineAndTheReason) {
  EXPECT_THAT(WhyNot(""), AllOf(HasSubstr(path_), HasSubstr("it has 0 images, and needs 5")));
  EXPECT_THAT(WhyNot(Lines(4)), HasSubstr("it has 4 images"));
  EXPECT_THAT(WhyNot(Lines(3) + "\n" + Lines(3)), HasSubstr("line 4 has 0 numbers"));
  EXPECT_THAT(WhyNot(Lines(3) + "1 2 3\n"),
              HasSubstr("line 4 has 3 numbers, not 64 pixels and a digit"));
  std::string longer = Lines(6);
  longer.insert(longer.find('\n'), " 7");
  EXPECT_THAT(WhyNot(longer), HasSubstr("line 1 has 66 numbers"));
  EXPECT_THAT(WhyNot(Line(0) + "17" + Line(1).substr(1)),
              HasSubstr("line 2 has '17' as its pixel 1, not a whole number from 0 to 16"));
  EXPECT_THAT(WhyNot("-1 " + Line(1)), HasSubstr("'-1' as its pixel 1"));
  EXPECT_THAT(WhyNot("0 1.5 " + Line(1)), HasSubstr("'1.5' as its pixel 2"));
  std::string digit = Line(1);
  digit.replace(digit.size() - 2, 1, "10");
  EXPECT_THAT(WhyNot(digit), HasSubstr("'10' as its digit, not a whole number from 0 to 9"));
  EXPECT_THAT(WhyNot("A text that is no images of digits."), HasSubstr("'A' as its pixel 1"));
  try {
    Digits::Load("/absent/digits");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'/absent/digits'"), HasSubstr("No such file")));
  }
}

TEST_F(DigitsFile, EntropyOfEqualSharesIsTheLogOfTheirNumber) {
  EXPECT_NEAR(Load(Lines(40)).Entropy(), std::log(10.0), 1e-12);
}

}  // namespace
}  // namespace trainer
