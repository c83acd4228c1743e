#include "lib/net/key_file.h"

#include <cstdio>
#include <fstream>

#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

class KeyFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string directory = ::testing::TempDir() + "entrain-key-XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    path_ = directory + "/key";
  }
  void TearDown() override {
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
  void Write(const std::string& text, mode_t mode) {
    std::ofstream(path_, std::ios::binary) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  void ExpectRefused(const char* why) {
    const auto key = ReadKeyFile(path_);
    EXPECT_EQ(key.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(key.status().message()), HasSubstr(why));
    EXPECT_THAT(std::string(key.status().message()), HasSubstr(path_));
  }
  std::string directory_, path_;
};

TEST_F(KeyFile, OneNewlineAtTheEndIsNotPartOfTheKey) {
  Write("sixteen bytes !!\n", 0600);
  EXPECT_EQ(*ReadKeyFile(path_), "sixteen bytes !!");
}

TEST_F(KeyFile, BytesAreKeptAsTheyAre) {
  std::string key = "sixteen bytes a";
  key.push_back('\0');
  key += "b\n";
  Write(key + "\n", 0600);
  EXPECT_EQ(*ReadKeyFile(path_), key);
}

TEST_F(KeyFile, LongestIsAccepted) {
  std::string text(kMaxKeyBytes, 'k');
  text.push_back('\n');
  Write(text, 0600);
  ASSERT_TRUE(ReadKeyFile(path_).ok());
  EXPECT_EQ(ReadKeyFile(path_)->size(), kMaxKeyBytes);
}

TEST_F(KeyFile, TooLongIsRefused) {
  Write(std::string(kMaxKeyBytes + 1, 'k'), 0600);
  ExpectRefused("longer");
}

TEST_F(KeyFile, EmptyIsRefused) {
  Write("\n", 0600);
  ExpectRefused("empty");
}

TEST_F(KeyFile, WhatCouldBeGuessedIsRefused) {
  for (const char* key : {"k", "dragon7", "fifteen bytes !\n"}) {
    Write(key, 0600);
    ExpectRefused("at least 16 bytes");
  }
}

TEST_F(KeyFile, WhatOthersMayUseIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    Write("sixteen bytes !!", mode);
    ExpectRefused("mode");
  }
}

TEST_F(KeyFile, MissingIsRefused) {
  ExpectRefused("No such file");
}

TEST_F(KeyFile, FifoIsRefusedWithoutWaiting) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused("regular");
}

}  // namespace
}  // namespace entrain
