// Files that killed processes leave, and files that must not be mistaken for them. The processes
// are real.
#include "lib/checkpoint/leftovers.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/clock.h"
#include "lib/checkpoint/checkpoint_file.h"

namespace entrain {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kId = 0x0badcafe;

class Leftovers : public ::testing::Test {
 protected:
  Leftovers() {
    directory_ = ::testing::TempDir() + "leftovers_XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }
  ~Leftovers() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& name) const { return directory_ + "/" + name; }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(File(name)) << text;
  }
  std::unique_ptr<FileTarget> Open(const std::string& name) const {
    auto file = FileTarget::Create(File(name));
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  // Writes a complete file of one rank.
  void WritePart(int rank, uint32_t id) const {
    CheckpointWriter part(Open(PartName("step-7", rank, id)));
    EXPECT_EQ(part.Finish(Manifest()), absl::OkStatus());
    EXPECT_EQ(part.Commit(), absl::OkStatus());
  }
  // Runs `save` in a process that is then killed.
  void KilledAfter(const std::function<void()>& save) const {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      save();
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  void Clear() const { ClearLeftovers(directory_, Deadline::Never().at_ns); }

  std::string directory_;
};

TEST_F(Leftovers, OfASaveThatWasKilledAreCleared) {
  KilledAfter([&] {
    const auto head = Open("step-7.ckpt");
    EXPECT_EQ(head->Mark(kId), absl::OkStatus());
    WritePart(1, kId);
    const auto unfinished = Open(PartName("step-7", 12345, kId));
    const auto full = Open("step-8.ckpt");           // belongs to another save
    Write(PartName("step-7", 3, kId) + ".tmp", "");  // killed before the file's first bytes
    raise(SIGKILL);
  });
  EXPECT_THAT(Files(), ElementsAre("step-7.ckpt.tmp", "step-7_0001_0badcafe.ckpt",
                                   "step-7_0003_0badcafe.ckpt.tmp",
                                   "step-7_12345_0badcafe.ckpt.tmp", "step-8.ckpt.tmp"));
  Clear();
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(Leftovers, OfASaveThatWasKilledBeforeTheLastFileHadItsNameAreCleared) {
  KilledAfter([&] {
    auto head = Open("step-7.ckpt");
    EXPECT_EQ(head->Mark(kId), absl::OkStatus());
    WritePart(1, kId);
    Manifest manifest;
    manifest.files.push_back({PartName("step-7", 1, kId), {}});
    CheckpointWriter writer(std::move(head));
    EXPECT_EQ(writer.Finish(manifest), absl::OkStatus());
    raise(SIGKILL);
  });
  EXPECT_THAT(Files(), ElementsAre("step-7.ckpt.tmp", "step-7_0001_0badcafe.ckpt"));
  Clear();
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(Leftovers, AreFoundByTheNextWriterOfTheSameName) {
  KilledAfter([&] {
    const auto head = Open("step-7.ckpt");
    EXPECT_EQ(head->Mark(kId), absl::OkStatus());
    raise(SIGKILL);
  });
  EXPECT_EQ(Open("step-7.ckpt")->found().id, kId);
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_FALSE(Open("step-7.ckpt")->found().id.has_value());
}

TEST_F(Leftovers, AreNotWhatOthersNeed) {
  const auto head = Open("step-7.ckpt");  // a save that is under way
  ASSERT_EQ(head->Mark(kId), absl::OkStatus());
  const auto unfinished = Open(PartName("step-7", 2, kId));
  WritePart(1, kId);
  WritePart(1, kId + 1);  // of a checkpoint with its head elsewhere
  Write("step-6.ckpt.tmp", "what another program writes");
  Write("step-3.ckpt.tmp", "");  // just begun by another program
  Write("step-2.ckpt.tmp", std::string(200, '\0'));
  std::filesystem::create_directory(File("step-5.ckpt.tmp"));
  std::filesystem::create_symlink("step-7_0001_0badcafe.ckpt", File("step-4.ckpt.tmp"));
  const std::vector<std::string> before = Files();
  Clear();
  EXPECT_EQ(Files(), before);
}

// A file left over that is a copy of the head is complete and lists the same parts. The parts that
// the head itself lists must stay.
TEST_F(Leftovers, AreNotThePartsOfACheckpointThatCounts) {
  WritePart(1, kId);
  WritePart(2, kId);  // not listed in the head
  CheckpointWriter head(Open("step-7.ckpt"));
  Manifest manifest;
  manifest.files.push_back({PartName("step-7", 1, kId), {}});
  ASSERT_EQ(head.Finish(manifest), absl::OkStatus());
  ASSERT_EQ(head.Commit(), absl::OkStatus());
  std::filesystem::copy_file(File("step-7.ckpt"), File("step-7.ckpt.tmp"));
  Clear();
  EXPECT_THAT(Files(), ElementsAre("step-7.ckpt", "step-7_0001_0badcafe.ckpt"));
  // A head that cannot be read may list any files.
  WritePart(2, kId);
  std::filesystem::copy_file(File("step-7.ckpt"), File("step-7.ckpt.tmp"));
  Write("step-7.ckpt", "damaged");
  Clear();
  EXPECT_THAT(Files(),
              ElementsAre("step-7.ckpt", "step-7_0001_0badcafe.ckpt", "step-7_0002_0badcafe.ckpt"));
}

TEST_F(Leftovers, OfOneSaveTakeNoFilesOfAnother) {
  KilledAfter([&] {
    const auto head = Open("step-7.ckpt");
    EXPECT_EQ(head->Mark(kId), absl::OkStatus());
    WritePart(1, kId);
    raise(SIGKILL);
  });
  WritePart(1, kId + 1);
  Write("step-7_notes_0badcafe.ckpt", "");
  Write("my-step-7_0001_0badcafe.ckpt", "");
  Clear();
  EXPECT_THAT(Files(), ElementsAre("my-step-7_0001_0badcafe.ckpt", "step-7_0001_0badcaff.ckpt",
                                   "step-7_notes_0badcafe.ckpt"));
}

TEST_F(Leftovers, ThatAreNewerStay) {
  KilledAfter([&] {
    const auto head = Open("step-7.ckpt");
    raise(SIGKILL);
  });
  ClearLeftovers(directory_, ChangedAt(File("step-7.ckpt.tmp")));
  EXPECT_THAT(Files(), ElementsAre("step-7.ckpt.tmp"));
  ClearLeftovers(directory_, ChangedAt(File("step-7.ckpt.tmp")) + 1);
  EXPECT_THAT(Files(), IsEmpty());
}

}  // namespace
}  // namespace entrain
