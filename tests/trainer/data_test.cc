#include "examples/trainer/data.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "examples/trainer/error.h"

namespace trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<uint8_t> Counting(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<uint8_t>(i % 251);
  }
  return bytes;
}

class DataFile : public testing::Test {
 protected:
  DataFile() {
    directory_ = testing::TempDir() + "entrain_data_XXXXXX";
    if (mkdtemp(directory_.data()) == nullptr) {
      ADD_FAILURE() << "no temporary directory";
    }
  }
  ~DataFile() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  std::string Write(const std::string& name, const std::vector<uint8_t>& bytes) const {
    std::ofstream file(Path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return Path(name);
  }

  std::string WriteGzip(const std::string& name, const std::vector<uint8_t>& bytes) const {
    gzFile file = gzopen(Path(name).c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    gzclose(file);
    return Path(name);
  }

  static std::string WhyNot(const std::string& path) {
    try {
      Text::Load(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  std::string directory_;
};

TEST_F(DataFile, PlainAndGzipReadTheSame) {
  const auto bytes = Counting(3000000);
  const Text plain = Text::Load(Write("plain", bytes));
  const Text packed = Text::Load(WriteGzip("packed.gz", bytes));
  ASSERT_EQ(plain.size(), 3000000);
  ASSERT_EQ(packed.size(), 3000000);
  EXPECT_EQ(plain.validation_size(), 150000);
  EXPECT_EQ(plain.ValidationBytes(0, 1 << 20), packed.ValidationBytes(0, 1 << 20));
  EXPECT_DOUBLE_EQ(plain.UnigramEntropy(), packed.UnigramEntropy());
}

TEST_F(DataFile, UnreadableFilesAreNamedWithTheReason) {
  EXPECT_THAT(WhyNot(Path("absent")), AllOf(HasSubstr("absent"), HasSubstr("No such file")));
  EXPECT_THAT(WhyNot(directory_), AllOf(HasSubstr(directory_), HasSubstr("Is a directory")));
  const std::string whole = WriteGzip("whole.gz", Counting(100000));
  std::filesystem::resize_file(whole, std::filesystem::file_size(whole) / 2);
  EXPECT_THAT(WhyNot(whole), AllOf(HasSubstr("whole.gz"), HasSubstr("broken gzip file")));
}

TEST(Text, TooShortForTheSequenceIsRefused) {
  const Text text(Counting(1000), "little");
  EXPECT_NO_THROW(text.CheckLength(49));
  EXPECT_THROW(text.CheckLength(50), Error);
  EXPECT_NO_THROW(text.CheckLength(9, 95));
  EXPECT_THROW(text.CheckLength(10, 95), Error);
}

TEST(Text, DrawsRepeatAndDifferByRankDrawAndSeed) {
  const Text text(Counting(100000), "t");
  const auto draw = [&](uint64_t seed, int rank, int64_t number) {
    Batch batch;
    text.DrawTraining(seed, rank, number, 4, 16, &batch);
    EXPECT_EQ(batch.inputs.size(), 64u);
    EXPECT_EQ(batch.targets.size(), 64u);
    return std::string(batch.inputs.begin(), batch.inputs.end());
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  const std::set<std::string> different = {draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3),
                                           draw(1, 2, 4)};
  EXPECT_EQ(different.size(), 4u);
}

TEST(Text, TargetsFollowInputsAndStayInTheTrainingPart) {
  std::vector<uint8_t> bytes = Counting(2000);
  for (size_t i = 1900; i < bytes.size(); ++i) {
    bytes[i] = 255;
  }
  const Text text(bytes, "t");
  Batch batch;
  for (int64_t number = 0; number < 200; ++number) {
    text.DrawTraining(1, 0, number, 3, 40, &batch);
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      ASSERT_EQ(batch.targets[i], (batch.inputs[i] + 1) % 251);
    }
  }
}

TEST(Text, APartHasItsOwnBytesOnlyAndAllOfThem) {
  std::vector<uint8_t> bytes(4000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i / 950);  // 3800 bytes in four parts, then validation
  }
  const Text text(bytes, "t");
  Batch batch;
  for (uint8_t part = 0; part < 4; ++part) {
    for (int64_t number = 0; number < 100; ++number) {
      text.DrawTraining(1, 0, number, 3, 40, &batch, part, 4);
      ASSERT_THAT(batch.inputs, testing::Each(part));
      ASSERT_THAT(batch.targets, testing::Each(part));
    }
  }
}

TEST(Text, ValidationWindowsCoverThePartToItsEnd) {
  const Text text(Counting(20000), "t");
  const auto part = text.ValidationBytes(0, text.validation_size());
  Batch batch;
  text.TakeValidation(10, 0, 10, 32, &batch);
  EXPECT_EQ(batch.inputs.front(), part.front());
  EXPECT_EQ(batch.targets.back(), part.back());
  Batch wrapped;
  text.TakeValidation(10, 10, 1, 32, &wrapped);
  EXPECT_TRUE(std::equal(wrapped.inputs.begin(), wrapped.inputs.end(), batch.inputs.begin()));
}

TEST(Text, EntropyOfEqualSharesIsTheLogOfTheirNumber) {
  std::vector<uint8_t> bytes;
  for (int i = 0; i < 4000; ++i) {
    bytes.push_back(static_cast<uint8_t>("abcd"[i % 4]));
  }
  EXPECT_NEAR(Text(bytes, "t").UnigramEntropy(), std::log(4.0), 1e-12);
}

}  // namespace
}  // namespace trainer
