#include "lib/checkpoint/checkpoint_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename T>
ConstBytes BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

class CheckpointFile : public ::testing::Test {
 protected:
  CheckpointFile() {
    std::string pattern = ::testing::TempDir() + "entrain-checkpoint-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/run.ckpt";
  }
  ~CheckpointFile() override { std::filesystem::remove_all(directory_); }

  // Writes a small checkpoint of two arrays, one of which needs padding.
  absl::Status WriteSmall(float first = 1, bool commit = true) {
    auto writer = CheckpointWriter::Create(path_);
    if (!writer.ok()) {
      return writer.status();
    }
    const std::vector<float> anchor = {first, 2, 3};
    const std::vector<int64_t> counters = {4, -5};
    absl::Status status = (*writer)->Begin({.name = "anchor", .part = 0, .layer = 0, .count = 3});
    status.Update((*writer)->Append(BytesOf(anchor).subspan(0, 5)));
    status.Update((*writer)->Append(BytesOf(anchor).subspan(5)));
    status.Update((*writer)->Begin({.name = "counters", .count = 2, .dtype = DType::kI64}));
    status.Update((*writer)->Append(BytesOf(counters)));
    Manifest manifest;
    manifest.step = 12;
    manifest.parts = {{{.count = 3}}};
    status.Update((*writer)->Finish(manifest));
    if (commit) {
      status.Update((*writer)->Commit());
    }
    return status;
  }
  // Opens the file and reads everything, like a loader.
  static absl::Status ReadAll(const std::string& path) {
    auto reader = CheckpointReader::Open(path);
    if (!reader.ok()) {
      return reader.status();
    }
    for (const SavedArray& array : (*reader)->manifest().arrays) {
      const absl::Status status = (*reader)->Verify(array);
      if (!status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }
  std::string Contents() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Returns the status of reading a file with this content.
  absl::Status ReadAllOf(const std::string& contents) const {
    const std::string path = directory_ + "/changed.ckpt";
    std::ofstream(path, std::ios::binary) << contents;
    return ReadAll(path);
  }

  std::string directory_, path_;
};

TEST_F(CheckpointFile, ComesBackAsItWas) {
  ASSERT_TRUE(WriteSmall().ok());
  const auto reader = CheckpointReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const Manifest& manifest = (*reader)->manifest();
  EXPECT_EQ(manifest.step, 12);
  ASSERT_EQ(manifest.arrays.size(), 2u);
  EXPECT_EQ(manifest.arrays[0].offset % 64, 0);
  EXPECT_EQ(manifest.arrays[1].offset, manifest.arrays[0].offset + 64);
  std::vector<float> anchor(3);
  std::vector<int64_t> counters(2);
  ASSERT_TRUE((*reader)->Read(manifest.arrays[0], 0, 3, anchor.data()).ok());
  ASSERT_TRUE((*reader)->Read(manifest.arrays[1], 0, 2, counters.data()).ok());
  EXPECT_THAT(anchor, ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(counters, ::testing::ElementsAre(4, -5));
}

TEST_F(CheckpointFile, PiecesOfALongArrayAreReadAlone) {
  std::vector<int32_t> values(300'000);  // more than one read
  std::iota(values.begin(), values.end(), 0);
  auto writer = CheckpointWriter::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(
      (*writer)
          ->Begin(
              {.name = "long", .count = static_cast<int64_t>(values.size()), .dtype = DType::kI32})
          .ok());
  ASSERT_TRUE((*writer)->Append(BytesOf(values)).ok());
  ASSERT_TRUE((*writer)->Finish({}).ok());
  ASSERT_TRUE((*writer)->Commit().ok());

  const auto reader = CheckpointReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const SavedArray& array = (*reader)->manifest().arrays[0];
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{
           {0, 1}, {65'535, 2}, {65'536, 65'536}, {1, 299'999}, {299'999, 1}, {7, 0}}) {
    std::vector<int32_t> piece(static_cast<size_t>(count) + 1, -1);
    ASSERT_TRUE((*reader)->Read(array, first, count, piece.data()).ok());
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(piece[static_cast<size_t>(i)], first + i);
    }
    EXPECT_EQ(piece.back(), -1);  // no element beyond the end
  }
}

TEST_F(CheckpointFile, EveryFlippedBitIsNoticed) {
  ASSERT_TRUE(WriteSmall().ok());
  const std::string good = Contents();
  ASSERT_TRUE(ReadAllOf(good).ok());
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      const absl::Status status = ReadAllOf(bad);
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << "byte " << at << " bit " << bit;
      ASSERT_THAT(std::string(status.message()), StartsWith(directory_));
    }
  }
}

TEST_F(CheckpointFile, EveryLengthButItsOwnIsRefused) {
  ASSERT_TRUE(WriteSmall().ok());
  const std::string good = Contents();
  for (size_t length = 0; length < good.size(); ++length) {
    const absl::Status status = ReadAllOf(good.substr(0, length));
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << length;
    if (length >= 96) {
      ASSERT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("is cut off: it has ", length, " bytes, and had ",
                                         good.size(), " when it was written")));
    }
  }
  EXPECT_THAT(std::string(ReadAllOf(good + "x").message()), HasSubstr("has something appended"));
  EXPECT_THAT(std::string(ReadAllOf(good + good).message()), HasSubstr("has something appended"));
}

TEST_F(CheckpointFile, DamageIsNamed) {
  ASSERT_TRUE(WriteSmall().ok());
  const std::string good = Contents();
  const auto with = [&](size_t at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    return std::string(ReadAllOf(bad).message());
  };
  EXPECT_THAT(with(0), HasSubstr("is not a checkpoint"));
  EXPECT_THAT(with(30), HasSubstr("the header is damaged"));
  EXPECT_THAT(with(100), HasSubstr("is damaged at byte 100, which must be 0"));
  EXPECT_THAT(with(130), AllOf(HasSubstr("\"anchor\" of layer 0"), HasSubstr("is damaged"),
                               HasSubstr("bytes 128 to 140 is")));
  EXPECT_THAT(with(150), HasSubstr("is damaged at byte 150, which must be 0"));
  EXPECT_THAT(with(good.size() - 3), HasSubstr("the manifest is damaged"));
}

// Puts a version into the header. `hashed`: also corrects the header's hash.
std::string WithVersion(std::string file, uint32_t version, bool hashed) {
  std::memcpy(file.data() + 8, &version, sizeof(version));
  if (hashed) {
    const Digest digest = DigestOf(AsBytes(absl::string_view(file).substr(0, 64)));
    std::memcpy(file.data() + 64, digest.data(), digest.size());
  }
  return file;
}

TEST_F(CheckpointFile, NewerVersionsAndStrangersAreRefused) {
  ASSERT_TRUE(WriteSmall().ok());
  const std::string good = Contents();
  EXPECT_THAT(std::string(ReadAllOf(WithVersion(good, 2, true)).message()),
              AllOf(HasSubstr("has format version 2; this library reads up to 1"),
                    Not(HasSubstr("damaged"))));
  EXPECT_THAT(std::string(ReadAllOf(WithVersion(good, 2, false)).message()),
              HasSubstr("reads up to 1 (or its header is damaged)"));
  EXPECT_THAT(std::string(ReadAllOf(WithVersion(good, 0, true)).message()),
              HasSubstr("has format version 0"));
  for (const std::string& stranger : {std::string(), std::string("PK\3\4 a zip file"),
                                      std::string(5000, '\0'), std::string(5000, 'x')}) {
    EXPECT_THAT(std::string(ReadAllOf(stranger).message()), HasSubstr("is not a checkpoint"));
  }
  EXPECT_THAT(std::string(ReadAll(directory_).message()), HasSubstr("is not a file"));
  const absl::Status absent = ReadAll(directory_ + "/none");
  EXPECT_EQ(absent.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("/none: cannot open it: No such file"));
}

// Returns a file with this manifest, in which all hashes are correct.
std::string Forge(const std::string& json, int64_t manifest_bytes, const std::string& arrays = "") {
  std::string file =
      "\x89"
      "ENTR\r\n\x1a";
  const auto put = [&file](auto value) {
    file.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(kCheckpointVersion);
  put(uint32_t{0});
  put(manifest_bytes);
  put(static_cast<int64_t>(128 + arrays.size() + json.size()));
  const Digest manifest = DigestOf(AsBytes(json));
  file.append(reinterpret_cast<const char*>(manifest.data()), manifest.size());
  const Digest header = DigestOf(AsBytes(file));
  file.append(reinterpret_cast<const char*>(header.data()), header.size());
  return file + std::string(32, '\0') + arrays + json;
}

TEST_F(CheckpointFile, NothingInItIsBelievedForItsHashAlone) {
  const auto forged = [this](const Manifest& manifest, const std::string& arrays) {
    const std::string json = ToJson(manifest);
    return ReadAllOf(Forge(json, static_cast<int64_t>(json.size()), arrays));
  };
  Manifest manifest;
  ASSERT_TRUE(forged(manifest, "").ok());  // an empty checkpoint is valid
  EXPECT_THAT(std::string(forged(manifest, std::string(64, 'a')).message()),
              HasSubstr("the arrays end at byte 128, but the manifest begins at 192"));

  const std::string bytes(64, 'a');
  manifest.arrays = {{.name = "a", .count = 16, .offset = 128, .digest = DigestOf(AsBytes(bytes))}};
  ASSERT_TRUE(forged(manifest, bytes).ok());
  for (const int64_t offset : {0, 64, 127, 129, 192, 1 << 30}) {
    Manifest wrong = manifest;
    wrong.arrays[0].offset = offset;
    EXPECT_THAT(std::string(forged(wrong, bytes).message()), HasSubstr("cannot lie at byte"));
  }
  for (const int64_t count : {int64_t{17}, int64_t{1} << 30, int64_t{1} << 54}) {
    Manifest wrong = manifest;
    wrong.arrays[0].count = count;
    EXPECT_THAT(std::string(forged(wrong, bytes).message()), HasSubstr("cannot lie at byte"));
  }
  Manifest two = manifest;
  two.arrays.push_back(manifest.arrays[0]);
  two.arrays[1].name = "b";
  EXPECT_THAT(std::string(forged(two, bytes).message()), HasSubstr("cannot lie at byte"));

  for (const int64_t length : {int64_t{-1}, int64_t{0}, int64_t{1} << 40, int64_t{1} << 62}) {
    EXPECT_THAT(std::string(ReadAllOf(Forge("{}", length)).message()),
                HasSubstr("the header says that the manifest has"));
  }
  EXPECT_THAT(std::string(ReadAllOf(Forge("{}", 2)).message()), HasSubstr("kind: is missing"));
}

TEST_F(CheckpointFile, TakesItsPlaceInOneStep) {
  ASSERT_TRUE(WriteSmall(1).ok());
  const std::string old = Contents();
  ASSERT_TRUE(WriteSmall(7, /*commit=*/false).ok());  // dropped just before the end
  EXPECT_EQ(Contents(), old);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
  std::ofstream(path_ + ".tmp") << "left by a process that died";
  ASSERT_TRUE(WriteSmall(7).ok());
  EXPECT_NE(Contents(), old);
  EXPECT_TRUE(ReadAll(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(CheckpointFile, HasOneWriterAtATime) {
  const auto first = CheckpointWriter::Create(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = CheckpointWriter::Create(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("somebody else is writing"));
}

// A writer that was stopped wakes up when others have repeated its save.
TEST_F(CheckpointFile, AWriterThatWasTakenOverPublishesAndRemovesNothing) {
  auto stopped = FileTarget::Create(path_);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  auto other = FileTarget::Create(path_, /*takes_over=*/true);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(FileTarget::Create(path_).ok()) << "that writer has the lock now";
  bool done = false;
  const absl::Status refused = (*stopped)->Publish(&done);
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another rank has taken over this save"));
  stopped->reset();
  EXPECT_TRUE(std::filesystem::exists(path_ + ".tmp"));
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ((*other)->Publish(&done), absl::OkStatus());
  EXPECT_TRUE(done && std::filesystem::exists(path_));
  EXPECT_EQ(FileTarget::Create(path_, /*takes_over=*/true).status(), absl::OkStatus())
      << "with nobody to take over from";
}

// A child that another thread forked holds copies of open descriptors, and may live long.
TEST_F(CheckpointFile, AForkedChildKeepsNoLock) {
  auto first = CheckpointWriter::Create(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  int born[2], until[2];
  ASSERT_EQ(pipe(born), 0);
  ASSERT_EQ(pipe(until), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  char byte;
  if (child == 0) {
    close(born[1]);
    close(until[1]);
    _exit(read(until[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(born[1]);
  EXPECT_EQ(read(born[0], &byte, 1), 0);  // the child runs, and has closed its descriptors
  EXPECT_FALSE(CheckpointWriter::Create(path_).ok());
  const std::string kept = path_ + ".kept";
  std::filesystem::create_hard_link(path_ + ".tmp", kept);  // the same file, without its writer
  first->reset();
  std::filesystem::rename(kept, path_ + ".tmp");
  EXPECT_EQ(CheckpointWriter::Create(path_).status(), absl::OkStatus());
  close(until[1]);
  waitpid(child, nullptr, 0);
  close(born[0]);
  close(until[0]);
}

TEST_F(CheckpointFile, RefusesADirectoryThatIsNotThere) {
  const auto writer = CheckpointWriter::Create(directory_ + "/none/run.ckpt");
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr("No such file or directory"));
}

TEST_F(CheckpointFile, CountsWhatAnArrayIsGiven) {
  auto writer = CheckpointWriter::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<float> values = {1, 2, 3};
  ASSERT_TRUE((*writer)->Begin({.name = "a", .count = 3}).ok());
  ASSERT_TRUE((*writer)->Append(BytesOf(values).subspan(4)).ok());
  EXPECT_THAT(std::string((*writer)->Append(BytesOf(values)).message()),
              HasSubstr("8 bytes too many for \"a\""));
  EXPECT_THAT(std::string((*writer)->Finish({}).message()), HasSubstr("4 bytes too few for \"a\""));
  EXPECT_FALSE((*writer)->Commit().ok());
}

}  // namespace
}  // namespace entrain
