// PullTransfer and RingTransfer, each with one message.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "tests/support/forbid_reading.h"
#include "transports/shm/pull_transfer.h"
#include "transports/shm/ring_transfer.h"

namespace entrain::shm {
namespace {

using Step = PullTransfer::Step;

std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    pattern[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  return pattern;
}
uint64_t AddressOf(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

// This process is its own peer.
class ShmPull : public testing::Test {
 protected:
  ShmPull() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    mine_ = Fd(pair[0]);
    theirs_ = Fd(pair[1]);
    process_ = PeerProcess::Of(pair[0]).value();
    cookie_.fill(7);
    EXPECT_TRUE(process_.SetCookie(AddressOf(cookie_.data()), cookie_));
  }
  Fd mine_, theirs_;
  Cookie cookie_{};
  PeerProcess process_;
};

TEST_F(ShmPull, ReadsPieceByPiece) {
  const std::vector<std::byte> from = Pattern(2500);
  std::vector<std::byte> into(from.size());
  PullTransfer pull(AddressOf(from.data()), nullptr);
  EXPECT_TRUE(pull.reads());
  EXPECT_EQ(pull.Copy(process_, absl::MakeSpan(into), 1000), Step::kPiece);
  EXPECT_EQ(pull.bytes(), 1000u);
  EXPECT_EQ(into[1000], std::byte{0});
  EXPECT_EQ(pull.Copy(process_, absl::MakeSpan(into), 1000), Step::kPiece);
  EXPECT_EQ(pull.Copy(process_, absl::MakeSpan(into), 1000), Step::kWhole);
  EXPECT_EQ(pull.bytes(), from.size());
  EXPECT_EQ(into, from);
}

TEST_F(ShmPull, CopiesWhatIsMappedWithoutTheProcess) {
  const std::vector<std::byte> from = Pattern(2500);
  std::vector<std::byte> into(from.size());
  PullTransfer pull(8, from.data());
  EXPECT_FALSE(pull.reads());
  EXPECT_EQ(pull.Copy({}, absl::MakeSpan(into), 2000), Step::kPiece);
  EXPECT_EQ(pull.Copy({}, absl::MakeSpan(into), 2000), Step::kWhole);
  EXPECT_EQ(into, from);
}

TEST_F(ShmPull, AnEmptyMessageNeedsNoMemory) {
  EXPECT_EQ(PullTransfer(8, nullptr).Copy({}, {}, 1000), Step::kWhole);
}

TEST_F(ShmPull, OnlyTheLastPieceNeedsTheProof) {
  const std::vector<std::byte> from = Pattern(2000);
  std::vector<std::byte> into(from.size());
  PullTransfer pull(AddressOf(from.data()), nullptr);
  cookie_.fill(8);  // as if the pid belonged to another process now
  EXPECT_EQ(pull.Copy(process_, absl::MakeSpan(into), 1000), Step::kPiece);
  EXPECT_EQ(pull.Copy(process_, absl::MakeSpan(into), 1000), Step::kGone);
}

TEST_F(ShmPull, KeepsWhatCameBeforeMemoryThatCannotBeRead) {
  const auto page = static_cast<size_t>(getpagesize());
  void* const memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 5, page);
  ASSERT_EQ(mprotect(static_cast<char*>(memory) + page, page, PROT_NONE), 0);
  std::vector<std::byte> into(2 * page);
  PullTransfer pull(AddressOf(memory), nullptr);
  Step step = Step::kPiece;
  for (int i = 0; i < 3 && step == Step::kPiece; ++i) {
    step = pull.Copy(process_, absl::MakeSpan(into), 2 * page);
  }
  EXPECT_EQ(step, Step::kUnreadable);
  EXPECT_EQ(pull.bytes(), page);
  EXPECT_EQ(std::count(into.begin(), into.end(), std::byte{5}), static_cast<ptrdiff_t>(page));
  munmap(memory, 2 * page);
}

TEST_F(ShmPull, SaysThatReadingIsForbidden) {
  EXPECT_EXIT(
      {
        const std::vector<std::byte> from = Pattern(100);
        std::vector<std::byte> into(from.size());
        PullTransfer pull(AddressOf(from.data()), nullptr);
        const bool forbidden =
            ForbidReading() && pull.Copy(process_, absl::MakeSpan(into), 100) == Step::kForbidden;
        _exit(forbidden && pull.bytes() == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(ShmRing, FragmentsComeBehindOneAnother) {
  const std::vector<std::byte> from = Pattern(3000);
  std::vector<std::byte> into(from.size());
  RingTransfer ring(500, from.size());
  EXPECT_TRUE(ring.Take({from.data() + 500, 1500}, absl::MakeSpan(into)));
  EXPECT_FALSE(ring.whole());
  EXPECT_TRUE(ring.Take({from.data() + 2000, 1000}, absl::MakeSpan(into)));
  EXPECT_TRUE(ring.whole());
  EXPECT_EQ(into[499], std::byte{0}) << "not asked for";
  EXPECT_TRUE(std::equal(from.begin() + 500, from.end(), into.begin() + 500));
}

TEST(ShmRing, RefusesMoreThanWasAskedFor) {
  const std::vector<std::byte> from = Pattern(101);
  std::vector<std::byte> into(100);
  RingTransfer ring(0, into.size());
  EXPECT_FALSE(ring.Fits(from));
  EXPECT_FALSE(ring.Take(from, absl::MakeSpan(into)));
  EXPECT_EQ(into, std::vector<std::byte>(100));
  EXPECT_TRUE(ring.Take({from.data(), 100}, absl::MakeSpan(into)));
  EXPECT_FALSE(ring.Fits({})) << "nothing is missing";
}

}  // namespace
}  // namespace entrain::shm
